"""Syslog messages of RFC 5424. Strict parsing; messages that do not conform are recorded as raw text.

A message has no identity, so one that arrives twice is two events, unless its sender numbers messages: with a
`sequenceId` in the structured data `meta` (§7.3.1), a repeated message is recognized as a copy.
"""

import re
from dataclasses import dataclass, field

from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.normalize import Defaults

MAX_SYSLOG_BYTES = 65_536
_NIL = "-"
_BOM = b"\xef\xbb\xbf"
_PRINTABLE = r"[\x21-\x7e]"
_HEAD = re.compile(
    rf"<(?P<pri>\d{{1,3}})>(?P<version>[1-9]\d{{0,2}}) (?P<time>{_PRINTABLE}+) (?P<host>{_PRINTABLE}{{1,255}}) "
    rf"(?P<app>{_PRINTABLE}{{1,48}}) (?P<procid>{_PRINTABLE}{{1,128}}) (?P<msgid>{_PRINTABLE}{{1,32}}) ",
    re.ASCII,
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_NAME = re.compile(r"[^\x00-\x20=\]\"\x7f-\U0010ffff]{1,32}")
_VALUE = re.compile(r'"((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_FACILITIES = 24
_SEVERITIES = 8


class NotSyslog(ValueError):
    """The input is not a message of RFC 5424; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class SyslogMessage:
    """One message. Nil fields are None."""

    facility: int
    severity: int
    version: int
    timestamp: str | None
    hostname: str | None
    app_name: str | None
    procid: str | None
    msgid: str | None
    message: str
    structured: dict[str, dict[str, str | list[str]]] = field(default_factory=dict)

    @property
    def sequence_id(self) -> str | None:
        found = self.structured.get("meta", {}).get("sequenceId")
        return found if isinstance(found, str) else None


def parse(data: bytes) -> SyslogMessage:
    """Parse a message from the wire. Raises `NotSyslog`."""
    head = _HEAD.match(data[:1_024].decode("latin-1"))
    if head is None:
        raise NotSyslog("it has no valid RFC 5424 header")
    pri, timestamp = int(head["pri"]), head["time"]
    if pri >= _FACILITIES * _SEVERITIES or (head["pri"] != str(pri)):
        raise NotSyslog(f"invalid priority {head['pri']}")
    if timestamp != _NIL and (not _TIME.fullmatch(timestamp) or normalize.milliseconds(timestamp) is None):
        raise NotSyslog(f"{timestamp!r} is not a valid timestamp")
    structured, rest = _structured(data[head.end() :])
    time, host, app, procid, msgid = (
        None if text == _NIL else str(text) for text in head.group("time", "host", "app", "procid", "msgid")
    )
    facility, severity = divmod(pri, _SEVERITIES)
    message, version = _message(rest), int(head["version"])
    return SyslogMessage(facility, severity, version, time, host, app, procid, msgid, message, structured)


def _structured(data: bytes) -> tuple[dict[str, dict[str, str | list[str]]], bytes]:
    """The structured data and the rest of the message."""
    if data == b"-" or data.startswith(b"- "):
        return {}, data[1:]
    if not data.startswith(b"["):
        raise NotSyslog("structured data is missing")
    text, pos = data.decode(errors="surrogateescape"), 0
    found: dict[str, dict[str, str | list[str]]] = {}
    while text.startswith("[", pos):
        name = _NAME.match(text, pos + 1)
        if name is None or name[0] in found:
            raise NotSyslog("an element of structured data has no unique name")
        found[name[0]], pos = _params(text, name.end())
    rest = text[pos:].encode(errors="surrogateescape")
    if rest and not rest.startswith(b" "):
        raise NotSyslog("unexpected text between structured data and message")
    return found, rest


def _params(text: str, pos: int) -> tuple[dict[str, str | list[str]], int]:
    found: dict[str, list[str]] = {}
    while not text.startswith("]", pos):
        name = _NAME.match(text, pos + 1) if text.startswith(" ", pos) else None
        value = _VALUE.match(text, name.end() + 1) if name and text.startswith("=", name.end()) else None
        if name is None or value is None:
            raise NotSyslog("an element of structured data is not terminated")
        found.setdefault(name[0], []).append(normalize.clean(_ESCAPED.sub(r"\1", value[1])))
        pos = value.end()
    # A name may be repeated, §6.3.3.
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}, pos + 1


def _message(rest: bytes) -> str:
    return rest.removeprefix(b" ").removeprefix(_BOM).decode(errors="replace")


def event_of(data: bytes, defaults: Defaults, now_ms: int) -> tuple[RecordEvent, bytes | None]:
    """The event of a message, and its digest if the sender numbers messages.

    A message that is not RFC 5424 is recorded as raw text, with the reason.
    """
    try:
        found = parse(data)
    except NotSyslog as error:
        payload: dict[str, object] = {"malformed": str(error), **normalize.raw_input(data)}
        return _event(defaults, defaults.subject, now_ms, payload), None
    payload = {name: getattr(found, name) for name in SyslogMessage.__dataclass_fields__}
    if "raw_hex" in (raw := normalize.raw_input(data)):  # the decoded text is not the complete message
        payload |= raw
    event_time = normalize.milliseconds(found.timestamp) if found.timestamp else None
    subject = defaults.subject_id or found.hostname or defaults.subject
    numbered = found.sequence_id is not None and found.timestamp is not None
    event = _event(defaults, subject, now_ms if event_time is None else event_time, payload)
    return event, h(data) if numbered else None


def _event(defaults: Defaults, subject: str, time_ms: int, payload: object) -> RecordEvent:
    subject = normalize.name(subject, defaults.subject)
    return RecordEvent(subject, defaults.event_type, time_ms, defaults.origin, normalize.payload_of(payload))
