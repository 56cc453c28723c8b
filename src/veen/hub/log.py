"""Structured logs on standard error, one JSON object a line. OBS0.2. Never a key, a token or a payload.

What strangers can cause at no cost to them is bounded, so that nobody fills a disk with it: so many lines of a kind at
once, so many a second after that. How many were left out is told with the next that is not.

A line that cannot be written is lost, and nothing else is: no request may fail or wait because nobody listens. How
many found no room is told with the next that does, and `veen_log_lines_lost` counts them all.
"""

import json
import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from threading import Condition, Thread

WAITING_BYTES = 4 << 20


class LineWriter:
    """Writes to a file descriptor, which it does not own. None: nobody listens, and every line is lost."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._changed = Condition()
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._thread: Thread | None = None
        self._closed = False
        self.lost = {"no_room": 0, "not_written": 0}

    def write(self, line: str) -> bool:
        """From any thread. False: it is lost."""
        data = line.encode()
        with self._changed:
            if self._fd is None or self._closed or self._bytes + len(data) > WAITING_BYTES:
                self.lost["no_room"] += 1
                return False
            self._waiting.append(data)
            self._bytes += len(data)
            if self._thread is None:
                # A daemon: a reader that never reads does not keep the process from its end.
                self._thread = Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def flush(self, seconds: float) -> bool:
        """Wait until all that was taken is written or lost, but no longer than this. False: some still waits."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def close(self, seconds: float) -> None:
        """Write what waits, as far as there is time, and nothing after it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread:
            thread.join(seconds)

    def _run(self) -> None:
        while lines := self._take():
            data = b"".join(lines)
            written = self._write_out(data)
            with self._changed:
                if not written:
                    self.lost["not_written"] += len(lines)
                self._bytes -= len(data)
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        """All that waits. None does once this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            lines, self._waiting = self._waiting, []
            return lines

    def _write_out(self, data: bytes) -> bool:
        assert self._fd is not None
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # whoever shares it made it so
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError:
                return False
        return True


def standard_error() -> LineWriter:
    """Nobody listens where it was closed or is no file: its number may be another file's by now."""
    try:
        return LineWriter(sys.stderr.fileno() if sys.stderr else None)
    except (OSError, ValueError):
        return LineWriter(None)


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
