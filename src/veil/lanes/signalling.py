"""How two nodes agree on a WebRTC session before there is one: a description there, a description back.

A description need not be secret, nor is it trusted: the handshake on the session binds the keys that both named, so
who alters one has its session refused. It may go through a folder, or over any lane that the two have already.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from veil.errors import Unavailable, VeilError
from veil.lanes import bounds
from veil.lanes.durable import PRIVATE_FOLDER, write_file
from veil.lanes.endpoint import Endpoint

_OFFER, _ANSWER = ".offer", ".answer"
_READABLE = 0o644

Answer = Callable[[str], Awaitable[str]]
Carry = Callable[[bytes, bytes], bool]


class Signalling(Protocol):
    """Carries descriptions."""

    async def start(self, answer: Answer) -> None: ...

    async def ask(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        """What the peer answers to an offer. The caller says how long to wait."""
        ...

    async def stop(self) -> None: ...


class FolderSignalling:
    """Descriptions as files: `FOLDER/<for whom>/<name>.offer`, answered beside it."""

    def __init__(self, own_key: bytes, folder: Path | None = None) -> None:
        self._own = own_key.hex()
        self._folder = folder
        self._answered: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    async def start(self, answer: Answer) -> None:
        if self._folder is not None:
            inbox = self._folder / self._own
            inbox.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._looking = asyncio.ensure_future(self._look_always(inbox, answer))

    async def ask(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        folder = Path(endpoint.path) / peer.hex()
        name = os.urandom(16).hex()
        asked, answered = folder / (name + _OFFER), folder / (name + _ANSWER)
        try:
            folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            write_file(asked, offer.encode(), _READABLE)
            try:
                while not answered.exists():
                    await asyncio.sleep(bounds.LOOK_SECONDS)
                return _read(answered)
            finally:
                for path in (asked, answered):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(str(endpoint), error.strerror or str(error)) from None

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_always(self, inbox: Path, answer: Answer) -> None:
        while True:
            with suppress(OSError):
                for path in sorted(inbox.glob(f"*{_OFFER}"))[: bounds.MAX_STRANGERS]:
                    await self._reply(path, answer)
            await asyncio.sleep(bounds.LOOK_SECONDS)

    async def _reply(self, path: Path, answer: Answer) -> None:
        if path.name in self._answered:
            return
        if len(self._answered) >= bounds.MAX_BANISHED:
            self._answered.clear()
        self._answered.add(path.name)
        with suppress(VeilError, OSError, ValueError):
            replied = await answer(_read(path))
            write_file(path.with_suffix(_ANSWER), replied.encode(), _READABLE)


class CarriedSignalling:
    """Descriptions over a lane that two nodes have already; `carry` hands bytes to a peer, if it can."""

    def __init__(self, carry: Carry) -> None:
        self._carry = carry
        self._answer: Answer | None = None
        self._asked: dict[bytes, asyncio.Future[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, answer: Answer) -> None:
        self._answer = answer

    async def ask(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        name = os.urandom(16)
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[name] = waiting
        try:
            if not self._carry(peer, b"O" + name + offer.encode()):
                raise Unavailable(str(endpoint), "no other lane to this node carries the offer")
            return await waiting
        finally:
            del self._asked[name]

    def arrived(self, peer: bytes, data: bytes) -> None:
        """What a peer sent by way of another lane."""
        kind, name, text = data[:1], data[1:17], data[17:].decode(errors="replace")
        if kind == b"A" and name in self._asked and not self._asked[name].done():
            self._asked[name].set_result(text)
        elif kind == b"O" and len(name) == 16 and len(self._tasks) < bounds.MAX_STRANGERS:
            task = asyncio.ensure_future(self._reply(peer, name, text))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reply(self, peer: bytes, name: bytes, offer: str) -> None:
        if self._answer is not None:
            with suppress(VeilError, ValueError):
                self._carry(peer, b"A" + name + (await self._answer(offer)).encode())


class EitherSignalling:
    """Through the folder that an endpoint names, or else over another lane."""

    def __init__(self, folder: FolderSignalling, carried: CarriedSignalling) -> None:
        self._folder = folder
        self._carried = carried

    async def start(self, answer: Answer) -> None:
        await self._folder.start(answer)
        await self._carried.start(answer)

    async def ask(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        return await (self._folder if endpoint.path else self._carried).ask(endpoint, peer, offer)

    async def stop(self) -> None:
        await self._folder.stop()
        await self._carried.stop()


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(bounds.MAX_SIGNAL_BYTES + 1)
    if len(data) > bounds.MAX_SIGNAL_BYTES:
        raise ValueError("a description of more bytes than any has")
    return data.decode(errors="replace")
