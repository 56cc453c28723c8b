"""The client for programs without an event loop. Each call runs on a loop in a separate thread and waits for it.

with BlockingClient("https://hub.example", folder, pin=pin) as client:
    client.send("news", b"hello")
    for entry in client.read("news"):
        ...
"""

from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from veen.client.client import Client
from veen.client.client_dir import ClientDir
from veen.client.exchange import LoopThread
from veen.client.reader import Entry
from veen.client.sender import Draft, Sent
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin
from veen.core.cap_token import Capability

P = ParamSpec("P")
T = TypeVar("T")

_BATCH_ENTRIES = 256


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[BlockingClient, P], T]":
    """The blocking form of a method of the async client, with the same arguments and result."""

    def call(self: "BlockingClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self.client, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class BlockingClient:
    """A context manager. Any thread may call it. `client` is the async client that it uses."""

    def __init__(
        self,
        url: str,
        folder: ClientDir,
        *,
        pin: Pin | None = None,
        caps: Iterable[Capability] = (),
        retry_policy: RetryPolicy | None = None,
        http2: bool = False,
        allow_caught: bool = False,
    ) -> None:
        self.client = Client(
            url, folder, pin=pin, caps=caps, retry_policy=retry_policy, http2=http2, allow_caught=allow_caught
        )
        self._loop = LoopThread("veen-client")

    def __enter__(self) -> Self:
        try:
            self.run(self.client.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.run(self.client.__aexit__(kind, error, at))
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of the async client on its loop and return the result."""
        return self._loop.run(work)

    status = _blocking(Client.status)
    authorize = _blocking(Client.authorize)
    send = _blocking(Client.send)
    recover = _blocking(Client.recover)
    attachment = _blocking(Client.attachment)
    receipt = _blocking(Client.receipt)
    proof = _blocking(Client.proof)
    checkpoint = _blocking(Client.checkpoint)
    evidence = _blocking(Client.evidence)
    resync = _blocking(Client.resync)
    forget = _blocking(Client.forget)
    accept_recovery = _blocking(Client.accept_recovery)

    def send_many(self, stream: str | bytes, drafts: Iterable[Draft]) -> list[Sent]:
        """Send in order and in batches. Raises the first failure after all have an outcome."""

        async def all_sent() -> list[Sent]:
            sender = self.client.sender(stream)
            futures = []
            for draft in drafts:
                futures.append(sender.put(draft))
                if sender.is_full:
                    await sender.drain()
            await sender.drain()
            return [future.result() for future in futures]

        return self.run(all_sent())

    def read(
        self,
        stream: str | bytes,
        from_seq: int = 1,
        to_seq: int | None = None,
        *,
        follow: bool = False,
        with_proof: bool = False,
        epoch: int | None = None,
    ) -> Generator[Entry, None, None]:
        """Entries as from `Client.read`, fetched from the loop in batches."""
        entries = self.client.read(stream, from_seq, to_seq, follow=follow, with_proof=with_proof, epoch=epoch)

        async def next_batch() -> list[Entry]:
            found = []
            async for entry in entries:
                found.append(entry)
                # When following, do not wait for a full batch.
                if follow or len(found) == _BATCH_ENTRIES:
                    break
            return found

        async def close() -> None:
            async with aclosing(entries):
                pass

        try:
            while found := self.run(next_batch()):
                yield from found
        finally:
            self.run(close())
