"""One entry as a row: of `entries`, and of `events` where it can be read, else of `quarantine` with the reason."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from veen.client.entry import Opener
from veen.core import Malformed, Msg, PayloadHdr, Receipt, naming
from veen.overlays import AnyOverlay, Entry, Event, Fault, Registry, registry
from veen.pipeline.decoding.keys import Keys
from veen.pipeline.decoding.plain import Plain, parsed, plain, written
from veen.pipeline.decoding.streams import Stream

RECORD = naming.schema_id("record.event.v1")
LAST_SEC = 253_402_300_799  # of the year 9999: what calendars and Parquet readers still name
_MOST = (1 << 63) - 1
_LONGEST = 256  # bytes of a subject: Parquet keeps no bounds of very long ones


class Kind(StrEnum):
    """Why an entry is in quarantine."""

    UNVERIFIED = "unverified"  # a check of the log failed: nothing of it can be relied on
    SEALED = "sealed"  # there is no key for it here, or it does not open
    UNKNOWN = "unknown"  # no overlay reads its schema
    MALFORMED = "malformed"  # its body is not what its schema says


class EntryRow(NamedTuple):
    """A verified entry without its payload; its receipt can be put together again from it."""

    label: bytes
    epoch: int
    stream_seq: int
    hub_ts: int
    client_id: bytes
    client_seq: int
    prev_ack: int
    auth_ref: bytes | None
    ct_hash: bytes
    leaf_hash: bytes
    mmr_root: bytes
    hub_sig: bytes


class EventRow(NamedTuple):
    """What an entry says, typed by its overlay; `header` and `body` are what was sealed."""

    label: bytes
    epoch: int
    stream_seq: int
    hub_ts: int
    client_id: bytes
    auth_ref: bytes | None
    msg_id: bytes
    mmr_root: bytes
    overlay: str
    schema: bytes
    subject_id: str | None
    event_type: str
    event_time: int | None
    origin: str | None
    event: str
    header: bytes
    body: bytes


class QuarantineRow(NamedTuple):
    """An entry that is no event, and why; as much of it as could be had."""

    label: bytes
    epoch: int
    stream_seq: int
    hub_ts: int | None
    client_id: bytes | None
    auth_ref: bytes | None
    msg_id: bytes | None
    mmr_root: bytes | None
    kind: str
    reason: str
    schema: bytes | None
    header: bytes | None
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Found:
    """An entry as it was read and judged. `faults` are the checks that failed, each with its words."""

    label: bytes
    stream_seq: int
    message: Msg | None
    receipt: Receipt | None
    faults: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Rows:
    """Rows of the three tables, in the order of the log."""

    entries: list[EntryRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    quarantine: list[QuarantineRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events) + len(self.quarantine)


class Decoder:
    """Makes rows, with the keys of one worker."""

    def __init__(self, streams: dict[bytes, Stream], keys: Keys) -> None:
        self._streams = streams
        self._keys = keys
        self._openers: dict[bytes, Opener] = {}
        self._overlays = overlays()

    def add(self, found: Found, rows: Rows) -> None:
        """The rows of one entry."""
        stream = self._streams.get(found.label) or Stream(found.label, found.label.hex())
        message, receipt = found.message, found.receipt
        faults = found.faults or _unusable(message, receipt)
        if faults or message is None or receipt is None:
            reason = "; ".join(f"{check}: {text}" for check, text in faults)
            rows.quarantine.append(_of_broken(found, stream, reason))
            return
        rows.entries.append(
            EntryRow(
                found.label,
                stream.epoch,
                found.stream_seq,
                receipt.hub_ts,
                message.client_id,
                message.client_seq,
                message.prev_ack,
                message.auth_ref,
                message.ct_hash,
                receipt.leaf_hash,
                receipt.mmr_root,
                receipt.hub_sig,
            )
        )
        opened = self._opener(stream).entry(stream.epoch, message, receipt)
        header = opened.header
        if header is not None and opened.schema is not None:
            header = replace(header, schema=opened.schema)  # of what came with attachments: what they belong to
        entry = Entry.of(message, receipt, header, opened.body, stream.epoch)
        row = self.read(entry, receipt.mmr_root, opened.fault)
        if isinstance(row, EventRow):
            rows.events.append(row)
        else:
            rows.quarantine.append(row)

    def read(self, entry: Entry, mmr_root: bytes, fault: str | None = None) -> EventRow | QuarantineRow:
        """What a verified entry says, or why it says nothing."""
        header, body = entry.header, entry.body
        if header is None or body is None:
            return _of_silent(entry, mmr_root, Kind.SEALED, fault or "the payload could not be opened")
        readers = self._overlays.of_schema(header.schema)
        if not readers:
            return _of_silent(entry, mmr_root, Kind.UNKNOWN, "no overlay here reads its schema")
        reasons = []
        for overlay in readers:
            steps = overlay.read(entry)
            if isinstance(steps, Fault):
                reasons.append(steps.reason)
                continue
            event = steps[0].event if steps else _form(overlay, header, body)
            subject = _text(steps[0].part) if steps else None
            return _of_event(entry, mmr_root, overlay, event, subject, (header, body))
        return _of_silent(entry, mmr_root, Kind.MALFORMED, reasons[0])

    def _opener(self, stream: Stream) -> Opener:
        if stream.label not in self._openers:
            key = None if stream.stream_id is None else self._keys.key(stream.stream_id)
            self._openers[stream.label] = Opener(key)
        return self._openers[stream.label]


@lru_cache(maxsize=1)
def overlays() -> Registry:
    """The overlays of this worker."""
    return registry()


def _unusable(message: Msg | None, receipt: Receipt | None) -> tuple[tuple[str, str], ...]:
    """What no table could hold, though its signatures hold."""
    if message is None or receipt is None:
        return (("form", "it cannot be read"),)
    if receipt.hub_ts > LAST_SEC:
        return (("order", f"hub_ts is {receipt.hub_ts}, which no calendar has"),)
    return ()


def _form(overlay: AnyOverlay, header: PayloadHdr, body: bytes) -> Event:
    """An event that is for no part of the state, such as one of another wallet."""
    *others, last = overlay.schemas[header.schema]
    for form in others:
        with suppress(Malformed):
            return form.decode(body)
    return last.decode(body)


def _of_event(
    entry: Entry,
    mmr_root: bytes,
    overlay: AnyOverlay,
    event: Event,
    subject: str | None,
    sealed: tuple[PayloadHdr, bytes],
) -> EventRow:
    header, body = sealed
    shown = plain(event)
    assert isinstance(shown, dict)
    kind, event_time, origin = event.LAYOUT.name, None, None
    if header.schema == RECORD:
        subject, kind, event_time, origin = _recorded(shown)
        shown["payload"] = parsed(str(shown.pop("content")))
    return EventRow(
        entry.label,
        entry.epoch,
        entry.stream_seq,
        entry.hub_ts,
        entry.client_id,
        entry.auth_ref,
        entry.msg_id,
        mmr_root,
        overlay.CLASS,
        header.schema,
        subject,
        kind,
        event_time,
        origin,
        written(shown),
        header.encode(),
        body,
    )


def _recorded(shown: dict[str, Plain]) -> tuple[str, str, int | None, str]:
    """The columns of a recorder's event."""
    event_time = shown["event_time"]
    told = event_time if isinstance(event_time, int) and event_time <= _MOST else None
    return str(shown["subject_id"]), str(shown["event_type"]), told, str(shown["origin"])


def _of_silent(entry: Entry, mmr_root: bytes, kind: Kind, reason: str) -> QuarantineRow:
    header = entry.header
    return QuarantineRow(
        entry.label,
        entry.epoch,
        entry.stream_seq,
        entry.hub_ts,
        entry.client_id,
        entry.auth_ref,
        entry.msg_id,
        mmr_root,
        str(kind),
        reason,
        header.schema if header else None,
        header.encode() if header else None,
        entry.body,
    )


def _of_broken(found: Found, stream: Stream, reason: str) -> QuarantineRow:
    message, receipt = found.message, found.receipt
    return QuarantineRow(
        found.label,
        stream.epoch,
        found.stream_seq,
        receipt.hub_ts if receipt and receipt.hub_ts <= LAST_SEC else None,
        message.client_id if message else None,
        message.auth_ref if message else None,
        receipt.leaf_hash if receipt else message.leaf_hash() if message else None,
        receipt.mmr_root if receipt else None,
        str(Kind.UNVERIFIED),
        reason or "it cannot be read",
        None,
        None,
        None,
    )


def _text(part: bytes) -> str:
    """A part as people write it: text where it is text, else hex digits; of a long one the digits of its hash."""
    if len(part) > _LONGEST:
        return sha256(part).hexdigest()
    try:
        text = part.decode()
    except UnicodeDecodeError:
        return part.hex()
    return text if text.isprintable() else part.hex()
