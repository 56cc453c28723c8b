"""Set-aside events as a feed: sent again with their original source and position, once they can be recorded.

Inputs append to `refused.jsonl`. While events are sent again, that file is named `retrying.jsonl`.
"""

import os
from pathlib import Path

from veen.client.local_files import DISK
from veen.core import Malformed, canonical_json
from veen.core.canonical_json import Plain
from veen.core.hashing import U64_MAX
from veen.overlays.record import RecordEvent
from veen.recorder.feed import FeedItem
from veen.recorder.json_lines import JsonLines
from veen.recorder.normalize import Defaults
from veen.recorder.spool import MAX_BATCH_BYTES

REFUSED, RETRYING = "refused.jsonl", "retrying.jsonl"
_STATE = "retrying.place"
_INVALID = "it is not a line of a set-aside file"
_MAX_LINE_BYTES = 8 * MAX_BATCH_BYTES  # an event as one JSON line with every character escaped
_UNUSED_DEFAULTS = Defaults("recorder", "recorder.refused")  # unused: every line has its own values


class RetryFeed:
    """One pass over the set-aside events. An interrupted pass is finished first."""

    def __init__(self, folder: Path) -> None:
        """Call only while no other process sends for this client: an input might be writing to the file."""
        self._file, self._state = folder / RETRYING, folder / _STATE
        if not self._file.exists() and (folder / REFUSED).exists():
            self._state.unlink(missing_ok=True)  # it belongs to a removed file that may look the same
            os.replace(folder / REFUSED, self._file)
            DISK.sync_folder(folder)
        self.feed = JsonLines(
            self._file, self._state, _UNUSED_DEFAULTS, follow=False, read=item_of, max_line_bytes=_MAX_LINE_BYTES
        )

    def finish(self) -> None:
        """Remove the file: every event was sent or set aside again."""
        self._file.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def item_of(source: str, position: int, line: bytes, defaults: Defaults) -> FeedItem:
    """The event of a line, with its original place. An invalid line becomes a flaw at its place in this file."""
    try:
        return _item(canonical_json.parse(line, "line", exact=True))
    except (Malformed, ValueError) as error:
        return FeedItem(source, position, None, str(error), line)


def _item(found: Plain) -> FeedItem:
    if isinstance(found, dict):
        match found:
            case {"source": str() as at, "position": int() as number, "reason": str() as reason}:
                raw = _raw(found)
                item = FeedItem(at, number, _event(found)) if raw is None else FeedItem(at, number, None, reason, raw)
                if 0 <= number <= U64_MAX:
                    return item
    raise Malformed("line", _INVALID)


def _raw(found: dict[str, Plain]) -> bytes | None:
    """The input that no event could be made of. Sending it again cannot change that."""
    match found:
        case {"raw": str() as text}:
            return text.encode()
        case {"raw_hex": str() as text}:
            return bytes.fromhex(text)
    return None


def _event(found: dict[str, Plain]) -> RecordEvent:
    match found:
        case {
            "subject_id": str() as subject,
            "event_type": str() as event_type,
            "event_time": int() as event_time,
            "origin": str() as origin,
            "content": str() as content,
        }:
            event = RecordEvent(subject, event_type, event_time, origin, content)
            event.encode()  # raises `ValueError` if it is invalid
            return event
    raise Malformed("line", _INVALID)
