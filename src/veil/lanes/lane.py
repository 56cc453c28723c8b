"""The lane interface: a lane listens and dials, and both give sessions with authenticated peers.

Most lanes provide links, which carry messages without authentication. `AuthenticatedLane` turns links into sessions,
in the same way for every lane. A lane without connections, such as the file lane, provides sessions itself.
"""

import asyncio
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, Self
from urllib.parse import urlsplit

from plumbing.cli import install_hint
from veil import veil_limits
from veil.veil_errors import Malformed, Unavailable, VeilError

NETWORK_SCHEMES = ("quic", "wss", "tls", "tor")
FOLDER_SCHEMES = ("file", "webrtc")
SCHEMES = NETWORK_SCHEMES + FOLDER_SCHEMES
MAX_ENDPOINT_CHARACTERS = 512
_PATH_SCHEMES = ("wss",)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a node on a lane, as text `quic://192.0.2.1:4000` or `file:///media/stick`.

    | scheme | lane | the rest |
    |---|---|---|
    | `quic` | QUIC | host:port |
    | `wss` | WebSocket over TLS | host:port/path |
    | `tls` | TCP with TLS | host:port |
    | `tor` | TLS through a SOCKS5 proxy | host:port, usually an onion address |
    | `webrtc` | WebRTC | a folder for the exchange of session descriptions; empty if another lane carries them |
    | `file` | files | a folder |
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an endpoint. Raise `Malformed` if the text is invalid."""
        if len(text) > MAX_ENDPOINT_CHARACTERS or not text.isprintable() or " " in text:
            raise Malformed("endpoint", f"longer than {MAX_ENDPOINT_CHARACTERS} characters, or not printable")
        try:
            parts = urlsplit(text)
            port = parts.port or 0
        except ValueError as error:
            raise Malformed("endpoint", f"{text!r}: {error}") from None
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise Malformed("endpoint", f"{text!r} has a query, fragment or user name")
        if parts.scheme in NETWORK_SCHEMES:
            return cls._network(text, parts.scheme, parts.hostname or "", port, parts.path)
        if parts.scheme in FOLDER_SCHEMES and not parts.netloc and parts.path.startswith("/"):
            return cls(parts.scheme, path=parts.path)
        if text == "webrtc://":
            return cls("webrtc")
        raise Malformed("endpoint", f"{text!r} is not SCHEME://HOST:PORT or file:///FOLDER ({', '.join(SCHEMES)})")

    @classmethod
    def _network(cls, text: str, scheme: str, host: str, port: int, path: str) -> Self:
        if not host:
            raise Malformed("endpoint", f"{text!r} has no host")
        if path not in ("", "/") and scheme not in _PATH_SCHEMES:
            raise Malformed("endpoint", f"{text!r}: {scheme} endpoints have no path")
        return cls(scheme, host, port, "" if path == "/" else path)

    def __str__(self) -> str:
        if self.scheme in FOLDER_SCHEMES:
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def at(self, port: int) -> "Endpoint":
        """This endpoint with the port that the system assigned."""
        return Endpoint(self.scheme, self.host, port, self.path)


@dataclass(slots=True)
class Health:
    """Statistics of one session."""

    frames_sent: int = 0
    frames_delivered: int = 0
    frames_lost: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    strikes: int = 0
    # Called with each outcome: whether frames arrived, and the round trip time.
    on_outcome: Callable[[bool, float | None], None] | None = None

    def delivered(self, count: int, round_trip_s: float) -> None:
        self.frames_delivered += count
        if self.on_outcome is not None:
            self.on_outcome(True, round_trip_s)

    def lost(self, count: int) -> None:
        """Frames without confirmation when the link ended."""
        self.frames_lost += count
        if count and self.on_outcome is not None:
            self.on_outcome(False, None)


class LaneLink(Protocol):
    """One connection. Messages are delivered completely or not at all, in any order."""

    @property
    def binding(self) -> bytes:
        """A value that both ends know and that differs for a man in the middle, such as the certificate pin."""
        ...

    @property
    def remote(self) -> str:
        """The remote address, for display."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message, with backpressure. Raise `Unavailable` if the link is closed."""
        ...

    async def receive(self) -> bytes:
        """Receive a message. Raise `Unavailable` at the end and `Malformed` if it is too long."""
        ...

    async def close(self) -> None: ...


class ReceivedMessages:
    """Complete messages of a link that wait for the reader, and the error that ended the link."""

    def __init__(self) -> None:
        self.gone: VeilError | None = None
        self._waiting: asyncio.Queue[bytes | VeilError] = asyncio.Queue()

    def is_full(self) -> bool:
        return self._waiting.qsize() > 4 * veil_limits.WINDOW_FRAMES

    def arrived(self, message: bytes) -> None:
        self._waiting.put_nowait(message)

    def fail(self, error: VeilError) -> None:
        """End the link. The reader gets the error after the messages before it, and again in later calls."""
        if self.gone is None:
            self.gone = error
            self._waiting.put_nowait(error)

    async def receive(self) -> bytes:
        found = await self._waiting.get()
        if isinstance(found, VeilError):
            self._waiting.put_nowait(found)
            raise found
        return found


# Returns frames to send now, up to this many bytes in total; empty if there are none.
Pull = Callable[[int], tuple[bytes, ...]]
Incoming = Callable[[bytes], None]


class Session(Protocol):
    """An authenticated connection to one peer."""

    @property
    def peer(self) -> bytes:
        """The authenticated public key of the peer."""
        ...

    @property
    def remote(self) -> str: ...

    @property
    def health(self) -> Health: ...

    @property
    def closed(self) -> asyncio.Event: ...

    async def run(self, pull: Pull, incoming: Incoming) -> None:
        """Exchange frames until either end closes. Raise `VeilError` unless the peer closed with BYE."""
        ...

    def wake(self) -> None:
        """Frames are ready to pull."""
        ...

    async def close(self) -> None: ...


Accept = Callable[[Session], None]
AcceptLink = Callable[[LaneLink], None]


class LinkLane(Protocol):
    """A lane of links, without authentication. This is what a new transport implements."""

    @property
    def name(self) -> str: ...

    @property
    def shares_addresses(self) -> bool:
        """Whether unrelated peers share a remote address, as behind an onion service. If so, no address is banned."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether the binding of a link is a certificate pin, which a contact names."""
        ...

    async def start(self, accept: AcceptLink) -> None:
        """Start to listen, if configured. Incoming links are passed to `accept`."""
        ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...

    async def dial(self, endpoint: Endpoint, peer: bytes) -> LaneLink:
        """Open a link. Some lanes need the key of the peer."""
        ...

    async def stop(self) -> None: ...


class Lane(Protocol):
    """A lane of authenticated sessions."""

    @property
    def name(self) -> str: ...

    async def start(self, accept: Accept) -> None: ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of this lane for others; empty if it does not listen."""
        ...

    async def dial(self, endpoint: Endpoint, peer: bytes, pin: bytes | None) -> Session:
        """Connect to the node with this key. Raise `Unverified` if another node answers."""
        ...

    async def stop(self) -> None: ...


def library(name: str, lane: str) -> ModuleType:
    """Import the library of a lane. Raise `Unavailable` with an install hint if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing = Unavailable(f"the {lane} lane", f"{name.partition('.')[0]} is not installed")
        missing.add_note(install_hint("veil"))
        raise missing from None
