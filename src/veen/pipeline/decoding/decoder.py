"""One entry as a row: of `entries`, and of `events` where it can be read, else of `quarantine` with the reason."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from veen.client.entry import Opener
from veen.core import Malformed, Msg, PayloadHdr, Receipt, naming
from veen.overlays import AnyOverlay, Event, EventFault, FoldEntry, Registry, registry
from veen.pipeline.decoding.key_reference import Keys
from veen.pipeline.decoding.plain_json import Plain, parsed, plain, written
from veen.pipeline.read_plan import by_label
from veen.pipeline.sources import Chunk, ChunkSource
from veen.storage import frame
from veen.storage.metadata import HubMetadata


@dataclass(frozen=True, slots=True)
class LabelStream:
    """A label and the stream it is of. Where no name explains it, the label's own hex digits stand for the name."""

    label: bytes
    name: str
    stream_id: bytes | None = None
    epoch: int = 0


def streams_of(
    source: ChunkSource,
    hub_metadata: HubMetadata,
    chunks: Sequence[Chunk],
    names: Iterable[str],
    epochs: Iterable[int] = (0,),
) -> dict[bytes, LabelStream]:
    """The stream of each label that has entries. Where a hub has epochs, the time of a label's first entry tells."""
    known = {name: naming.stream_id(name) for name in names}
    routing, profile = hub_metadata.identity.routing_key, hub_metadata.profile
    found: dict[bytes, LabelStream] = {}
    for of_label in by_label(chunks):
        label = of_label[0].label
        around = set(epochs)
        if profile.epoch_sec and of_label[0].start_seq == 1:
            first = Receipt.decode(frame.read_unhashed(source.first_frame(of_label[0]))[0].receipt)
            around |= set(profile.epochs_around(first.hub_ts, hub_metadata.limits.max_epoch_skew_sec))
        named = (
            LabelStream(label, name, stream_id, epoch)
            for name, stream_id in known.items()
            for epoch in sorted(around)
            if naming.label(routing, stream_id, epoch) == label
        )
        found[label] = next(named, LabelStream(label, label.hex()))
    return found


RECORD = naming.schema_id("record.event.v1")
LAST_SEC = 253_402_300_799  # of the year 9999: what calendars and Parquet readers still name
_MOST = (1 << 63) - 1
_LONGEST = 256  # bytes of a subject: Parquet keeps no bounds of very long ones


class QuarantineKind(StrEnum):
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
class DecodedEntry:
    """An entry as it was read and judged. `faults` are the checks that failed, each with its words."""

    label: bytes
    stream_seq: int
    message: Msg | None
    receipt: Receipt | None
    faults: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class DecodedRows:
    """Rows of the three tables, in the order of the log."""

    entries: list[EntryRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    quarantine: list[QuarantineRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events) + len(self.quarantine)


class Decoder:
    """Makes rows, with the keys of one worker."""

    def __init__(self, streams: dict[bytes, LabelStream], keys: Keys) -> None:
        self._streams = streams
        self._keys = keys
        self._openers: dict[bytes, Opener] = {}
        self._overlays = overlays()

    def add(self, found: DecodedEntry, rows: DecodedRows) -> None:
        """The rows of one entry."""
        stream = self._streams.get(found.label) or LabelStream(found.label, found.label.hex())
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
        entry = FoldEntry.of(message, receipt, header, opened.body, stream.epoch)
        row = self.read(entry, receipt.mmr_root, opened.fault)
        if isinstance(row, EventRow):
            rows.events.append(row)
        else:
            rows.quarantine.append(row)

    def read(self, entry: FoldEntry, mmr_root: bytes, fault: str | None = None) -> EventRow | QuarantineRow:
        """What a verified entry says, or why it says nothing."""
        header, body = entry.header, entry.body
        if header is None or body is None:
            return _of_silent(entry, mmr_root, QuarantineKind.SEALED, fault or "the payload could not be opened")
        readers = self._overlays.of_schema(header.schema)
        if not readers:
            return _of_silent(entry, mmr_root, QuarantineKind.UNKNOWN, "no overlay here reads its schema")
        reasons = []
        for overlay in readers:
            steps = overlay.read(entry)
            if isinstance(steps, EventFault):
                reasons.append(steps.reason)
                continue
            event = steps[0].event if steps else _form(overlay, header, body)
            subject = _text(steps[0].part) if steps else None
            return _of_event(entry, mmr_root, overlay, event, subject, (header, body))
        return _of_silent(entry, mmr_root, QuarantineKind.MALFORMED, reasons[0])

    def _opener(self, stream: LabelStream) -> Opener:
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
    entry: FoldEntry,
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


def _of_silent(entry: FoldEntry, mmr_root: bytes, kind: QuarantineKind, reason: str) -> QuarantineRow:
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


def _of_broken(found: DecodedEntry, stream: LabelStream, reason: str) -> QuarantineRow:
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
        str(QuarantineKind.UNVERIFIED),
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
