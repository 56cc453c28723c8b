"""Structured logs on standard error, one JSON object a line. OBS0.2. Never a key, a token or a payload.

What strangers can cause at no cost to them is bounded, so that nobody fills a disk with it: so many lines of a kind at
once, so many a second after that. How many were left out is told with the next that is not.

A line that cannot be written is lost, and nothing else is: no request may fail or wait because nobody listens. How
many found no room is told with the next that does, and `veen_log_lines_lost` counts them all.
"""

import json
import time
import traceback
from collections.abc import Callable

from veen.hub.linewriter import LineWriter

BURST_LINES = 1000
LINES_PER_S = 10
_PARTING_S = 5.0


class Log:
    """What happened, for machines to read."""

    def __init__(self, out: LineWriter, role: str = "authority", clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._unwritten = 0
        self._role = role
        self._clock = clock
        self._rooms: dict[str, _Room] = {}

    def event(self, level: str, event: str, **fields: object) -> None:
        line = self._line(level, event, fields)
        if self._unwritten:
            line = self._line("warn", "left_out", {"kind": "unwritten", "count": self._unwritten}) + line
        self._unwritten = 0 if self._out.write(line) else self._unwritten + 1

    def has_room(self, kind: str) -> bool:
        """Whether one more line of a kind that is bounded may be written. Asked once for each."""
        room = self._rooms.setdefault(kind, _Room(self._clock()))
        if not room.take(self._clock()):
            return False
        self._tell_left_out(kind, room)
        return True

    def started(self, hub_id: bytes, host: str, port: int, replayed: int) -> None:
        self.event("info", "started", hub_id=hub_id.hex(), listen=f"{host}:{port}", replayed=replayed)

    def stopped(self) -> None:
        for kind, room in self._rooms.items():
            self._tell_left_out(kind, room)
        self.event("info", "stopped")
        self._out.close(_PARTING_S)

    def failed(self, where: str, error: BaseException) -> None:
        """A mistake of ours that cost one request."""
        if self.has_room("failed"):
            self.event("error", "failed", where=where, error=_words(error))

    def equivocated(self, label: bytes, stream_seq: int, policy: str) -> None:
        """Someone has shown that this hub contradicted itself."""
        self.event("error", "equivocation", label=label.hex(), stream_seq=stream_seq, policy=policy)

    def broke(self, error: BaseException) -> None:
        """What ends the hub."""
        self.event("error", "broken", error=_words(error))
        self._out.flush(_PARTING_S)

    def _line(self, level: str, event: str, fields: dict[str, object]) -> str:
        row = {"ts": round(time.time(), 3), "level": level, "component": "hub", "role": self._role, "event": event}
        return json.dumps(row | fields, separators=(",", ":")) + "\n"

    def _tell_left_out(self, kind: str, room: "_Room") -> None:
        if room.left_out:
            self.event("warn", "left_out", kind=kind, count=room.left_out)
            room.left_out = 0


class _Room:
    """How many lines of one kind may still be written."""

    __slots__ = ("_lines", "_since", "left_out")

    def __init__(self, now: float) -> None:
        self._lines: float = BURST_LINES
        self._since = now
        self.left_out = 0

    def take(self, now: float) -> bool:
        self._lines = min(BURST_LINES, self._lines + (now - self._since) * LINES_PER_S)
        self._since = now
        if self._lines < 1:
            self.left_out += 1
            return False
        self._lines -= 1
        return True


def _words(error: BaseException) -> str:
    return traceback.format_exception(error)[-1].strip()
