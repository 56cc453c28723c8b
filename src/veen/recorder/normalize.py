"""From what a program says to the fields of an event: texts that fit, times, and payloads in their one form.

Nothing that can be said is lost: an integer that JSON cannot hold exactly is written out as text, and so are numbers
that it has no word for. Half of a surrogate pair becomes U+FFFD.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from veen.core import canonical_json
from veen.core.canonical_json import Plain
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_EXACT_INT, MAX_JSON_DEPTH, MAX_TEXT_BYTES
from veen.overlays.record import RecordEvent

_ELLIPSIS = "…"
_MS = 1_000


def payload_of(value: object) -> str:
    """The canonical JSON of any value: what has no JSON form is written as text."""
    return canonical_json.encode(_plain(value, MAX_JSON_DEPTH - 1)).decode()


def _plain(value: object, depth: int) -> Plain:
    match value:
        case None | bool():
            return value
        case str():
            return clean(value)
        case int():
            return int(value) if -MAX_EXACT_INT <= value <= MAX_EXACT_INT else str(int(value))
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
    if depth <= 0:
        return clean(repr(value))
    if isinstance(value, Mapping):
        return {clean(str(name)): _plain(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        listed = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [_plain(one, depth - 1) for one in listed]
    return clean(str(value))


def clean(text: str) -> str:
    """Text that is text in UTF-8 too."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)
    return text


def as_it_came(data: bytes) -> dict[str, str]:
    """Bytes that make no event, to be put down: text as text, and what is none byte for byte."""
    try:
        return {"raw": data.decode()}
    except UnicodeDecodeError:
        return {"raw_hex": data.hex()}


def beginning(data: bytes, most: int) -> bytes:
    """The first bytes of a line; of text, whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data[:most]
    return data[:most].decode(errors="ignore").encode()


def name(text: str, otherwise: str) -> str:
    """A subject, type or origin: not empty, and no longer than a name may be. One that is cut says so."""
    found = clean(text) or otherwise
    data = found.encode()
    if len(data) <= MAX_TEXT_BYTES:
        return found
    return data[: MAX_TEXT_BYTES - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def milliseconds(value: object) -> int | None:
    """A time that someone wrote, in milliseconds since 1970: a date in ISO 8601, or a number of (milli)seconds.

    A number below 10^11 is taken as seconds: in milliseconds it would be before 1973. None where it is no time.
    """
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value)
            found = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * _MS
        except (ValueError, OverflowError):
            return None
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        found = value if abs(value) >= 1e11 else value * _MS
    else:
        return None
    return round(found) if 0 <= found <= U64_MAX else None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an input says of an event that does not say it itself. Without `subject_id`, the origin is the subject."""

    origin: str
    event_type: str
    subject_id: str | None = None

    @property
    def subject(self) -> str:
        return self.subject_id or self.origin

    def example(self) -> RecordEvent:
        """An event that says nothing itself."""
        return RecordEvent(name(self.subject, self.origin), self.event_type, 0, self.origin, "{}")
