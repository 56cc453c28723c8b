"""Verify tables against the log they were made from: find changed, missing and added rows.

Every leaf of `entries` is derived again, every root follows from the leaves before it, and the last root is the one
that the hub signed. `events` and `quarantine` together have one row per entry, with the values of that entry. With
reader keys, every row of both is also decoded again from the log; spans that the keys do not open are listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from veen.client.tree_follower import PrunedEntries
from veen.core import Malformed, Mmr, Receipt, Unverified, VeenError
from veen.core.msg import leaf_hash
from veen.pipeline import chunk_verifier, read_plan
from veen.pipeline.decoding import DecodedEntry, DecodedRows, Decoder, Keys
from veen.pipeline.decoding.decoder import QuarantineKind
from veen.pipeline.extents import explained
from veen.pipeline.read_plan import Piece
from veen.pipeline.selection import Selection
from veen.pipeline.sources import Chunk, ChunkSource, DirectoryChunks, open_source
from veen.pipeline.tables import layout
from veen.pipeline.tables.commit import CommitSpan, FileRef, TablesView
from veen.pipeline.tables.layout import COLUMNS, OWN, Table
from veen.pipeline.tables.store import Tables
from veen.pipeline.tables.table_load import found_in, known_streams, signed_at
from veen.storage.log_check import check_checkpoint
from veen.storage.metadata import HubMetadata

_SHARED = ("hub_ts", "client_id", "auth_ref", "mmr_root", "epoch")


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between the tables and the log."""

    where: str  # a table or a file
    what: str
    label: bytes | None = None
    stream_seq: int | None = None


@dataclass(slots=True)
class TablesVerified:
    """The result of verifying tables."""

    entries: int = 0
    events: int = 0
    quarantined: int = 0
    signed: list[CommitSpan] = field(default_factory=list)  # confirmed by a root that the hub signed
    unmatched: list[CommitSpan] = field(default_factory=list)  # of hubs that none of the sources belongs to
    unopened: list[CommitSpan] = field(default_factory=list)  # that the given keys do not open
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Log:
    source: ChunkSource
    metadata: HubMetadata
    chunks: tuple[Chunk, ...]


def verify(tables: Tables, selection: Selection, keys: Keys | None = None) -> TablesVerified:
    """Verify all tables. Differences are problems in the result, never exceptions."""
    layout.need_pyarrow()
    view, made = tables.view(), TablesVerified()
    made.problems += check_files(tables.root, view)
    logs = list(_logs(selection, view))
    for _, span in sorted(view.spans.items()):
        log = next((one for one in logs if one.metadata.identity.hub_id == span.hub_id), None)
        if log is None:
            made.unmatched.append(span)
            continue
        made.problems += _check_label(tables.root, view, span, log, made)
        if keys is not None:
            found, opened = _check_decoded(tables.root, view, span, log, selection, keys)
            made.problems += found
            if not opened:
                made.unopened.append(span)
    return made


def _logs(selection: Selection, view: TablesView) -> Iterator[_Log]:
    for path in selection.paths:
        source = open_source(path)
        metadata = read_plan.pinned(source.metadata(), selection.pin)
        hub_id = metadata.identity.hub_id
        labels = frozenset(label for label, span in view.spans.items() if span.hub_id == hub_id)
        chunks = source.chunks(labels) if labels else []
        if isinstance(source, DirectoryChunks):
            chunks = explained(source, metadata, chunks)
        yield _Log(source, metadata, tuple(chunks))


def check_files(root: Path, view: TablesView) -> Iterator[Problem]:
    """Files that changed since their commit, and files of no commit."""
    for file in view.files.values():
        try:
            data = (root / file.path).read_bytes()
        except OSError:
            yield Problem(file.path, "the file is missing", file.label, file.first)
            continue
        if sha256(data).digest() != file.sha256:
            yield Problem(file.path, "its bytes differ from those committed", file.label)
    for path in sorted(root.rglob("*.parquet")):
        name = str(path.relative_to(root))
        if not name.startswith(OWN) and name not in view.files:
            yield Problem(name, "the file belongs to no commit")


def _check_label(root: Path, view: TablesView, span: CommitSpan, log: _Log, made: TablesVerified) -> Iterator[Problem]:
    """Verify one label from its first entry to its last."""
    broken = {row["stream_seq"]: row for row in _rows(root, view, Table.QUARANTINE, span, where="unverified")}
    tree, ends = Mmr(), {chunk.end_seq for chunk in log.chunks if chunk.label == span.label and chunk.closed}
    walk = _EntryTree(span, log, tree, broken)
    for row in _rows(root, view, Table.ENTRIES, span):
        made.entries += 1
        yield from walk.take(row, ends)
    yield from walk.finish()
    receipt = signed_at(log.source, log.metadata, log.chunks, span.label, span.last)
    if receipt is None:
        yield Problem(Table.ENTRIES, "the log ends before this entry", span.label, span.last)
    elif tree.size != span.last or tree.root() != receipt.mmr_root:
        yield Problem(Table.ENTRIES, "its rows do not yield the root that the hub signed", span.label, span.last)
    else:
        made.signed.append(span)
    if receipt is not None and span.mmr_root is not None and span.mmr_root != receipt.mmr_root:
        yield Problem(OWN, "the root in the tables differs from the hub's", span.label, span.last)
    yield from _check_one_row_per_entry(root, view, span, made)


class _EntryTree:
    """The rows of `entries` of one label, added to a tree in order."""

    def __init__(self, span: CommitSpan, log: _Log, tree: Mmr, broken: dict[int, dict[str, Any]]) -> None:
        self._span, self._log, self._tree, self._broken = span, log, tree, broken
        self._profile_id = log.metadata.profile.profile_id()

    def take(self, row: dict[str, Any], ends: set[int]) -> Iterator[Problem]:
        seq, label = row["stream_seq"], self._span.label
        if seq is None or row["label"] != label or seq > self._span.last or seq <= self._tree.size:
            yield Problem(Table.ENTRIES, "an extra row", label, seq)
            return
        yield from self._pass(seq)
        derived = leaf_hash(label, self._profile_id, row["ct_hash"], row["client_id"], row["client_seq"])
        before = self._tree.copy()
        self._tree.append(derived)
        if derived == row["leaf_hash"] and self._tree.root() == row["mmr_root"]:
            if seq in ends:
                yield from self._check_checkpoint(seq)
            return
        receipt = signed_at(self._log.source, self._log.metadata, self._log.chunks, label, seq)
        if isinstance(receipt, Receipt):  # continue with the signed leaf, so that one changed row is one problem
            self._tree.size, self._tree.peaks = before.size, before.peaks
            self._tree.append(receipt.leaf_hash)
        yield Problem(Table.ENTRIES, "the row differs from the entry in the log", label, seq)

    def _pass(self, seq: int) -> Iterator[Problem]:
        """Places without a row before this one. Damaged entries have their leaf in quarantine."""
        for missing in range(self._tree.size + 1, seq):
            known = self._broken.get(missing)
            leaf = known["msg_id"] if known else None
            if known is None:
                receipt = signed_at(self._log.source, self._log.metadata, self._log.chunks, self._span.label, missing)
                leaf = receipt.leaf_hash if isinstance(receipt, Receipt) else None
                yield Problem(Table.ENTRIES, "the row is missing", self._span.label, missing)
            self._tree.append(leaf or bytes(32))

    def finish(self) -> Iterator[Problem]:
        yield from self._pass(self._span.last + 1)

    def _check_checkpoint(self, seq: int) -> Iterator[Problem]:
        """At the end of a closed chunk, the checkpoint must sign the same root."""
        source, metadata, label = self._log.source, self._log.metadata, self._span.label
        chunk = next(one for one in self._log.chunks if one.label == label and one.end_seq == seq)
        if isinstance(source, DirectoryChunks):
            try:
                signed = source.artifact(chunk_verifier.artifact_names(chunk)[2])
                check_checkpoint(signed, metadata, label, seq, self._tree.root())
            except (Malformed, Unverified) as error:
                yield Problem(Table.ENTRIES, f"the checkpoint of the log does not match: {error}", label, seq)


def _check_one_row_per_entry(root: Path, view: TablesView, span: CommitSpan, made: TablesVerified) -> Iterator[Problem]:
    """Every entry has exactly one row in events or quarantine, with the same values."""
    for file in _files(view, Table.ENTRIES, span):
        entries = {row["stream_seq"]: row for row in _within(root, view, Table.ENTRIES, span, file.first, file.last)}
        seen: set[int] = set()
        for table in (Table.EVENTS, Table.QUARANTINE):
            for row in _within(root, view, table, span, file.first, file.last):
                seq = row["stream_seq"]
                made.events += table is Table.EVENTS
                made.quarantined += table is Table.QUARANTINE
                entry = entries.get(seq)
                unverified = table is Table.QUARANTINE and row["kind"] == "unverified"
                if seq in seen or (entry is None) != unverified:
                    yield Problem(table, "an extra row", span.label, seq)
                elif entry is not None and _differs(entry, row):
                    yield Problem(table, "the row does not match the entry at its place", span.label, seq)
                seen.add(seq)
        for seq in sorted(entries.keys() - seen):
            yield Problem(Table.EVENTS, "the row is missing", span.label, seq)


def _differs(entry: dict[str, Any], row: dict[str, Any]) -> bool:
    return row["msg_id"] != entry["leaf_hash"] or any(row[name] != entry[name] for name in _SHARED)


def _check_decoded(
    root: Path, view: TablesView, span: CommitSpan, log: _Log, selection: Selection, keys: Keys
) -> tuple[list[Problem], bool]:
    """Decode every row of events and quarantine again from the log. Also returns whether the keys open any entry.

    Rows of entries that were pruned or that the keys do not open cannot be compared and are no problem.
    """
    streams = known_streams(log.source, log.metadata, log.chunks, selection, keys)
    decoder, opened, closed = Decoder(streams, keys), False, False
    certain, of_sealed = list[Problem](), list[Problem]()
    for first, last, entries in _kept_entries(log, span):
        rows = DecodedRows()
        for found in entries:
            decoder.add(found, rows)
        sealed = {row.stream_seq for row in rows.quarantine if row.kind == QuarantineKind.SEALED}
        opened, closed = opened or len(sealed) < len(rows.entries), closed or bool(sealed)
        for problem in _compared(root, view, span, (first, last), rows):
            (of_sealed if problem.stream_seq in sealed else certain).append(problem)
    return [*certain, *of_sealed] if opened else certain, opened or not closed


def _kept_entries(log: _Log, span: CommitSpan) -> Iterator[tuple[int, int, list[DecodedEntry]]]:
    """The entries of a span by range, without those that were pruned."""
    for chunk in log.chunks:
        last = min(chunk.end_seq, span.last)
        if chunk.label != span.label or chunk.pruned:
            continue
        piece = Piece(log.source.url, span.hub_id, chunk, chunk.start_seq, last)
        while piece.first <= piece.last:
            found: list[DecodedEntry] = []
            try:
                for one in found_in(log.source, log.metadata, piece):
                    found.append(one)
            except PrunedEntries as pruned:
                yield piece.first, pruned.first - 1, found
                piece = piece.after(pruned.tombstone.segment.end_seq)
            else:
                yield piece.first, piece.last, found
                break


def _compared(
    root: Path, view: TablesView, span: CommitSpan, bounds: tuple[int, int], rows: DecodedRows
) -> Iterator[Problem]:
    for table, expected in ((Table.EVENTS, rows.events), (Table.QUARANTINE, rows.quarantine)):
        made = {row.stream_seq: row._asdict() for row in expected}
        for row in _within(root, view, table, span, *bounds):
            decoded = made.pop(row["stream_seq"], None)
            if decoded == row:
                continue
            if row.get("kind") == QuarantineKind.SEALED and (
                decoded is None or decoded["kind"] != QuarantineKind.SEALED
            ):
                what = "the entry opens with these keys; rebuild the tables to decode it"
            elif decoded is None:
                what = "the row differs from the decoded entry"
            else:
                names = ", ".join(name for name in COLUMNS[table] if decoded[name] != row[name])
                what = f"the row differs from the decoded entry in: {names}"
            yield Problem(table, what, span.label, row["stream_seq"])


def _files(view: TablesView, table: Table, span: CommitSpan) -> list[FileRef]:
    found = (file for file in view.of(table) if file.label == span.label)
    return sorted(found, key=lambda file: file.first)


def _rows(
    root: Path, view: TablesView, table: Table, span: CommitSpan, where: str | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a label, file by file. Rows of an unreadable file count as missing."""
    for file in _files(view, table, span):
        rows = sorted(_read(root, file), key=lambda row: row["stream_seq"] or 0)
        yield from (row for row in rows if where is None or row["kind"] == where)


def _within(
    root: Path, view: TablesView, table: Table, span: CommitSpan, first: int, last: int
) -> Iterator[dict[str, Any]]:
    for file in _files(view, table, span):
        if file.first <= last and first <= file.last:
            yield from (row for row in _read(root, file) if first <= (row["stream_seq"] or 0) <= last)


def _read(root: Path, file: FileRef) -> Sequence[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # The folder names in its path are not columns of the file.
        data = (root / file.path).read_bytes()
        found: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data), schema=layout.schema(file.table)).to_pylist()
    except (OSError, pa.ArrowException, VeenError):
        return ()  # check_files reports the file
    return found
