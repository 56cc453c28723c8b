"""JSON lines from a pipe: each is on disk before the next is read. A pipe remembers nothing, so the spool does."""

import time
from typing import BinaryIO

from veen.core import Malformed
from veen.overlays.record import RecordEvent
from veen.recorder import json_lines, normalize
from veen.recorder.json_lines import MAX_LINE_BYTES
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter

_FULL_PAUSE_S = 0.2
_SHOWN = 1_000
_MS = 1_000_000


def take_in(lines: BinaryIO, writer: SpoolWriter, defaults: Defaults) -> int:
    """Read to the end; how many lines there were. Where the spool is full the pipe waits, and so does who writes to it.

    A line that is no JSON object is recorded as it came, and says why it is not.
    """
    count, passing = 0, False
    while line := lines.readline(MAX_LINE_BYTES + 2):
        whole = line.endswith(b"\n")
        if not passing and line.strip():
            event = _event(line.rstrip(b"\r\n"), defaults)
            while not writer.append([event], again=True):
                time.sleep(_FULL_PAUSE_S)
            count += 1
        passing = not whole  # the rest of a line that was too long is part of it
    return count


def _event(line: bytes, defaults: Defaults) -> RecordEvent:
    now_ms = time.time_ns() // _MS
    try:
        if len(line) > MAX_LINE_BYTES:
            raise Malformed("line", f"longer than {MAX_LINE_BYTES} bytes")
        return json_lines.event_of(line, defaults, now_ms)
    except Malformed as error:
        payload = {"malformed": str(error), **normalize.as_it_came(normalize.beginning(line, _SHOWN))}
        return RecordEvent(
            normalize.name(defaults.subject, defaults.origin),
            defaults.event_type,
            now_ms,
            defaults.origin,
            normalize.payload_of(payload),
        )
