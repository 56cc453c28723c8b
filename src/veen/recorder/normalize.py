"""Convert the output of programs to event fields: bounded texts, times, and canonical payloads.

No information is lost: integers that JSON cannot represent exactly become text, and so do numbers that JSON lacks.
A lone surrogate becomes U+FFFD.
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
    """The canonical JSON of any value. Values without a JSON form become text."""
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
    """Text that UTF-8 can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)
    return text


def raw_input(data: bytes) -> dict[str, str]:
    """Raw input: as text if it is UTF-8, else as hex."""
    try:
        return {"raw": data.decode()}
    except UnicodeDecodeError:
        return {"raw_hex": data.hex()}


def beginning(data: bytes, most: int) -> bytes:
    """The first bytes of a line, without splitting a UTF-8 character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data[:most]
    return data[:most].decode(errors="ignore").encode()


def name(text: str, otherwise: str) -> str:
    """A subject, type or origin: non-empty and within the length limit. A shortened one ends in an ellipsis."""
    found = clean(text) or otherwise
    data = found.encode()
    if len(data) <= MAX_TEXT_BYTES:
        return found
    return data[: MAX_TEXT_BYTES - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def milliseconds(value: object) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 date or a number of seconds or milliseconds.

    A number below 10^11 counts as seconds: as milliseconds it would be before 1973. None if it is not a time.
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
    """Default fields for events that lack them. Without `subject_id`, the origin is the subject."""

    origin: str
    event_type: str
    subject_id: str | None = None

    @property
    def subject(self) -> str:
        return self.subject_id or self.origin

    def event(
        self, payload: object, time_ms: int, *, subject: str = "", event_type: str = "", origin: str = ""
    ) -> RecordEvent:
        """An event with these fields. Missing ones get their defaults, and long names are shortened."""
        return RecordEvent(
            name(subject, self.subject),
            name(event_type, self.event_type),
            time_ms,
            name(origin, self.origin),
            payload_of(payload),
        )

    def malformed(self, reason: str, raw: bytes, time_ms: int) -> RecordEvent:
        """An event for input that cannot be parsed: the raw text, with the reason."""
        return self.event({"malformed": reason, **raw_input(raw)}, time_ms)
