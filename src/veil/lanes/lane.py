"""The lane interface: a lane listens and dials, and both give sessions with authenticated peers.

Most lanes provide links, which carry messages without authentication. `authenticated_lane` turns links into sessions,
in the same way for every lane. A lane without connections, such as the file lane, provides sessions itself.
"""

import importlib
from asyncio import Event
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from plumbing.cli.extras import install_hint
from veil.lanes.endpoint import Endpoint
from veil.veil_errors import Unavailable

_SMOOTHING = 0.25


@dataclass(slots=True)
class Health:
    """Statistics of one session."""

    round_trip_s: float = 0.25
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
        self.round_trip_s += _SMOOTHING * (round_trip_s - self.round_trip_s)

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
    def closed(self) -> Event: ...

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
