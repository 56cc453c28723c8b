"""The WebRTC lane: a data channel between two nodes that need not be reachable from outside, made by `aiortc`.

No server is asked for addresses unless it is named: what is offered are the addresses this machine has. The channel
is reliable and unordered. What the handshake binds are the fingerprints that both descriptions name.
"""

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from veil.errors import Malformed, Unavailable, VeilError
from veil.hashing import h
from veil.lanes import bounds
from veil.lanes.endpoint import Endpoint
from veil.lanes.lane import AcceptLink, Link, library
from veil.lanes.signalling import Signalling

if TYPE_CHECKING:
    from aiortc import RTCDataChannel, RTCPeerConnection

_LABEL = "veil/1"
_FINGERPRINT = re.compile(r"^a=fingerprint:sha-256 ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})\r?$", re.MULTILINE | re.IGNORECASE)
_BUFFERED_BYTES = bounds.WINDOW_BYTES
_WHOLE_MESSAGES = 4 * bounds.WINDOW_FRAMES
# Finding a way through takes longer than a plain connection.
WEBRTC_DIAL_SECONDS = 30.0
_CLOSE_SECONDS = 2.0


class WebRtcLane:
    """Offers and answers by way of `signalling`; `stun` are servers that tell a node its address as others see it."""

    name = "webrtc"
    shares_addresses = True
    pinned = False

    def __init__(self, signalling: Signalling, announce: tuple[Endpoint, ...] = (), stun: tuple[str, ...] = ()) -> None:
        library("aiortc", self.name)
        self._signalling = signalling
        self._stun = stun
        self._accept: AcceptLink | None = None
        self._pending: set[RTCPeerConnection] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self.endpoints = announce

    async def start(self, accept: AcceptLink) -> None:
        self._accept = accept
        await self._signalling.start(self._answer)

    async def dial(self, endpoint: Endpoint, peer: bytes) -> Link:
        connection = self._connection()
        channel = connection.createDataChannel(_LABEL, ordered=False)
        try:
            async with asyncio.timeout(WEBRTC_DIAL_SECONDS):
                await connection.setLocalDescription(await connection.createOffer())
                offer = connection.localDescription.sdp
                answer = await self._signalling.ask(endpoint, peer, offer)
                await _hear(connection, answer, "answer")
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
        for waiting in self._waiting:
            waiting.cancel()
        for connection in list(self._pending):
            await connection.close()

    def _connection(self) -> "RTCPeerConnection":
        from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection

        return RTCPeerConnection(RTCConfiguration(iceServers=[RTCIceServer(urls=url) for url in self._stun]))

    async def _answer(self, offer: str) -> str:
        """Answer an offer; what comes of it is accepted once its channel is there."""
        if len(self._pending) >= bounds.MAX_STRANGERS:
            raise Unavailable("webrtc", "too many offers at a time")
        connection = self._connection()
        self._pending.add(connection)
        try:
            await _hear(connection, offer, "offer")
            await connection.setLocalDescription(await connection.createAnswer())
        except BaseException:
            self._pending.discard(connection)
            await connection.close()
            raise
        answer: str = connection.localDescription.sdp
        binding = _binding(offer, answer)

        @connection.on("datachannel")
        def opened(channel: "RTCDataChannel") -> None:
            if connection in self._pending and self._accept is not None:
                self._pending.discard(connection)
                self._accept(WebRtcLink(connection, channel, binding))

        waiting = asyncio.ensure_future(self._give_up(connection))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return answer

    async def _give_up(self, connection: "RTCPeerConnection") -> None:
        """Wait no longer for a channel than dialling takes."""
        await asyncio.sleep(WEBRTC_DIAL_SECONDS)
        if connection in self._pending:
            self._pending.discard(connection)
            await connection.close()


async def _hear(connection: "RTCPeerConnection", text: str, what: str) -> None:
    """Give the library a description. It raises anything for one that makes no sense to it: the peer's fault."""
    from aiortc import RTCSessionDescription

    if len(text) > bounds.MAX_SIGNAL_BYTES or "m=application" not in text or text.count("m=") != 1:
        raise Malformed("description", "not of one data channel")
    try:
        await connection.setRemoteDescription(RTCSessionDescription(sdp=text, type=what))
    except Exception as error:
        raise Malformed("description", str(error) or type(error).__name__) from error


def _binding(offer: str, answer: str) -> bytes:
    found = [_FINGERPRINT.findall(text) for text in (offer, answer)]
    if not all(len(set(names)) == 1 for names in found):
        raise Malformed("description", "it names no key, or several")
    return h("|".join(names[0].upper() for names in found).encode())


class WebRtcLink:
    """Messages over one data channel."""

    def __init__(self, connection: "RTCPeerConnection", channel: "RTCDataChannel", binding: bytes) -> None:
        self.binding = binding
        self.remote = "webrtc"
        self.opened = asyncio.Event()
        self._connection = connection
        self._channel = channel
        self._whole: asyncio.Queue[bytes | VeilError] = asyncio.Queue()
        self._gone: VeilError | None = None
        self._drained = asyncio.Event()
        channel.bufferedAmountLowThreshold = _BUFFERED_BYTES // 2
        if channel.readyState == "open":
            self.opened.set()
        channel.on("open", self.opened.set)
        channel.on("message", self._heard)
        channel.on("close", self._lost)
        channel.on("bufferedamountlow", self._drained.set)

    async def send(self, message: bytes) -> None:
        while self._gone is None and self._channel.bufferedAmount > _BUFFERED_BYTES:
            self._drained.clear()
            await self._drained.wait()
        if self._gone is not None or self._channel.readyState != "open":
            raise self._gone or Unavailable("link", "it is gone")
        self._channel.send(message)
        await asyncio.sleep(0)

    async def receive(self) -> bytes:
        found = await self._whole.get()
        if isinstance(found, VeilError):
            self._whole.put_nowait(found)
            raise found
        return found

    async def close(self) -> None:
        self._fail(Unavailable("link", "it is closed"))
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._connection.close()

    def _heard(self, message: object) -> None:
        if not isinstance(message, bytes) or not 0 < len(message) <= bounds.MAX_MESSAGE_BYTES:
            self._fail(Malformed("message", f"text, or more than {bounds.MAX_MESSAGE_BYTES} bytes"))
        elif self._whole.qsize() > _WHOLE_MESSAGES:
            self._fail(Malformed("message", "too many at a time"))
        elif self._gone is None:
            self._whole.put_nowait(message)

    def _lost(self) -> None:
        self._fail(Unavailable("link", "it is gone"))

    def _fail(self, error: VeilError) -> None:
        if self._gone is None:
            self._gone = error
            self._whole.put_nowait(error)
            self._drained.set()
