"""A handler of Python's `logging` that keeps what is logged on disk, for `veen recorder ship` to send.

It appends to a spool and does nothing else: no network, no thread, no lock that another process holds. What was logged
before the program was killed is there. Where the disk is full or the spool is, the program goes on, and how much was
lost is recorded with the next event there is room for.
"""

import logging
import time
from pathlib import Path

from veen.core import Unavailable
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.spool import MAX_SPOOL_BYTES, SpoolWriter

EVENT_TYPE = "python.log"
# What every LogRecord has; anything else on one was given as `extra`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = frozenset({"subject_id", "event_type"})


class RecorderHandler(logging.Handler):
    """Logged with `extra={"subject_id": …, "event_type": …}` an event has those; every other extra is payload."""

    def __init__(
        self,
        spool: str | Path,
        origin: str,
        *,
        subject_id: str | None = None,
        event_type: str = EVENT_TYPE,
        max_bytes: int = MAX_SPOOL_BYTES,
        level: int | str = logging.NOTSET,
    ) -> None:
        super().__init__(level)
        self.failed = 0  # records of which no event could be made
        self._writer = SpoolWriter(Path(spool), max_bytes=max_bytes)
        self._defaults = normalize.Defaults(origin, event_type, subject_id)

    @property
    def dropped(self) -> int:
        """Events that found no room, or a disk that failed, since the last that was kept."""
        return self._writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.append([self._event(record)])
        except Unavailable:
            pass  # a disk that is full or fails: the writer counts it as dropped
        except Exception:  # noqa: BLE001 - a program must not break over what it logs
            self.failed += 1

    def close(self) -> None:
        self._writer.close()
        super().close()

    def _event(self, record: logging.LogRecord) -> RecordEvent:
        extra = {name: value for name, value in vars(record).items() if name not in _USUAL}
        defaults = self._defaults
        payload = {
            "logger": record.name,
            "level": record.levelname,
            "message": record.getMessage(),
            "file": record.pathname,
            "line": record.lineno,
            "thread": record.threadName,
            "process": record.process,
            **{name: value for name, value in extra.items() if name not in _OWN},
        }
        if record.exc_info:
            payload["exception"] = logging.Formatter().formatException(record.exc_info)
        return RecordEvent(
            normalize.name(str(extra.get("subject_id") or ""), defaults.subject),
            normalize.name(str(extra.get("event_type") or ""), defaults.event_type),
            max(int(record.created * 1_000), 0) if record.created else time.time_ns() // 1_000_000,
            normalize.name(defaults.origin, defaults.origin),
            normalize.payload_of(payload),
        )
