"""Structured logs on standard error, one JSON object a line. OBS0.2. Never a key, a token or a payload.

Lines that strangers can cause for free are rate-limited per kind (a burst, then a rate), so that they cannot fill a
disk. The next line of the kind reports how many were left out.

A line that cannot be written is dropped: a log without reader never delays or fails a request. The next line that is
written reports how many were dropped, and `veen_log_lines_lost` counts all of them.
"""

import json
import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from threading import Condition, Thread

MAX_QUEUED_BYTES = 4 << 20


class LineWriter:
    """Writes to a file descriptor that it does not own. With None every line is dropped."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._changed = Condition()
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._thread: Thread | None = None
        self._closed = False
        self.lost = {"no_room": 0, "not_written": 0}

    def write(self, line: str) -> bool:
        """Thread-safe. Returns False if the line was dropped."""
        data = line.encode()
        with self._changed:
            if self._fd is None or self._closed or self._bytes + len(data) > MAX_QUEUED_BYTES:
                self.lost["no_room"] += 1
                return False
            self._waiting.append(data)
            self._bytes += len(data)
            if self._thread is None:
                # A daemon thread: a reader that never reads must not keep the process from exiting.
                self._thread = Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def flush(self, seconds: float) -> bool:
        """Wait until all accepted lines are written or dropped. Returns False after `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def close(self, seconds: float) -> None:
        """Write queued lines within `seconds`, and accept no more."""
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
        """All queued lines; empty once closed."""
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
            except BlockingIOError:  # another process set the shared descriptor to non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError:
                return False
        return True


def standard_error() -> LineWriter:
    """A closed or replaced standard error gets a writer that drops lines: its number may belong to another file."""
    try:
        return LineWriter(sys.stderr.fileno() if sys.stderr else None)
    except (OSError, ValueError):
        return LineWriter(None)


BURST_LINES = 1000
LINES_PER_S = 10
_CLOSE_TIMEOUT_S = 5.0


class JsonLog:
    """Structured events of one component, as JSON lines."""

    def __init__(self, out: LineWriter, component: str, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._unwritten = 0
        self._component = component
        self._role = role
        self._clock = clock
        self._limits: dict[str, _LineLimit] = {}

    def event(self, level: str, event: str, **fields: object) -> None:
        line = self._line(level, event, fields)
        if self._unwritten:
            line = self._line("warn", "left_out", {"kind": "unwritten", "count": self._unwritten}) + line
        self._unwritten = 0 if self._out.write(line) else self._unwritten + 1

    def may_log(self, kind: str) -> bool:
        """Whether a rate-limited line of this kind may be written. Call it once per line."""
        limit = self._limits.setdefault(kind, _LineLimit(self._clock()))
        if not limit.take(self._clock()):
            return False
        self._report_left_out(kind, limit)
        return True

    def stopped(self) -> None:
        for kind, limit in self._limits.items():
            self._report_left_out(kind, limit)
        self.event("info", "stopped")
        self._out.close(_CLOSE_TIMEOUT_S)

    def failed(self, where: str, error: BaseException) -> None:
        """Log a bug that cost one request."""
        if self.may_log("failed"):
            self.event("error", "failed", where=where, error=_text(error))

    def fatal(self, error: BaseException) -> None:
        """Log the error that ends the program."""
        self.event("error", "broken", error=_text(error))
        self._out.flush(_CLOSE_TIMEOUT_S)

    def _line(self, level: str, event: str, fields: dict[str, object]) -> str:
        row = {
            "ts": round(time.time(), 3),
            "level": level,
            "component": self._component,
            "role": self._role,
            "event": event,
        }
        return json.dumps(row | fields, separators=(",", ":")) + "\n"

    def _report_left_out(self, kind: str, limit: "_LineLimit") -> None:
        if limit.left_out:
            self.event("warn", "left_out", kind=kind, count=limit.left_out)
            limit.left_out = 0


class _LineLimit:
    """The rate limit of one kind of line."""

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


def _text(error: BaseException) -> str:
    return traceback.format_exception(error)[-1].strip()
