"""How well a session does, from what really happened on it. A node scores its lanes by what it is told of this.

Frames that the other end took in count for the lane, frames that were lost with a link count against it. A round trip
is timed from handing a frame over to hearing that it was taken in, so it contains the queues between.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
    tell: Callable[[bool, float | None], None] | None = None

    def delivered(self, count: int, round_trip_s: float) -> None:
        self.frames_delivered += count
        if self.tell is not None:
            self.tell(True, round_trip_s)
        self.round_trip_s += _SMOOTHING * (round_trip_s - self.round_trip_s)

    def lost(self, count: int) -> None:
        """Frames whose fate is unknown: the link ended before the other end said that it took them in."""
        self.frames_lost += count
        if count and self.tell is not None:
            self.tell(False, None)
