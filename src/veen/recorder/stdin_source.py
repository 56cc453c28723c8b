"""JSON lines from a pipe. Each line is spooled to disk before the next is read, since a pipe cannot be read again."""

import time
from typing import BinaryIO

from veen.core import Malformed
from veen.overlays.record import RecordEvent
from veen.recorder import json_lines, normalize
from veen.recorder.json_lines import MAX_LINE_BYTES
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter

_FULL_PAUSE_S = 0.2
_MAX_RAW_BYTES = 1_000
_MS = 1_000_000


def spool_lines(lines: BinaryIO, writer: SpoolWriter, defaults: Defaults) -> int:
    """Read to the end and return the number of lines. While the spool is full, the writer of the pipe is blocked.

    A line that is not a JSON object is recorded as raw text, with the reason.
    """
    count, skipping = 0, False
    while line := lines.readline(MAX_LINE_BYTES + 2):
        complete = line.endswith(b"\n")
        if not skipping and line.strip():
            event = _event(line.rstrip(b"\r\n"), defaults)
            while not writer.append([event], again=True):
                time.sleep(_FULL_PAUSE_S)
            count += 1
        skipping = not complete  # skip the rest of an overlong line
    return count


def _event(line: bytes, defaults: Defaults) -> RecordEvent:
    now_ms = time.time_ns() // _MS
    try:
        if len(line) > MAX_LINE_BYTES:
            raise Malformed("line", f"it is longer than {MAX_LINE_BYTES} bytes")
        return json_lines.event_of(line, defaults, now_ms)
    except Malformed as error:
        payload = {"malformed": str(error), **normalize.raw_input(normalize.beginning(line, _MAX_RAW_BYTES))}
        return RecordEvent(
            normalize.name(defaults.subject, defaults.origin),
            defaults.event_type,
            now_ms,
            defaults.origin,
            normalize.payload_of(payload),
        )
