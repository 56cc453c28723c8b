"""Sessions: authenticated links with flow control, and the lane that makes them from links.

The receiver reports how many frames it has processed. Frames without such a report are in flight, and the window
bounds them, so a slow peer slows only its own session. Frames are pulled when the window has room, so they wait in the
queue of the node, which can reorder and store them.

    1 HELLO   2 ANSWER   3 PROOF   4 READY   5 FRAME bytes   6 RECEIVED u64   7 PING   8 PONG   9 BYE
    10 SIGNAL bytes, for the setup of another lane

Both ends of a link authenticate before any other message. The number of unauthenticated links and the time for
authentication are bounded. A peer that violates the protocol gets no error message, and an address with repeated
violations is banned for a while.
"""

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum

from plumbing.background import Tasks
from plumbing.sodium import SigningKey
from veil import veil_limits
from veil.encryption import verify
from veil.hashing import derive
from veil.lanes.certificate import check_pin
from veil.lanes.lane import Accept, Endpoint, Health, Incoming, LaneLink, LinkLane, Pull, Session
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES
from veil.veil_errors import Malformed, Unavailable, Unverified, VeilError

VERSION = 1
NONCE_BYTES = 32
_LISTENER = "veil lane listener v1"
_DIALLER = "veil lane dialler v1"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of the dialler."""

    nonce: bytes

    @classmethod
    def make(cls) -> "Hello":
        return cls(os.urandom(NONCE_BYTES))

    def encode(self) -> bytes:
        return bytes((VERSION,)) + self.nonce

    @classmethod
    def decode(cls, data: bytes) -> "Hello":
        if len(data) != 1 + NONCE_BYTES:
            raise Malformed("hello", f"{len(data)} bytes, not {1 + NONCE_BYTES}")
        if data[0] != VERSION:
            raise Malformed("hello", f"version {data[0]}, not {VERSION}")
        return cls(data[1:])


def answer_hello(hello: Hello, key: SigningKey, binding: bytes) -> tuple[bytes, bytes]:
    """The reply of the listener, and the transcript that the dialler must sign."""
    transcript = binding + hello.nonce + key.public_key + os.urandom(NONCE_BYTES)
    signed = transcript[len(binding) + NONCE_BYTES :] + key.sign(derive(_LISTENER, transcript))
    return signed, transcript


def check_answer(data: bytes, hello: Hello, binding: bytes, wanted: bytes | None) -> tuple[bytes, bytes]:
    """The key of the listener, and the transcript to sign. Raise `Unverified` if it is not the wanted node."""
    if len(data) != PUBKEY_BYTES + NONCE_BYTES + SIGNATURE_BYTES:
        raise Malformed("answer", f"{len(data)} bytes")
    pubkey, signature = data[:PUBKEY_BYTES], data[-SIGNATURE_BYTES:]
    if wanted is not None and pubkey != wanted:
        raise Unverified("peer", "another node answered than the one dialled")
    transcript = binding + hello.nonce + data[:-SIGNATURE_BYTES]
    verify(pubkey, derive(_LISTENER, transcript), signature, "peer")
    return pubkey, transcript


def proof(transcript: bytes, key: SigningKey) -> bytes:
    return key.public_key + key.sign(derive(_DIALLER, transcript + key.public_key))


def check_proof(data: bytes, transcript: bytes) -> bytes:
    """Verify the proof and return the key of the dialler."""
    if len(data) != PUBKEY_BYTES + SIGNATURE_BYTES:
        raise Malformed("proof", f"{len(data)} bytes")
    pubkey = data[:PUBKEY_BYTES]
    verify(pubkey, derive(_DIALLER, transcript + pubkey), data[PUBKEY_BYTES:], "peer")
    return pubkey


_U64 = 8
_BYE_SECONDS = 1.0
_MAX_SIGNALS = 8


class FrameKind(IntEnum):
    """The first byte of a message."""

    HELLO = 1
    ANSWER = 2
    PROOF = 3
    READY = 4
    FRAME = 5
    RECEIVED = 6
    PING = 7
    PONG = 8
    BYE = 9
    SIGNAL = 10


async def dial(link: LaneLink, key: SigningKey, wanted: bytes | None) -> "LinkSession":
    """Authenticate an outgoing link. If that fails, the link is closed."""
    async with _handshake_deadline(link):
        hello = Hello.make()
        await _send_message(link, FrameKind.HELLO, hello.encode())
        answered = await _expect(link, FrameKind.ANSWER)
        peer, transcript = check_answer(answered, hello, link.binding, wanted)
        await _send_message(link, FrameKind.PROOF, proof(transcript, key))
        # The first message may already be a frame instead of READY: the listener is authenticated.
        first = await link.receive()
    session = LinkSession(link, peer)
    session.early = first
    return session


async def answer(link: LaneLink, key: SigningKey) -> "LinkSession":
    """Authenticate an incoming link. If that fails, the link is closed."""
    async with _handshake_deadline(link):
        hello = Hello.decode(await _expect(link, FrameKind.HELLO))
        answered, transcript = answer_hello(hello, key, link.binding)
        await _send_message(link, FrameKind.ANSWER, answered)
        peer = check_proof(await _expect(link, FrameKind.PROOF), transcript)
        await _send_message(link, FrameKind.READY, b"")
    return LinkSession(link, peer)


@asynccontextmanager
async def _handshake_deadline(link: LaneLink) -> AsyncIterator[None]:
    """Limit the time of a handshake, and close the link on timeout or failure."""
    try:
        async with asyncio.timeout(veil_limits.HANDSHAKE_SECONDS):
            yield
    except TimeoutError:
        await link.close()
        raise Unavailable("peer", f"no handshake within {veil_limits.HANDSHAKE_SECONDS:.0f} s") from None
    except BaseException:
        await link.close()
        raise


async def _send_message(link: LaneLink, kind: FrameKind, body: bytes) -> None:
    await link.send(bytes((kind,)) + body)


async def _expect(link: LaneLink, kind: FrameKind) -> bytes:
    message = await link.receive()
    if message == bytes((FrameKind.BYE,)):
        raise Unavailable("peer", "closed the session")
    if message[0] != kind:
        raise Malformed("handshake", f"message kind {message[0]}, not {int(kind)}")
    return message[1:]


class LinkSession:
    """One peer over one link."""

    def __init__(self, link: LaneLink, peer: bytes) -> None:
        self.peer = peer
        self.remote = link.remote
        self.health = Health()
        self.closed = asyncio.Event()
        # Called if the peer violates the protocol.
        self.on_fault: Callable[[], None] = lambda: None
        # Called with SIGNAL data of the peer.
        self.on_signal: Callable[[bytes], None] = lambda data: None
        self._signals: deque[bytes] = deque()
        # The first message after the handshake, received before `run`.
        self.early: bytes | None = None
        self._link = link
        # Length and send time of each frame in flight, oldest first.
        self._in_flight: deque[tuple[int, float]] = deque()
        self._in_flight_bytes = 0
        self._received = 0
        self._received_reported = 0
        self._peer_received = 0
        self._ping_due = False
        self._pong_due = False
        self._work = asyncio.Event()
        self._last_received_at = time.monotonic()

    def wake(self) -> None:
        self._work.set()

    def signal(self, data: bytes) -> bool:
        """Queue SIGNAL data for the peer. Return False if too much is queued."""
        if self.closed.is_set() or len(self._signals) >= _MAX_SIGNALS or len(data) > veil_limits.MAX_FRAME_BYTES:
            return False
        self._signals.append(data)
        self._work.set()
        return True

    async def run(self, pull: Pull, incoming: Incoming) -> None:
        self._work.set()
        works = self._send_all(pull), self._receive_all(incoming), self._watch()
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Malformed:
            self.health.strikes += 1
            self.on_fault()
            raise
        finally:
            self.closed.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.health.lost(len(self._in_flight))
            await self._link.close()

    async def close(self) -> None:
        """Send BYE and close. `run` ends."""
        if not self.closed.is_set():
            self.closed.set()
            with suppress(VeilError, TimeoutError):
                async with asyncio.timeout(_BYE_SECONDS):
                    await self._link.send(bytes((FrameKind.BYE,)))
            await self._link.close()

    async def _send_all(self, pull: Pull) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await self._send_control()
            while room := self._room():
                frames = pull(room)
                if not frames:
                    break
                for frame in frames:
                    await self._send_frame(frame)
                await self._send_control()

    async def _send_control(self) -> None:
        while self._signals:
            await self._link.send(bytes((FrameKind.SIGNAL,)) + self._signals.popleft())
        if self._pong_due:
            self._pong_due = False
            await self._link.send(bytes((FrameKind.PONG,)))
        if self._ping_due:
            self._ping_due = False
            await self._link.send(bytes((FrameKind.PING,)))
        if self._received_reported != self._received:
            self._received_reported = self._received
            await self._link.send(bytes((FrameKind.RECEIVED,)) + self._received_reported.to_bytes(_U64, "big"))

    async def _send_frame(self, frame: bytes) -> None:
        if len(frame) > veil_limits.MAX_FRAME_BYTES:
            raise ValueError(f"frame of {len(frame)} bytes, more than {veil_limits.MAX_FRAME_BYTES}")
        self._in_flight.append((len(frame), time.monotonic()))
        self._in_flight_bytes += len(frame)
        self.health.frames_sent += 1
        self.health.bytes_sent += len(frame)
        await self._link.send(bytes((FrameKind.FRAME,)) + frame)

    def _room(self) -> int:
        """Free bytes in the window; 0 if the largest frame would not fit."""
        room = veil_limits.WINDOW_BYTES - self._in_flight_bytes
        return room if room >= veil_limits.MAX_FRAME_BYTES and len(self._in_flight) < veil_limits.WINDOW_FRAMES else 0

    async def _receive_all(self, incoming: Incoming) -> None:
        if self.early is not None and not self._handle(self.early, incoming):
            return
        self.early = None
        while self._handle(await self._link.receive(), incoming):
            self._last_received_at = time.monotonic()

    def _handle(self, message: bytes, incoming: Incoming) -> bool:
        """Process a message. Return False after BYE."""
        kind, body = message[0], message[1:]
        if kind == FrameKind.FRAME:
            self.health.frames_received += 1
            self.health.bytes_received += len(body)
            incoming(body)
            self._received += 1
            self._work.set()
        elif kind == FrameKind.RECEIVED and len(body) == _U64:
            self._on_received(int.from_bytes(body, "big"))
        elif kind == FrameKind.BYE:
            return False
        elif kind == FrameKind.SIGNAL:
            self.on_signal(body)
        elif kind == FrameKind.PING and not body:
            self._pong_due = True
            self._work.set()
        elif kind not in (FrameKind.PONG, FrameKind.READY) or body:
            raise Malformed("message", f"unexpected kind {kind} with {len(body)} bytes")
        return True

    def _on_received(self, received: int) -> None:
        count = received - self._peer_received
        if count > len(self._in_flight):
            raise Malformed("message", "the peer confirmed more frames than it was sent")
        if count <= 0:
            return  # some lanes reorder messages: this one is old
        self._peer_received = received
        since = self._in_flight[0][1]
        for _ in range(count):
            size, since = self._in_flight.popleft()
            self._in_flight_bytes -= size
        self.health.delivered(count, time.monotonic() - since)
        self._work.set()

    async def _watch(self) -> None:
        """Send pings while the peer is silent, and end the session if it stays silent."""
        while True:
            await asyncio.sleep(veil_limits.PING_SECONDS)
            silent = time.monotonic() - self._last_received_at
            if silent > veil_limits.SILENCE_SECONDS:
                raise Unavailable("peer", f"silent for {silent:.0f} s")
            if silent > veil_limits.PING_SECONDS / 2:
                self._ping_due = True
                self._work.set()


class Banlist:
    """Addresses that violated the protocol, with the count of violations and the end of the ban."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def is_banned(self, address: str) -> bool:
        strikes, until = self._until.get(address, (0, 0.0))
        return strikes >= veil_limits.MAX_STRIKES and self._clock() < until

    def strike(self, address: str) -> None:
        strikes, until = self._until.pop(address, (0, 0.0))
        if until < self._clock():
            strikes = 0
        self._until[address] = (strikes + 1, self._clock() + veil_limits.BAN_SECONDS)
        while len(self._until) > veil_limits.MAX_BANS:
            self._until.popitem(last=False)


class AuthenticatedLane:
    """Authenticates the links of a `LinkLane` with the key of the node."""

    def __init__(self, lane: LinkLane, key: SigningKey) -> None:
        self.unauthenticated = 0
        self.refused = 0
        self.banlist = Banlist()
        self._lane = lane
        self._key = key
        self._tasks = Tasks()

    @property
    def name(self) -> str:
        return self._lane.name

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._lane.endpoints

    async def start(self, accept: Accept) -> None:
        await self._lane.start(lambda link: self._on_link(link, accept))

    async def dial(self, endpoint: Endpoint, peer: bytes, pin: bytes | None) -> Session:
        link = await self._lane.dial(endpoint, peer)
        try:
            check_pin(link.binding, pin if self._lane.pinned else None)
        except Unverified:
            await link.close()
            raise
        return await dial(link, self._key, peer)

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._lane.stop()

    def _on_link(self, link: LaneLink, accept: Accept) -> None:
        self._tasks.start(self._authenticate(link, accept))

    async def _authenticate(self, link: LaneLink, accept: Accept) -> None:
        address = link.remote.rpartition(":")[0]
        if self.unauthenticated >= veil_limits.MAX_UNAUTHENTICATED or self.banlist.is_banned(address):
            self.refused += 1
            await link.close()
            return
        self.unauthenticated += 1
        try:
            with suppress(VeilError):
                accept(await self._handshake(link, address))
        finally:
            self.unauthenticated -= 1

    async def _handshake(self, link: LaneLink, address: str) -> LinkSession:
        def strike() -> None:
            if not self._lane.shares_addresses:
                self.banlist.strike(address)

        try:
            authenticated = await answer(link, self._key)
        except (Malformed, Unverified):
            self.refused += 1
            strike()
            raise
        authenticated.on_fault = strike
        return authenticated
