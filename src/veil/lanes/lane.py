"""What every lane is: it listens, it dials, and what comes of both is a session with a node that proved who it is.

Most lanes make links, which carry messages whole and know nothing of who is at the other end; `secured` makes
sessions of those, the same way on every lane. A lane that needs no connection, such as files, makes sessions itself.
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
    """What is known of one session."""

    round_trip_s: float = 0.25
    frames_sent: int = 0
    frames_delivered: int = 0
    frames_lost: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    strikes: int = 0
    # Told of each outcome: whether frames arrived, and how long that took.
    on_outcome: Callable[[bool, float | None], None] | None = None

    def delivered(self, count: int, round_trip_s: float) -> None:
        self.frames_delivered += count
        if self.on_outcome is not None:
            self.on_outcome(True, round_trip_s)
        self.round_trip_s += _SMOOTHING * (round_trip_s - self.round_trip_s)

    def lost(self, count: int) -> None:
        """Frames whose fate is unknown: the link ended before the other end said that it took them in."""
        self.frames_lost += count
        if count and self.on_outcome is not None:
            self.on_outcome(False, None)


class LaneLink(Protocol):
    """One connection. Messages arrive whole or not at all; their order is the lane's own affair."""

    @property
    def binding(self) -> bytes:
        """What both ends know of this channel and nobody between them can make alike."""
        ...

    @property
    def remote(self) -> str:
        """Where the other end is, for people."""
        ...

    async def send(self, message: bytes) -> None:
        """Hand a message to the network, waiting while it takes none. Raise `Unavailable` where the link is gone."""
        ...

    async def receive(self) -> bytes:
        """The next message. Raise `Unavailable` at the end, `Malformed` where no message may be as long."""
        ...

    async def close(self) -> None: ...


# At most so many bytes of frames to send now: empty where there is nothing.
Pull = Callable[[int], tuple[bytes, ...]]
Incoming = Callable[[bytes], None]


class Session(Protocol):
    """A way to one peer, for as long as it lasts."""

    @property
    def peer(self) -> bytes:
        """The public key that the other end proved to have."""
        ...

    @property
    def remote(self) -> str: ...

    @property
    def health(self) -> Health: ...

    @property
    def closed(self) -> Event: ...

    async def run(self, pull: Pull, incoming: Incoming) -> None:
        """Carry frames until either end is done. Raise `VeilError` with what ended it, but for a good-bye."""
        ...

    def wake(self) -> None:
        """There is something to pull."""
        ...

    async def close(self) -> None: ...


Accept = Callable[[Session], None]
AcceptLink = Callable[[LaneLink], None]


class LinkLane(Protocol):
    """A lane as those who write one write it: links, and nothing of identities."""

    @property
    def name(self) -> str: ...

    @property
    def shares_addresses(self) -> bool:
        """Whether peers that have nothing to do with each other arrive from one address, as from an onion service."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether the binding of its links is the pin of a certificate, which contacts name."""
        ...

    async def start(self, accept: AcceptLink) -> None:
        """Begin to listen, where this lane does; each link that others open is handed to `accept`."""
        ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...

    async def dial(self, endpoint: Endpoint, peer: bytes) -> LaneLink:
        """Open a link, to the node with this key where the lane has to say whom it calls."""
        ...

    async def stop(self) -> None: ...


class Lane(Protocol):
    """One way to reach other nodes."""

    @property
    def name(self) -> str: ...

    async def start(self, accept: Accept) -> None: ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where others reach this lane: none where it does not listen."""
        ...

    async def dial(self, endpoint: Endpoint, peer: bytes, pin: bytes | None) -> Session:
        """Reach the node with this key. Raise `Unavailable`, or `Unverified` where another one answers."""
        ...

    async def stop(self) -> None: ...


def library(name: str, lane: str) -> ModuleType:
    """The library a lane is made with. Raise `Unavailable` with what to do where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing = Unavailable(f"the {lane} lane", f"it needs {name.partition('.')[0]}, which is not installed")
        missing.add_note(install_hint("veil"))
        raise missing from None
