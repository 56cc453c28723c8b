"""Log entries: framed on disk behind a fixed header (spec §4.8.1), and accepted, on their way there."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from mmap import mmap
from typing import Self, TypeAlias

from veen.core import Bucket, Malformed, Msg, Receipt, admin, limits
from veen.core.cbor import DeferredFaults
from veen.core.profile import LimitRegistry
from veen.core.retention import RetentionRules

Data: TypeAlias = bytes | mmap

ENTRY_VERSION = 1
# entry_ver, flags, label, stream_seq, msg_len, receipt_len, entry_hash
_HEADER = struct.Struct(">BB32sQII32s")
HEADER_BYTES = _HEADER.size
MAX_RECEIPT_BYTES = 192  # largest RECEIPT: both integers take nine bytes


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One framed entry: the committed bytes and their place."""

    label: bytes
    stream_seq: int
    msg: bytes
    receipt: bytes
    entry_hash: bytes

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.msg) + len(self.receipt)

    def open(self) -> tuple[Msg, Receipt]:
        """Decode message and receipt. Raises unless they belong together and to this place."""
        message, receipt = Msg.decode(self.msg), Receipt.decode(self.receipt)
        if receipt.label != self.label or receipt.stream_seq != self.stream_seq:
            raise Malformed("entry", "the receipt is for another place than the header")
        receipt.check_binds(message)
        return message, receipt


def entry_hash(msg: bytes, receipt: bytes) -> bytes:
    return sha256(b"veen/entry" + msg + receipt).digest()


def write(label: bytes, stream_seq: int, msg: bytes, receipt: bytes) -> tuple[bytes, bytes]:
    """The framed entry and its entry_hash."""
    body = msg + receipt
    digest = sha256(b"veen/entry" + body).digest()
    return _HEADER.pack(ENTRY_VERSION, 0, label, stream_seq, len(msg), len(receipt), digest) + body, digest


def read(data: Data, pos: int = 0) -> tuple[LogEntry, int]:
    """The entry at `pos` and the offset of the next. Checks all that needs no key: version, flags, lengths, hash."""
    entry, end = read_unhashed(data, pos)
    if entry_hash(entry.msg, entry.receipt) != entry.entry_hash:
        raise Malformed("entry", f"the bytes do not match the entry hash, at byte {pos}")
    return entry, end


def read_unhashed(data: Data, pos: int = 0) -> tuple[LogEntry, int]:
    """As `read`, without the hash check: for callers that report a damaged entry and continue behind it."""
    if len(data) - pos < HEADER_BYTES:
        raise Malformed("entry", f"ends within its header at byte {pos}")
    version, flags, label, stream_seq, msg_len, receipt_len, digest = _HEADER.unpack_from(data, pos)
    if version != ENTRY_VERSION or flags:
        raise Malformed("entry", f"version {version}, flags {flags} at byte {pos}")
    start = pos + HEADER_BYTES
    end = start + msg_len + receipt_len
    if msg_len > limits.MAX_MSG_BYTES or receipt_len > MAX_RECEIPT_BYTES or end > len(data):
        raise Malformed(
            "entry", f"declares {msg_len} and {receipt_len} bytes at byte {pos}, but {len(data) - start} are left"
        )
    msg, receipt = data[start : start + msg_len], data[start + msg_len : end]
    return LogEntry(label, stream_seq, msg, receipt, digest), end


def read_by_content(data: Data, pos: int = 0) -> tuple[LogEntry, int]:
    """The entry at `pos`, whatever lengths its header declares: MSG and RECEIPT delimit themselves.

    For continuing behind a damaged header. Raises `Malformed` unless the hash in the header matches.
    """
    if len(data) - pos < HEADER_BYTES:
        raise Malformed("entry", f"ends within its header at byte {pos}")
    _, _, label, stream_seq, _, _, digest = _HEADER.unpack_from(data, pos)
    start = pos + HEADER_BYTES
    body = data[start : start + limits.MAX_MSG_BYTES + MAX_RECEIPT_BYTES]
    _, middle = Msg.read(body, 0, DeferredFaults())
    _, end = Receipt.read(body, middle, DeferredFaults())
    msg, receipt = body[:middle], body[middle:end]
    if entry_hash(msg, receipt) != digest:
        raise Malformed("entry", f"the bytes do not match the entry hash, at byte {pos}")
    return LogEntry(label, stream_seq, msg, receipt, digest), start + end


def length_at(data: Data, pos: int) -> int:
    """The length of the entry at `pos`, from its header alone."""
    if len(data) - pos < HEADER_BYTES:
        raise Malformed("entry", f"ends within its header at byte {pos}")
    _, _, _, _, msg_len, receipt_len, _ = _HEADER.unpack_from(data, pos)
    return HEADER_BYTES + int(msg_len) + int(receipt_len)


def read_all(data: Data) -> Iterator[LogEntry]:
    """Every entry of a chunk's bytes."""
    pos = 0
    while pos < len(data):
        entry, pos = read(data, pos)
        yield entry


Cursor = tuple[int, int]  # client_seq, prev_ack
CapRow = tuple[bytes, int, int, bytes]  # label, stream_seq, issued_at, the logged token or presentation


@dataclass(slots=True, eq=False)  # not frozen: one is made for every message, and freezing triples its cost
class AcceptedEntry:
    """An entry with every field that the log files and the index need, so that nothing is parsed twice."""

    label: bytes
    stream_seq: int
    frame: bytes
    entry_hash: bytes
    new_nodes: list[bytes]  # the tree nodes this entry adds, leaf first
    client_id: bytes
    client_seq: int
    prev_ack: int
    hub_ts: int

    @classmethod
    def of(
        cls, message: Msg, stream_seq: int, frame: bytes, entry_hash: bytes, new_nodes: list[bytes], hub_ts: int
    ) -> Self:
        """The entry of a message at a place."""
        client = message.client_id, message.client_seq, message.prev_ack
        return cls(message.label, stream_seq, frame, entry_hash, new_nodes, *client, hub_ts)


@dataclass(slots=True)
class CommitGroup:
    """Entries in the order they were accepted, and the registry rows that they change."""

    records: list[AcceptedEntry] = field(default_factory=list)
    caps: dict[bytes, CapRow] = field(default_factory=dict)
    streams: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    buckets: dict[tuple[bytes, bytes], Bucket] = field(default_factory=dict)
    admin_events: dict[tuple[bytes, int], admin.Event] = field(default_factory=dict)  # by label and stream_seq
    epochs: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)  # stream_id and epoch of each label
    limits: LimitRegistry | None = None  # after the last event that lowered limits
    retention: RetentionRules | None = None  # after the last event that changed them
    ends: dict[bytes, int] = field(default_factory=dict)  # labels whose epoch ended, with their last entry

    size_bytes: int = 0  # of the entries in the journal, without the group header

    def add(self, record: AcceptedEntry) -> None:
        self.records.append(record)
        self.size_bytes += len(record.frame)

    def extend(self, later: "CommitGroup") -> None:
        """Add a group that was accepted after this one."""
        self.records += later.records
        self.size_bytes += later.size_bytes
        self.caps |= later.caps
        self.streams |= later.streams
        self.buckets |= later.buckets
        self.admin_events |= later.admin_events
        self.epochs |= later.epochs
        self.limits = later.limits or self.limits
        self.retention = later.retention or self.retention
        self.ends |= later.ends


@dataclass(slots=True)
class JournalTail(CommitGroup):
    """The entries that are only in the journal, also by label, for look-ups until the log has caught up."""

    group: int = 0  # the number of the last group
    labels: dict[bytes, list[AcceptedEntry]] = field(default_factory=dict)

    def add_group(self, group: CommitGroup, number: int) -> None:
        """Make a durable group visible to look-ups. Called on the owner's thread."""
        self.group = number
        self.extend(group)
        for record in group.records:
            records = self.labels.get(record.label)
            if records is None:
                self.labels[record.label] = [record]  # other threads read this: a list is never empty
            else:
                records.append(record)
