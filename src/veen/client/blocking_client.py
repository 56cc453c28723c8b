"""The client for programs without an event loop. Each call runs on a loop in a separate thread and waits for it.

with BlockingClient("https://hub.example", folder, pin=pin) as client:
    client.send("news", b"hello")
    for entry in client.read("news"):
        ...
"""

from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from veen.client.client import Client
from veen.client.client_dir import ClientDir
from veen.client.evidence import Evidence
from veen.client.exchange import LoopThread
from veen.client.proofs import Proved, Resynced
from veen.client.reader import Entry
from veen.client.sender import DEFAULT_SCHEMA, Draft, Sent, Settled
from veen.client.transport import RetryPolicy
from veen.client.trust import HubStatus, Pin
from veen.core import CapToken, Checkpoint, Receipt
from veen.core.envelopes import AuthorizeResponse

T = TypeVar("T")


class BlockingClient:
    """A context manager. Any thread may call it. `client` is the async client that it uses."""

    def __init__(
        self,
        url: str,
        folder: ClientDir,
        *,
        pin: Pin | None = None,
        caps: Iterable[CapToken] = (),
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
            self._do(self.client.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._do(self.client.__aexit__(kind, error, at))
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of the async client on its loop and return the result."""
        return self._do(work)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def status(self) -> HubStatus:
        return self._do(self.client.status())

    def authorize(self, token: CapToken) -> AuthorizeResponse:
        return self._do(self.client.authorize(token))

    def send(
        self,
        stream: str | bytes,
        body: bytes,
        *,
        schema: str | bytes = DEFAULT_SCHEMA,
        parent_id: bytes | None = None,
        attachments: Sequence[Path] = (),
        expires_at: int | None = None,
    ) -> Sent:
        return self._do(
            self.client.send(
                stream, body, schema=schema, parent_id=parent_id, attachments=attachments, expires_at=expires_at
            )
        )

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

        return self._do(all_sent())

    def recover(self) -> Sequence[Settled]:
        return self._do(self.client.recover())

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
            while found := self._do(next_batch()):
                yield from found
        finally:
            self._do(close())

    def attachment(self, entry: Entry, index: int) -> bytes:
        return self._do(self.client.attachment(entry, index))

    def receipt(self, stream: str | bytes, stream_seq: int, *, epoch: int | None = None) -> Receipt:
        return self._do(self.client.receipt(stream, stream_seq, epoch=epoch))

    def proof(
        self, stream: str | bytes, stream_seq: int, upto_seq: int | None = None, *, epoch: int | None = None
    ) -> Proved:
        return self._do(self.client.proof(stream, stream_seq, upto_seq, epoch=epoch))

    def checkpoint(self, stream: str | bytes, upto_seq: int | None = None, *, epoch: int | None = None) -> Checkpoint:
        return self._do(self.client.checkpoint(stream, upto_seq, epoch=epoch))

    def evidence(
        self,
        stream: str | bytes,
        seqs: Sequence[int],
        *,
        claim: str = "",
        disclose: bool = False,
        epoch: int | None = None,
    ) -> Evidence:
        return self._do(self.client.evidence(stream, seqs, claim=claim, disclose=disclose, epoch=epoch))

    def resync(self, stream: str | bytes, *, replay_from: int | None = None, epoch: int | None = None) -> Resynced:
        return self._do(self.client.resync(stream, replay_from=replay_from, epoch=epoch))

    def forget(self, stream: str | bytes, *, epoch: int | None = None) -> None:
        self._do(self.client.forget(stream, epoch=epoch))


_BATCH_ENTRIES = 256
