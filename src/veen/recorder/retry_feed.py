"""What was set aside, as a feed: sent again under the source and the place that it had, once it can be recorded.

Inputs set aside in `refused.jsonl` of a folder; what is being sent again is `retrying.jsonl` meanwhile.
"""

import os
from pathlib import Path

from veen.client.durable import DISK
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
_STRANGE = "not what an input set aside"
_LONGEST = 8 * MAX_BATCH_BYTES  # an event in a JSON line of its own, every character of it escaped
_NOBODY = Defaults("recorder", "recorder.refused")  # every line says its own


class RetryFeed:
    """One pass over what was set aside so far. One that was cut short is finished first."""

    def __init__(self, folder: Path) -> None:
        """Only while nobody else sends for this client: an input might be writing to the file."""
        self._file, self._state = folder / RETRYING, folder / _STATE
        if not self._file.exists() and (folder / REFUSED).exists():
            self._state.unlink(missing_ok=True)  # of a file that is gone: this one may look the same
            os.replace(folder / REFUSED, self._file)
            DISK.sync_folder(folder)
        self.feed = JsonLines(self._file, self._state, _NOBODY, follow=False, read=item_of, max_line_bytes=_LONGEST)

    def finish(self) -> None:
        """All of it was sent, or set aside anew."""
        self._file.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def item_of(source: str, position: int, line: bytes, defaults: Defaults) -> FeedItem:
    """What a line of the file was, in its own place; a line that is none of ours is a flaw at its place here."""
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
    raise Malformed("line", _STRANGE)


def _raw(found: dict[str, Plain]) -> bytes | None:
    """What no event could be made of; that cannot have changed."""
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
            event.encode()  # raises `ValueError` where it breaks its layout
            return event
    raise Malformed("line", _STRANGE)
