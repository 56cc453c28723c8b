"""Lines on their way out, on a thread of their own: whoever writes one never waits for whoever reads it.

A pipe that is full, a terminal that is held and a disk that hangs keep this thread and nobody else. Lines wait in order
up to a bound; what finds no room, or cannot be written, is lost and counted.
"""

import os
import select
import sys
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
