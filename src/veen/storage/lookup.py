"""Look-ups over everything a running hub has: the log, and the entries that are only in the journal.

Thread-safe: the tails are read first, so everything that is not in them is in the log by then.
"""

from collections.abc import Iterator

from veen.core import MmrProof, Unavailable, mmr, proof
from veen.storage import frame
from veen.storage.commit_group import AcceptedEntry, JournalTail
from veen.storage.directory_reader import read_entries
from veen.storage.frame import LogEntry
from veen.storage.store import Store
from veen.storage.tree_nodes import NodeFile


class Lookup:
    """Reads of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def size(self, label: bytes) -> int:
        """The last stream_seq of a label; 0 if it has no entries."""
        for tail in self._store.tails():
            records = tail.labels.get(label)
            if records:
                return records[-1].stream_seq
        with self._store.index.read() as rows:
            head = rows.head(label)
        return head.size if head else 0

    def entries(self, label: bytes, from_seq: int, to_seq: int) -> Iterator[LogEntry]:
        """The entries of a range that exist, in order."""
        tails = [tail for tail in reversed(self._store.tails()) if label in tail.labels]
        first_pending = tails[0].labels[label][0].stream_seq if tails else to_seq + 1
        if from_seq < first_pending:
            yield from read_entries(
                self._store.folders, self._store.index, label, from_seq, min(to_seq, first_pending - 1)
            )
        for tail in tails:
            records = tail.labels[label]
            start = max(from_seq - records[0].stream_seq, 0)
            stop = max(to_seq - records[0].stream_seq + 1, 0)
            for record in records[start:stop]:
                yield _entry(record)

    def entry(self, label: bytes, stream_seq: int) -> LogEntry | None:
        return next(self.entries(label, stream_seq, stream_seq), None)

    def prove(self, label: bytes, stream_seq: int, size: int) -> MmrProof:
        """The proof that an entry is among the first `size`."""
        with _Nodes(self._store, label) as nodes:
            return proof.prove(nodes.read, stream_seq, size)

    def root(self, label: bytes, size: int) -> bytes:
        """The root of the label's tree at that size."""
        with _Nodes(self._store, label) as nodes:
            return mmr.root_of(mmr.peaks_at(nodes.read, size))


class _Nodes:
    """The tree nodes of a label, from the node file and the tails."""

    def __init__(self, store: Store, label: bytes) -> None:
        self._tails = [tail for tail in store.tails() if label in tail.labels]
        self._label = label
        try:
            self._file: NodeFile | None = NodeFile(store.folders.node_file(label))
        except FileNotFoundError:
            self._file = None

    def __enter__(self) -> "_Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.__exit__()

    def read(self, position: int) -> bytes:
        for tail in self._tails:
            found = _node_in(tail, self._label, position)
            if found:
                return found
        if self._file is None:
            raise Unavailable(f"the tree nodes of {self._label.hex()[:16]}… are missing")
        return self._file.read(position)


def _node_in(tail: JournalTail, label: bytes, position: int) -> bytes | None:
    """The node at a position, if an entry of the tail created it."""
    records = tail.labels[label]
    first = records[0].stream_seq - 1
    if position < mmr.node_count(first):
        return None
    low, high = 0, len(records) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if mmr.node_count(first + middle) <= position:
            low = middle
        else:
            high = middle - 1
    at = position - mmr.node_count(first + low)
    new_nodes = records[low].new_nodes
    return new_nodes[at] if at < len(new_nodes) else None


def _entry(record: AcceptedEntry) -> LogEntry:
    entry, _ = frame.read(record.frame)
    return entry
