"""A `logging` handler that spools log records to disk, for `veen recorder ship` to send.

It only appends to a spool: no network, no threads, no locks shared with other processes. Records logged before the
program is killed are on disk. If the disk or the spool is full, the program continues, and the number of lost records
is recorded with the next event.
"""

import logging
import time
from pathlib import Path

from veen.core import Unavailable
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.spool import MAX_SPOOL_BYTES, SpoolWriter

EVENT_TYPE = "python.log"
# Attributes of every LogRecord; any other was given as `extra`.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_EVENT_FIELDS = frozenset({"subject_id", "event_type"})


class RecorderHandler(logging.Handler):
    """`extra={"subject_id": …, "event_type": …}` sets those event fields; every other extra becomes payload."""

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
        self.failed = 0  # records that could not be converted to events
        self._writer = SpoolWriter(Path(spool), max_bytes=max_bytes)
        self._defaults = normalize.Defaults(origin, event_type, subject_id)

    @property
    def dropped(self) -> int:
        """Events dropped for lack of room or because of a failing disk, since the last stored one."""
        return self._writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.append([self._event(record)])
        except Unavailable:
            pass  # full or failing disk: the writer counts it as dropped
        except Exception:  # noqa: BLE001 # logging must not break the program
            self.failed += 1

    def close(self) -> None:
        self._writer.close()
        super().close()

    def _event(self, record: logging.LogRecord) -> RecordEvent:
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        payload = {
            "logger": record.name,
            "level": record.levelname,
            "message": record.getMessage(),
            "file": record.pathname,
            "line": record.lineno,
            "thread": record.threadName,
            "process": record.process,
            **{name: value for name, value in extra.items() if name not in _EVENT_FIELDS},
        }
        if record.exc_info:
            payload["exception"] = logging.Formatter().formatException(record.exc_info)
        return self._defaults.event(
            payload,
            max(int(record.created * 1_000), 0) if record.created else time.time_ns() // 1_000_000,
            subject=str(extra.get("subject_id") or ""),
            event_type=str(extra.get("event_type") or ""),
        )
