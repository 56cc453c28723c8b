"""The WebRTC lane: a data channel with `aiortc` between nodes that need not be reachable from outside.

A STUN server is used only if configured; otherwise a node offers its local addresses. The channel is reliable and
unordered. The handshake is bound to the fingerprints in both session descriptions.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plumbing.background import Tasks
from plumbing.durable import PRIVATE_FOLDER, replace_file
from veil import veil_limits
from veil.hashing import h
from veil.lanes.lane import AcceptLink, Endpoint, LaneLink, ReceivedMessages, library
from veil.veil_errors import Malformed, Unavailable, VeilError

if TYPE_CHECKING:
    from aiortc import RTCDataChannel, RTCPeerConnection, RTCSessionDescription


_OFFER, _ANSWER = ".offer", ".answer"
_READABLE = 0o644

Answer = Callable[[str], Awaitable[str]]
Carry = Callable[[bytes, bytes], bool]


class Signalling(Protocol):
    """Exchanges session descriptions."""

    async def start(self, answer: Answer) -> None: ...

    async def exchange(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        """Send an offer and return the answer. The caller sets the timeout."""
        ...

    async def stop(self) -> None: ...


class CarriedSignalling:
    """Descriptions over an existing session. `carry` sends bytes to a peer and returns whether it could."""

    def __init__(self, carry: Carry) -> None:
        self._carry = carry
        self._answer: Answer | None = None
        self._pending_offers: dict[bytes, asyncio.Future[str]] = {}
        self._tasks = Tasks()

    async def start(self, answer: Answer) -> None:
        self._answer = answer

    async def exchange(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        name = os.urandom(16)
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending_offers[name] = waiting
        try:
            if not self._carry(peer, b"O" + name + offer.encode()):
                raise Unavailable(str(endpoint), "no session on another lane to carry the offer")
            return await waiting
        finally:
            del self._pending_offers[name]

    def arrived(self, peer: bytes, data: bytes) -> None:
        """Process SIGNAL data of a peer."""
        kind, name, text = data[:1], data[1:17], data[17:].decode(errors="replace")
        if kind == b"A" and name in self._pending_offers and not self._pending_offers[name].done():
            self._pending_offers[name].set_result(text)
        elif kind == b"O" and len(name) == 16 and len(self._tasks) < veil_limits.MAX_UNAUTHENTICATED:
            self._tasks.start(self._reply(peer, name, text))

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _reply(self, peer: bytes, name: bytes, offer: str) -> None:
        if self._answer is not None:
            with suppress(VeilError, OSError, ValueError):
                self._carry(peer, b"A" + name + (await self._answer(offer)).encode())


class FolderSignalling:
    """Descriptions in files: `FOLDER/RECIPIENT/NAME.offer`, and the answer next to it.

    For an endpoint without a folder it uses `carried`, that is, an existing session.
    """

    def __init__(self, own_key: bytes, folder: Path | None = None, carried: CarriedSignalling | None = None) -> None:
        self._own = own_key.hex()
        self._folder = folder
        self._carried = carried
        self._answered: set[str] = set()
        self._scanner: asyncio.Task[None] | None = None

    async def start(self, answer: Answer) -> None:
        if self._carried is not None:
            await self._carried.start(answer)
        if self._folder is not None:
            inbox = self._folder / self._own
            inbox.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._scanner = asyncio.ensure_future(self._scan_forever(inbox, answer))

    async def exchange(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        if self._carried is not None and not endpoint.path:
            return await self._carried.exchange(endpoint, peer, offer)
        folder = Path(endpoint.path) / peer.hex()
        name = os.urandom(16).hex()
        offer_path, answer_path = folder / (name + _OFFER), folder / (name + _ANSWER)
        try:
            folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            replace_file(offer_path, offer.encode(), _READABLE)
            try:
                while not answer_path.exists():
                    await asyncio.sleep(veil_limits.SCAN_SECONDS)
                return _read(answer_path)
            finally:
                for path in (offer_path, answer_path):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(str(endpoint), error.strerror or str(error)) from None

    async def stop(self) -> None:
        if self._carried is not None:
            await self._carried.stop()
        if self._scanner is not None:
            self._scanner.cancel()
            await asyncio.gather(self._scanner, return_exceptions=True)

    async def _scan_forever(self, inbox: Path, answer: Answer) -> None:
        while True:
            with suppress(OSError):
                for path in sorted(inbox.glob(f"*{_OFFER}"))[: veil_limits.MAX_UNAUTHENTICATED]:
                    await self._reply(path, answer)
            await asyncio.sleep(veil_limits.SCAN_SECONDS)

    async def _reply(self, path: Path, answer: Answer) -> None:
        if path.name in self._answered:
            return
        if len(self._answered) >= veil_limits.MAX_BANS:
            self._answered.clear()
        self._answered.add(path.name)
        with suppress(VeilError, OSError, ValueError):
            answered_text = await answer(_read(path))
            replace_file(path.with_suffix(_ANSWER), answered_text.encode(), _READABLE)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(veil_limits.MAX_SIGNAL_BYTES + 1)
    if len(data) > veil_limits.MAX_SIGNAL_BYTES:
        raise ValueError(f"a description of more than {veil_limits.MAX_SIGNAL_BYTES} bytes")
    return data.decode(errors="replace")


_LABEL = "veil/1"
_FINGERPRINT = re.compile(r"^a=fingerprint:sha-256 ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})\r?$", re.MULTILINE | re.IGNORECASE)
_BUFFERED_BYTES = veil_limits.WINDOW_BYTES
# NAT traversal takes longer than a direct connection.
WEBRTC_DIAL_SECONDS = 30.0
_CLOSE_SECONDS = 2.0


class WebRtcLane:
    """Exchanges descriptions over `signalling`. `stun` are servers that report the public address of a node."""

    name = "webrtc"
    shares_addresses = True
    pinned = False

    def __init__(self, signalling: Signalling, announce: tuple[Endpoint, ...] = (), stun: tuple[str, ...] = ()) -> None:
        library("aiortc", self.name)
        self._signalling = signalling
        self._stun = stun
        self._accept: AcceptLink | None = None
        self._pending: set[RTCPeerConnection] = set()
        self._waiting = Tasks()
        self.endpoints = announce

    async def start(self, accept: AcceptLink) -> None:
        self._accept = accept
        await self._signalling.start(self._answer)

    async def dial(self, endpoint: Endpoint, peer: bytes) -> LaneLink:
        connection = self._connection()
        channel = connection.createDataChannel(_LABEL, ordered=False)
        try:
            async with asyncio.timeout(WEBRTC_DIAL_SECONDS):
                await connection.setLocalDescription(await connection.createOffer())
                offer = connection.localDescription.sdp
                answer = await self._signalling.exchange(endpoint, peer, offer)
                await _apply_description(connection, answer, "answer")
                link = WebRtcLink(connection, channel, _binding(offer, answer))
                await link.opened.wait()
                return link
        except (TimeoutError, OSError) as error:
            await connection.close()
            raise Unavailable(str(endpoint), str(error) or "no answer") from None
        except BaseException:
            await connection.close()
            raise

    async def stop(self) -> None:
        await self._signalling.stop()
        await self._waiting.stop()
        for connection in list(self._pending):
            await connection.close()

    def _connection(self) -> "RTCPeerConnection":
        from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection

        return RTCPeerConnection(RTCConfiguration(iceServers=[RTCIceServer(urls=url) for url in self._stun]))

    async def _answer(self, offer: str) -> str:
        """Answer an offer. The link is accepted when its data channel opens."""
        if len(self._pending) >= veil_limits.MAX_UNAUTHENTICATED:
            raise Unavailable("webrtc", "too many pending offers")
        connection = self._connection()
        self._pending.add(connection)
        try:
            description = await _answer_to(connection, offer)
            with _fault_of_peer():
                await connection.setLocalDescription(description)
            answer: str = connection.localDescription.sdp
            binding = _binding(offer, answer)
        except BaseException:
            self._pending.discard(connection)
            await connection.close()
            raise

        @connection.on("datachannel")
        def opened(channel: "RTCDataChannel") -> None:
            if connection in self._pending and self._accept is not None:
                self._pending.discard(connection)
                self._accept(WebRtcLink(connection, channel, binding))

        self._waiting.start(self._expire(connection))
        return answer

    async def _expire(self, connection: "RTCPeerConnection") -> None:
        """Close a connection whose data channel did not open in time."""
        await asyncio.sleep(WEBRTC_DIAL_SECONDS)
        if connection in self._pending:
            self._pending.discard(connection)
            await connection.close()


async def _answer_to(connection: "RTCPeerConnection", offer: str) -> "RTCSessionDescription":
    await _apply_description(connection, offer, "offer")
    with _fault_of_peer():
        return await connection.createAnswer()


async def _apply_description(connection: "RTCPeerConnection", text: str, what: str) -> None:
    from aiortc import RTCSessionDescription

    if len(text) > veil_limits.MAX_SIGNAL_BYTES or not _is_of_one_channel(text):
        raise Malformed("description", "not a description of exactly one data channel")
    with _fault_of_peer():
        await connection.setRemoteDescription(RTCSessionDescription(sdp=text, type=what))


def _is_of_one_channel(text: str) -> bool:
    """Whether a description has one data channel, and no bundle with others: aiortc cannot close such a connection."""
    lines = text.splitlines()
    media, mids, groups = ([line for line in lines if line.startswith(key)] for key in ("m=", "a=mid:", "a=group:"))
    bundles = [f"a=group:BUNDLE {mid.removeprefix('a=mid:')}" for mid in mids]
    return len(media) == 1 and media[0].startswith("m=application ") and groups in ([], bundles)


@contextmanager
def _fault_of_peer() -> Iterator[None]:
    """aiortc raises arbitrary exceptions for an invalid description, some only when it answers it."""
    try:
        yield
    except OSError:
        raise  # our own: no address, or no room for another socket
    except Exception as error:
        raise Malformed("description", str(error) or type(error).__name__) from error


def _binding(offer: str, answer: str) -> bytes:
    found = [_FINGERPRINT.findall(text) for text in (offer, answer)]
    if not all(len(set(names)) == 1 for names in found):
        raise Malformed("description", "it has no fingerprint, or several")
    return h("|".join(names[0].upper() for names in found).encode())


class WebRtcLink(ReceivedMessages):
    """Messages over one data channel."""

    def __init__(self, connection: "RTCPeerConnection", channel: "RTCDataChannel", binding: bytes) -> None:
        super().__init__()
        self.binding = binding
        self.remote = "webrtc"
        self.opened = asyncio.Event()
        self._connection = connection
        self._channel = channel
        self._drained = asyncio.Event()
        channel.bufferedAmountLowThreshold = _BUFFERED_BYTES // 2
        if channel.readyState == "open":
            self.opened.set()
        channel.on("open", self.opened.set)
        channel.on("message", self._on_message)
        channel.on("close", self._on_close)
        channel.on("bufferedamountlow", self._drained.set)

    async def send(self, message: bytes) -> None:
        while self.gone is None and self._channel.bufferedAmount > _BUFFERED_BYTES:
            self._drained.clear()
            await self._drained.wait()
        if self.gone is not None or self._channel.readyState != "open":
            raise self.gone or Unavailable("link", "connection lost")
        self._channel.send(message)
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.fail(Unavailable("link", "closed"))
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._connection.close()

    def _on_message(self, message: object) -> None:
        if not isinstance(message, bytes) or not 0 < len(message) <= veil_limits.MAX_MESSAGE_BYTES:
            self.fail(Malformed("message", f"text, or more than {veil_limits.MAX_MESSAGE_BYTES} bytes"))
        elif self.is_full():
            self.fail(Malformed("message", "too many at once"))
        elif self.gone is None:
            self.arrived(message)

    def _on_close(self) -> None:
        self.fail(Unavailable("link", "connection lost"))

    def fail(self, error: VeilError) -> None:
        super().fail(error)
        self._drained.set()
