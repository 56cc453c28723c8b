"""Both ends of a lane on loopback, with the frames each end sent and received, and the error that ended it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plumbing.sodium import SigningKey
from tests.veil.lanes_proxy import socks5_server
from veil.lanes import Certificate, Endpoint, Lane, Session
from veil.lanes.file_lane import FileLane
from veil.lanes.lane import LinkLane
from veil.lanes.quic import QuicLane
from veil.lanes.session import AuthenticatedLane
from veil.lanes.tls_lane import TlsLane, TorLane
from veil.lanes.webrtc import FolderSignalling, WebRtcLane
from veil.lanes.websocket_lane import WebSocketLane
from veil.veil_errors import VeilError

LINK_LANES = ("quic", "wss", "tls", "tor", "webrtc")
ALL_LANES = (*LINK_LANES, "file")

ALICE, BOB, EVE = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))


@dataclass
class End:
    """One end of a session: outgoing and incoming frames, and the error that ended it."""

    session: Session
    outgoing: list[bytes] = field(default_factory=list)
    incoming: list[bytes] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    fault: VeilError | None = None
    task: asyncio.Task[None] | None = None

    def pull(self, most: int) -> tuple[bytes, ...]:
        if not self.outgoing:
            return ()
        return (self.outgoing.pop(0),)

    def take(self, frame: bytes) -> None:
        self.incoming.append(frame)
        self.arrived.set()

    def send(self, *frames: bytes) -> None:
        self.outgoing.extend(frames)
        self.session.wake()

    async def until(self, count: int) -> list[bytes]:
        """Wait for `count` incoming frames and return all."""
        while len(self.incoming) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.incoming

    async def run(self) -> None:
        try:
            await self.session.run(self.pull, self.take)
        except VeilError as error:
            self.fault = error

    async def ended(self) -> VeilError | None:
        assert self.task is not None
        await self.task
        return self.fault

    def start(self) -> "End":
        self.task = asyncio.ensure_future(self.run())
        return self


@dataclass
class Listener:
    """A listening lane and its accepted sessions."""

    lane: Lane
    certificate: Certificate
    ends: asyncio.Queue[End] = field(default_factory=asyncio.Queue)
    running: list[End] = field(default_factory=list)

    def accept(self, session: Session) -> None:
        self.ends.put_nowait(self.start(session))

    def start(self, session: Session) -> End:
        end = End(session).start()
        self.running.append(end)
        return end

    @property
    def endpoint(self) -> Endpoint:
        return self.lane.endpoints[0]


def _links(name: str, certificate: Certificate, key: SigningKey, folder: Path, proxy: tuple[str, int]) -> LinkLane:
    here = Endpoint(name, "127.0.0.1", 0)
    match name:
        case "quic":
            return QuicLane(certificate, here)
        case "wss":
            return WebSocketLane(certificate, here)
        case "tls":
            return TlsLane(certificate, here)
        case "tor":
            return TorLane(certificate, proxy, here)
        case _:
            signalling = FolderSignalling(key.public_key, folder)
            return WebRtcLane(signalling, (Endpoint("webrtc", path=str(folder)),))


def lane(name: str, key: SigningKey, certificate: Certificate, folder: Path, proxy: tuple[str, int]) -> Lane:
    if name == "file":
        return FileLane(key, folder)
    return AuthenticatedLane(_links(name, certificate, key, folder, proxy), key)


@asynccontextmanager
async def lane_pair(name: str, folder: Path) -> AsyncIterator[tuple[Lane, Listener]]:
    """The dialling lane of Alice and the listening lane of Bob."""
    shared = folder / "shared"
    shared.mkdir()
    async with socks5_server() as proxy:
        lanes = []
        for who, key in (("alice", ALICE), ("bob", BOB)):
            certificate = Certificate.load_or_make(folder / f"{who}.pem")
            lanes.append((lane(name, key, certificate, shared, proxy.address), certificate))
        (alice, _), (bob, certificate) = lanes
        listener = Listener(bob, certificate)
        await bob.start(listener.accept)
        await alice.start(lambda session: None)
        try:
            yield alice, listener
        finally:
            for end in listener.running:
                await end.session.close()
                await end.ended()
            await alice.stop()
            await bob.stop()


async def connect(alice: Lane, listener: Listener) -> tuple[End, End]:
    """A running session from Alice to Bob; returns both ends."""
    ours = listener.start(await alice.dial(listener.endpoint, BOB.public_key, None))
    if isinstance(listener.lane, FileLane):
        ours.send(b"first frame")
        theirs = await listener.ends.get()
        await theirs.until(1)
        theirs.incoming.clear()
    else:
        theirs = await listener.ends.get()
    return ours, theirs


def run(name: str, folder: Path, work: Callable[[Lane, Listener], object]) -> None:
    async def scenario() -> None:
        async with lane_pair(name, folder) as (alice, listener):
            await work(alice, listener)  # type: ignore[misc]

    asyncio.run(scenario())
