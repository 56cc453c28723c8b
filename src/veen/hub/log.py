"""Structured logs on standard error, one JSON object a line. OBS0.2. Never a key, a token or a payload."""

import json
import sys
import time
import traceback
from typing import TextIO


class Log:
    """What happened, for machines to read."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr

    def event(self, level: str, event: str, **fields: object) -> None:
        row = {"ts": round(time.time(), 3), "level": level, "component": "hub", "event": event, **fields}
        self._out.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._out.flush()

    def started(self, hub_id: bytes, host: str, port: int, replayed: int) -> None:
        self.event("info", "started", hub_id=hub_id.hex(), listen=f"{host}:{port}", replayed=replayed)

    def stopped(self) -> None:
        self.event("info", "stopped")

    def failed(self, where: str, error: BaseException) -> None:
        trace = traceback.format_exception(error)[-1].strip()
        self.event("error", "failed", where=where, error=trace)
