"""Accepted entries between admission and the log, with everything the index stores about them."""

from dataclasses import dataclass, field
from typing import Self

from veen.core import Bucket, Msg, admin

Cursor = tuple[int, int]  # client_seq, prev_ack
CapRow = tuple[bytes, int, int, bytes]  # label, stream_seq, issued_at, token


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

    size_bytes: int = 0  # of the entries in the journal, without the group header

    def add(self, record: AcceptedEntry) -> None:
        self.records.append(record)
        self.size_bytes += len(record.frame)

    def extend(self, later: "CommitGroup") -> None:
        self.records += later.records
        self.size_bytes += later.size_bytes
        self.caps |= later.caps
        self.streams |= later.streams
        self.buckets |= later.buckets
        self.admin_events |= later.admin_events
        self.epochs |= later.epochs


@dataclass(slots=True)
class JournalTail(CommitGroup):
    """The entries that are only in the journal, also by label, for look-ups until the log has caught up."""

    group: int = 0  # the number of the last group
    labels: dict[bytes, list[AcceptedEntry]] = field(default_factory=dict)

    def add_group(self, group: CommitGroup, number: int) -> None:
        self.extend(group)
        self.group = number
        for record in group.records:
            records = self.labels.get(record.label)
            if records is None:
                self.labels[record.label] = [record]  # other threads read this: a list is never empty
            else:
                records.append(record)
