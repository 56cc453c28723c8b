"""Decode an entry into a row of `entries` and one of `events`, or of `quarantine` with the reason."""

import importlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from veen.client import local_files
from veen.client.keystore import Keystore, ReaderKey, keystore_file
from veen.client.local_files import DISK
from veen.client.reader import Opener
from veen.client.tree_follower import PrunedEntries
from veen.core import DhKey, Malformed, Msg, PayloadHdr, Receipt, Unavailable, naming
from veen.overlays import AnyOverlay, Event, EventFault, FoldEntry, Registry, registry
from veen.pipeline.sources import Chunk, ChunkSource, DirectoryChunks, by_label
from veen.storage import frame
from veen.storage.metadata import HubMetadata

PROVIDER = "python:"
VARIABLE = b"VEEN_PASSPHRASE"
_MAX_KEY_FILE_BYTES = 1 << 16
_MAX_PASSPHRASE_BYTES = 1 << 12

# Events as plain JSON: bytes as lowercase hex.
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode  # made once

Provider = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class Keys:
    """The locations of reader keys. It contains no secrets."""

    references: tuple[str, ...] = ()
    passphrase_file: str | None = None  # for client directories; default: the worker's VEEN_PASSPHRASE

    def key(self, stream_id: bytes) -> DhKey | None:
        """The key of a stream, from the first location that has it. Raises `Unavailable` for an unreadable location."""
        for reference in self.references:
            found = _opened(reference, self.passphrase_file)(stream_id)
            if found is not None:
                return DhKey(found)
        return None

    def names(self) -> tuple[str, ...]:
        """The names of the streams whose keys are in directories and files; functions list none."""
        named: dict[str, None] = {}
        for reference in self.references:
            if not reference.startswith(PROVIDER):
                named |= dict.fromkeys(_secrets(reference, self.passphrase_file))
        return tuple(named)


@lru_cache(maxsize=64)
def _opened(reference: str, passphrase_file: str | None) -> Provider:
    """A function from stream_id to key; each worker opens a reference once."""
    if reference.startswith(PROVIDER):
        return _provider(reference)
    return dict(_secrets(reference, passphrase_file).values()).get


def _secrets(reference: str, passphrase_file: str | None) -> dict[str, tuple[bytes, bytes]]:
    """Stream name to stream id and secret key."""
    path = Path(reference)
    if path.is_dir():
        for private in (path, keystore_file(path)):
            local_files.check_private(private)
        store = Keystore.open(path, _passphrase(passphrase_file), DISK)
        return {one.name: (one.stream_id, one.secret) for one in store.secrets.streams}
    local_files.check_private(path)
    try:
        key = ReaderKey.decode(local_files.read_file(path, _MAX_KEY_FILE_BYTES))
    except Malformed:
        raise Malformed(reference, "it is neither a client directory nor a reader key file") from None
    return {key.name: (naming.stream_id(key.name), key.secret)}


def _passphrase(path: str | None) -> bytes | None:
    if path is None:
        return os.environb.get(VARIABLE) or None
    return local_files.read_file(Path(path), _MAX_PASSPHRASE_BYTES).removesuffix(b"\n").removesuffix(b"\r")


def _provider(reference: str) -> Provider:
    module, _, name = reference.removeprefix(PROVIDER).rpartition(":")
    try:
        found: Provider = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise Unavailable(f"cannot import {reference}; check MODULE:NAME and the worker's Python path") from None
    return found


@dataclass(frozen=True, slots=True)
class LabelStream:
    """A label and its stream. If no known name yields the label, its hex digits serve as the name."""

    label: bytes
    name: str
    stream_id: bytes | None = None
    epoch: int = 0


def streams_of(
    source: ChunkSource,
    metadata: HubMetadata,
    chunks: Sequence[Chunk],
    names: Iterable[str],
    epochs: Iterable[int] = (0,),
) -> dict[bytes, LabelStream]:
    """The stream of each label that has entries. With epochs, the time of the first entry narrows the epoch."""
    known = {name: naming.stream_id(name) for name in names}
    routing, profile = metadata.identity.routing_key, metadata.profile
    found: dict[bytes, LabelStream] = {}
    for label, of_label in by_label(chunks).items():
        around = set(epochs)
        if profile.epoch_sec and of_label[0].start_seq == 1:
            around |= set(_epochs_at(source, metadata, of_label[0]))
        named = (
            LabelStream(label, name, stream_id, epoch)
            for name, stream_id in known.items()
            for epoch in sorted(around)
            if naming.label(routing, stream_id, epoch) == label
        )
        found[label] = next(named, LabelStream(label, label.hex()))
    return found


def _epochs_at(source: ChunkSource, metadata: HubMetadata, chunk: Chunk) -> Iterable[int]:
    """The epochs that the first entry of a chunk may be in."""
    if chunk.pruned and isinstance(source, DirectoryChunks):
        with source.pruned(chunk, metadata.identity) as left:
            hub_ts = left.entry(chunk.start_seq).hub_ts
    else:
        try:
            hub_ts = Receipt.decode(frame.read_unhashed(source.first_frame(chunk))[0].receipt).hub_ts
        except PrunedEntries as pruned:
            return (pruned.tombstone.epoch,)
    return metadata.profile.epochs_around(hub_ts, metadata.limits.max_epoch_skew_sec)


RECORD = naming.schema_id("record.event.v1")
LAST_SEC = 253_402_300_799  # end of the year 9999, the last that calendars and Parquet readers support
_MAX_BIGINT = (1 << 63) - 1
_MAX_SUBJECT_BYTES = 256  # bytes; Parquet keeps no min/max statistics for longer values


class QuarantineKind(StrEnum):
    """Why an entry is in quarantine."""

    UNVERIFIED = "unverified"  # a check failed: no field of the entry can be relied on
    SEALED = "sealed"  # no key is available, or the entry does not open
    UNKNOWN = "unknown"  # no overlay knows its schema
    MALFORMED = "malformed"  # its body does not match its schema


class EntryRow(NamedTuple):
    """A verified entry without its payload. Its receipt can be rebuilt from the row."""

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
    """The event in an entry, typed by its overlay. `header` and `body` are the sealed bytes."""

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
    """An entry without a readable event, the reason, and the fields that could be read."""

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
    """An entry after verification. `faults` are the failed checks, each with its description."""

    label: bytes
    stream_seq: int
    message: Msg | None
    receipt: Receipt | None
    faults: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class DecodedRows:
    """Rows of the three tables in log order."""

    entries: list[EntryRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    quarantine: list[QuarantineRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events) + len(self.quarantine)


class Decoder:
    """Makes rows, with the reader keys of one worker."""

    def __init__(self, streams: dict[bytes, LabelStream], keys: Keys) -> None:
        self._streams = streams
        self._keys = keys
        self._openers: dict[bytes, Opener] = {}
        self._overlays = overlays()

    def add(self, found: DecodedEntry, rows: DecodedRows) -> None:
        """Append the rows of one entry."""
        stream = self._streams.get(found.label) or LabelStream(found.label, found.label.hex())
        message, receipt = found.message, found.receipt
        faults = found.faults or _unusable(message, receipt)
        if faults or message is None or receipt is None:
            reason = "; ".join(f"{check}: {text}" for check, text in faults)
            rows.quarantine.append(_unverified(found, stream, reason))
            return
        sent = (message.client_id, message.client_seq, message.prev_ack, message.auth_ref, message.ct_hash)
        signed = (receipt.leaf_hash, receipt.mmr_root, receipt.hub_sig)
        rows.entries.append(EntryRow(found.label, stream.epoch, found.stream_seq, receipt.hub_ts, *sent, *signed))
        opened = self._opener(stream).entry(stream.epoch, message, receipt)
        header = opened.header
        if header is not None and opened.schema is not None:
            header = replace(header, schema=opened.schema)  # the schema of the event that the attachments belong to
        entry = FoldEntry.of(message, receipt, header, opened.body, stream.epoch)
        row = self.read(entry, receipt.mmr_root, opened.fault)
        if isinstance(row, EventRow):
            rows.events.append(row)
        else:
            rows.quarantine.append(row)

    def read(self, entry: FoldEntry, mmr_root: bytes, fault: str | None = None) -> EventRow | QuarantineRow:
        """The event of a verified entry, or a quarantine row with the reason."""
        header, body = entry.header, entry.body
        if header is None or body is None:
            return _quarantined(entry, mmr_root, QuarantineKind.SEALED, fault or "the payload could not be opened")
        readers = self._overlays.of_schema(header.schema)
        if not readers:
            return _quarantined(entry, mmr_root, QuarantineKind.UNKNOWN, "no overlay here reads its schema")
        reasons = []
        for overlay in readers:
            steps = overlay.read(entry)
            if isinstance(steps, EventFault):
                reasons.append(steps.reason)
                continue
            event = steps[0].event if steps else _decode_event(overlay, header, body)
            subject = _text(steps[0].part) if steps else None
            return _event_row(entry, mmr_root, overlay, event, subject, (header, body))
        return _quarantined(entry, mmr_root, QuarantineKind.MALFORMED, reasons[0])

    def _opener(self, stream: LabelStream) -> Opener:
        if stream.label not in self._openers:
            key = None if stream.stream_id is None else self._keys.key(stream.stream_id)
            self._openers[stream.label] = Opener(key)
        return self._openers[stream.label]


@lru_cache(maxsize=1)
def overlays() -> Registry:
    return registry()


def _unusable(message: Msg | None, receipt: Receipt | None) -> tuple[tuple[str, str], ...]:
    """Faults that keep a valid entry out of the tables."""
    if message is None or receipt is None:
        return (("form", "it cannot be read"),)
    if receipt.hub_ts > LAST_SEC:
        return (("order", f"hub_ts is {receipt.hub_ts}, which no calendar has"),)
    return ()


def _decode_event(overlay: AnyOverlay, header: PayloadHdr, body: bytes) -> Event:
    """Decode an event that belongs to no part of the state, such as one of another wallet."""
    *others, last = overlay.schemas[header.schema]
    for form in others:
        with suppress(Malformed):
            return form.decode(body)
    return last.decode(body)


def _event_row(
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
        subject, kind, event_time, origin = _record_columns(shown)
        shown["payload"] = from_json(str(shown.pop("content")))
    typed = (overlay.CLASS, header.schema, subject, kind, event_time, origin, to_json(shown))
    return EventRow(*_place(entry, mmr_root), *typed, header.encode(), body)


def _place(entry: FoldEntry, mmr_root: bytes) -> tuple[bytes, int, int, int, bytes, bytes | None, bytes, bytes]:
    """The columns that events and quarantine have first."""
    place = (entry.label, entry.epoch, entry.stream_seq, entry.hub_ts)
    return *place, entry.client_id, entry.auth_ref, entry.msg_id, mmr_root


def _record_columns(shown: dict[str, Plain]) -> tuple[str, str, int | None, str]:
    event_time = shown["event_time"]
    in_range = event_time if isinstance(event_time, int) and event_time <= _MAX_BIGINT else None
    return str(shown["subject_id"]), str(shown["event_type"]), in_range, str(shown["origin"])


def _quarantined(entry: FoldEntry, mmr_root: bytes, kind: QuarantineKind, reason: str) -> QuarantineRow:
    header = entry.header
    sealed = (header.schema, header.encode(), entry.body) if header else (None, None, entry.body)
    return QuarantineRow(*_place(entry, mmr_root), str(kind), reason, *sealed)


def _unverified(found: DecodedEntry, stream: LabelStream, reason: str) -> QuarantineRow:
    message, receipt = found.message, found.receipt
    hub_ts = receipt.hub_ts if receipt and receipt.hub_ts <= LAST_SEC else None
    client_id, auth_ref = (message.client_id, message.auth_ref) if message else (None, None)
    msg_id = receipt.leaf_hash if receipt else message.leaf_hash() if message else None
    place = (found.label, stream.epoch, found.stream_seq, hub_ts, client_id, auth_ref, msg_id)
    mmr_root = receipt.mmr_root if receipt else None
    kind = str(QuarantineKind.UNVERIFIED)
    return QuarantineRow(*place, mmr_root, kind, reason or "it cannot be read", None, None, None)


def _text(part: bytes) -> str:
    """A part as text if printable, else as hex; a long part as the hex of its hash."""
    if len(part) > _MAX_SUBJECT_BYTES:
        return sha256(part).hexdigest()
    try:
        text = part.decode()
    except UnicodeDecodeError:
        return part.hex()
    return text if text.isprintable() else part.hex()


def plain(value: object) -> Plain:
    """Convert a value of an event to JSON types. Absent fields are left out."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return plain(value.value)
        case str():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {key if isinstance(key, str) else str(plain(key)): plain(one) for key, one in value.items()}
        case tuple() | list() | frozenset():
            return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: plain(one) for name, one in named if one is not None}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: Plain) -> str:
    """Canonical JSON: equal values give equal text."""
    return _encode(value)


def from_json(text: str) -> Plain:
    """Parse JSON. Integers stay integers, however large."""
    try:
        found: Plain = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("event", "it is not JSON") from None
    return found
