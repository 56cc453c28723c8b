"""A data directory as a source. Every signature, place and root is verified; nothing in the directory is trusted."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import TypeVar

from veen.client import ClientDir
from veen.client import evidence as files
from veen.client.evidence import Evidence, Exhibit, Opening, Tie
from veen.client.reader import Entry as ReadEntry
from veen.client.reader import Opener
from veen.client.trust import HubRecord
from veen.core import DhKey, Malformed, Mmr, Msg, Receipt, Unavailable, Unverified, VeenError, naming, proof
from veen.core.hub_identity import ForkOrigin
from veen.core.mmr import NodeReader, peaks_at
from veen.core.proof import Leaf
from veen.overlays import At
from veen.overlays.kept_fold import LogPrefix
from veen.state.entry_source import PAGE, NoEntry
from veen.storage import journal, safe_open
from veen.storage.chunk_reader import read_blocks
from veen.storage.directory_reader import ChunkRef, LogReader
from veen.storage.entry_check import EntryVerifier
from veen.storage.frame import LogEntry, length_at
from veen.storage.frame import read as read_frame
from veen.storage.paths import Folders

T = TypeVar("T")

_READ_ATTEMPTS = 3  # a running hub moves entries from the journal to chunks between two reads


class DirectoryLog:
    """The frames of one data directory in order, not verified. Reads chunk files and journal only, not the index.

    A hub writes to its journal first, so an entry that is incomplete in an open chunk is still in the journal. An entry
    that is in neither is damage and raises `Malformed`.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._journal: dict[bytes, dict[int, LogEntry]] | None = None

    def labels(self) -> set[bytes]:
        """All labels with at least one entry."""
        return {ref.label for ref in self._chunks()} | self._journalled().keys()

    def first(self, label: bytes) -> LogEntry | None:
        return next(self.entries(label, 1), None)

    def entry(self, label: bytes, stream_seq: int) -> LogEntry | None:
        return next(self.entries(label, stream_seq), None)

    def entries(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        """The entries of a label from `from_seq` to the end of chunks and journal. Raises `Malformed` if damaged."""
        seq = from_seq
        for attempt in range(_READ_ATTEMPTS):
            damage = None
            try:
                for entry in self._from_chunks(label, seq):
                    yield entry
                    seq += 1
            except Malformed as error:
                damage = error
            for entry in self._from_journal(label, seq):
                yield entry
                seq, damage = seq + 1, None
            if damage is None and not self._journal_reaches(label, seq):
                return
            if attempt == _READ_ATTEMPTS - 1:
                raise damage or Malformed("log", f"entry {seq} is missing, but the journal has later entries")
            self._journal = None

    def _from_chunks(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        seq = from_seq
        refs = _distinct(self._chunks(label))
        for ref, next_ref in zip_longest(refs, refs[1:]):
            if next_ref is not None and next_ref.start_seq <= seq:
                continue
            if ref.start_seq > seq:
                raise Malformed(
                    "log", f"expected entry {seq}, found {ref.path.name}, which starts with entry {ref.start_seq}"
                )
            for entry in _entries(ref, seq):
                if (entry.label, entry.stream_seq) != (label, seq):
                    found = f"entry {entry.stream_seq}{'' if entry.label == label else ' of another label'}"
                    raise Malformed("log", f"expected entry {seq} in {ref.path.name}, found {found}")
                yield entry
                seq += 1
            if ref.end_seq is not None and ref.end_seq >= seq:
                raise Malformed("log", f"{ref.path.name} ends with entry {seq - 1}, expected {ref.end_seq}")

    def _chunks(self, label: bytes | None = None) -> list[ChunkRef]:
        return _with_retries(lambda: self._reader.chunks(label))

    def _journalled(self) -> dict[bytes, dict[int, LogEntry]]:
        if self._journal is None:
            self._journal = _with_retries(self._read_journal)
        return self._journal

    def _read_journal(self) -> dict[bytes, dict[int, LogEntry]]:
        found: dict[bytes, dict[int, LogEntry]] = {}
        folder = self._reader.folders.journal
        segments = journal.segments(folder) if folder.is_dir() else []
        for group in journal.read(folder, segments[0][0] - 1) if segments else ():
            if isinstance(group, journal.Torn):
                if not group.cut_short:
                    raise Malformed("journal", f"the last group, {group.group}, is complete but corrupt")
                continue  # incomplete, as after a crash
            for entry in group[1]:
                found.setdefault(entry.label, {})[entry.stream_seq] = entry
        return found

    def _from_journal(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        known, seq = self._journalled().get(label, {}), from_seq
        while seq in known:
            yield known[seq]
            seq += 1

    def _journal_reaches(self, label: bytes, seq: int) -> bool:
        return max(self._journalled().get(label, {0: None})) >= seq


def _entries(ref: ChunkRef, from_seq: int) -> Iterator[LogEntry]:
    """The entries of a chunk from `from_seq` on. Earlier frames are skipped by their length fields.

    This reads only those bytes of an open chunk that were there when it was listed, even if it was closed since.
    """
    path, left = ref.path, ref.size if ref.end_seq is None else None
    if not path.exists():
        path = Folders(path.parents[1]).closed_chunk_from(ref.label, ref.start_seq) or path
    seq = ref.start_seq
    for data, pos in read_blocks(path):
        while pos < len(data) and left != 0:
            start = pos
            if seq < from_seq:
                pos += length_at(data, pos)
            else:
                entry, pos = read_frame(data, pos)
                yield entry
            left = None if left is None else max(0, left - (pos - start))
            seq += 1


def _distinct(refs: list[ChunkRef]) -> list[ChunkRef]:
    """One file per start. If a chunk exists twice, prefer the closed file, which is complete."""
    chosen: dict[int, ChunkRef] = {}
    for ref in refs:
        if ref.end_seq is None and not ref.size:
            continue  # created but still empty
        known = chosen.get(ref.start_seq)
        if known is None or known.end_seq is None or (ref.end_seq is not None and ref.path.suffix == ".zst"):
            chosen[ref.start_seq] = ref
    return [chosen[start] for start in sorted(chosen)]


def _with_retries(read: Callable[[], T]) -> T:
    """Retry a read, because a running hub may move files while they are read."""
    for left in reversed(range(_READ_ATTEMPTS)):
        try:
            return read()
        except OSError as error:
            if not left:
                raise Unavailable(f"{error.filename or 'the log'} cannot be read: {error.strerror}") from None
        except Malformed:
            if not left:
                raise
    raise AssertionError("unreachable")


class DirectorySource:
    """One data directory, for one reader. A hub may be writing to it."""

    may_lag = True

    def __init__(self, root: Path, folder: ClientDir, pin: bytes | None = None) -> None:
        """Open a data directory. `pin` is the id of its hub or the fingerprint of one of its keys.

        Raises if the hub metadata is not consistent, or does not match the hub that this client knows by that id.
        """
        if not root.is_dir():
            raise Unavailable(f"no data directory at {root}")
        self._reader = LogReader(root)
        self.root = root
        self.folder = folder
        metadata = self._reader.hub_metadata
        identity = metadata.identity
        identity.verify(metadata.signature, identity.hub_id if pin is None else pin)
        metadata.lineage.verify(metadata.profile)
        origin = ForkOrigin.decode(safe_open.read(self._reader.folders.origin)) if identity.origin else None
        self.known = HubRecord(identity, metadata.signature, metadata.profile, metadata.limits, origin)
        self._check_known(folder)
        self._log = DirectoryLog(self._reader)
        self._now = 0

    def now(self) -> int:
        """The latest hub_ts read so far. Hub time never decreases, so later entries are not older."""
        return self._now

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        return naming.label(self.known.identity.routing_key, stream_id, epoch)

    def key(self, stream_id: bytes) -> DhKey | None:
        return self.folder.stream_keys.secret(stream_id)

    async def epochs(self, stream_id: bytes, first: int | None) -> Sequence[int]:
        """Found from the labels of the files and the hub_ts of each label's first entry."""
        profile = self.known.profile
        if not profile.epoch_sec:
            return (0,)
        found = []
        for label in self._log.labels():
            frame = self._log.first(label)
            if frame is not None:
                hub_ts = frame.open()[1].hub_ts
                self._now = max(self._now, hub_ts)
                around = profile.epochs_around(hub_ts, self.known.limits.max_epoch_skew_sec)
                found += [epoch for epoch in around if self.label(stream_id, epoch) == label]
        return sorted(epoch for epoch in found if first is None or epoch >= first)

    async def read(self, stream_id: bytes, epoch: int, after: Mmr) -> AsyncGenerator[list[ReadEntry], None]:
        label, opener = self.label(stream_id, epoch), Opener(self.key(stream_id))
        verified = self._verified(label, after)
        while page := [opener.entry(epoch, *both) for both in islice(verified, PAGE)]:
            self._now = max(self._now, page[-1].hub_ts)
            yield page

    def _verified(self, label: bytes, after: Mmr) -> Iterator[tuple[Msg, Receipt]]:
        """Messages and receipts, checked against the rules, the hub's keys and the roots this client has seen."""
        metadata, tree = self._reader.hub_metadata, Mmr(after.size, after.peaks)
        last_ts = self._time_of(label, after.size)
        verifier = EntryVerifier(metadata, label, tree, last_ts, None if after.size else lambda client_id: None)
        seen = self.folder.state.label(self.known.identity.hub_id, label)
        at_fork = metadata.lineage.checkpoint(label)
        for frame in self._log.entries(label, after.size + 1):
            opened, faults = verifier.judge(frame, b"")
            what = f"entry {frame.stream_seq}"
            if faults or opened is None:
                raise Unverified(what, "; ".join(faults))
            root = verifier.tree.root()
            if at_fork is not None and at_fork.upto_seq == frame.stream_seq and at_fork.mmr_root != root:
                raise Unverified(what, "the log up to here differs from what the origin of the fork signed")
            if seen is not None and seen.size == frame.stream_seq and seen.root != root:
                raise Unverified(what, "the hub showed this client another log up to here than this directory has")
            yield opened[1], opened[2]

    def _time_of(self, label: bytes, stream_seq: int) -> int:
        """The signed hub_ts of an entry, which later ones must not precede; 0 if the entry can no longer be read."""
        with suppress(VeenError):
            frame = self._log.entry(label, stream_seq) if stream_seq else None
            return self._signed(frame)[1].hub_ts if frame is not None else 0
        return 0

    async def root_at(self, stream_id: bytes, prefix: LogPrefix) -> bytes | None:
        if self.label(stream_id, prefix.epoch) != prefix.label:
            return None
        frame = self._log.entry(prefix.label, prefix.upto_seq)
        return None if frame is None else self._signed(frame)[1].mmr_root

    async def receipt(self, stream_id: bytes, at: At) -> Receipt:
        frame = self._log.entry(self.label(stream_id, at.epoch), at.stream_seq)
        if frame is None:
            raise NoEntry(f"the directory has no entry {at.stream_seq} of this stream")
        return self._signed(frame)[1]

    def tree_at(self, stream_id: bytes, at: At) -> Mmr:
        """The tree after a place, from which `read` can continue.

        It is not verified: `read` checks every later root.
        """
        label = self.label(stream_id, at.epoch)
        try:
            return Mmr(at.stream_seq, self._reader.peaks(label, at.stream_seq))
        except (VeenError, OSError, EOFError, ValueError):
            return Mmr(at.stream_seq, peaks_at(self._nodes(label, at.stream_seq), at.stream_seq))

    async def evidence(
        self, stream_id: bytes, places: Sequence[At], ends: Sequence[At], claim: str, key: DhKey
    ) -> Evidence:
        """Uses the receipt at each end instead of a checkpoint, because the hub's key is not available here."""
        heads = {end.epoch: await self.receipt(stream_id, end) for end in ends}
        statements, ties, exhibits = [*heads.values()], [], []
        for epoch, group in groupby(places, lambda place: place.epoch):
            head, label = heads[epoch], self.label(stream_id, epoch)
            found = [self._signed(self._needed(label, place.stream_seq)) for place in group]
            shown = self._proofs(label, [receipt for _, receipt in found], head)
            for (message, receipt), path in zip(found, shown, strict=True):
                statements.append(receipt)
                ties.append(Tie(label, receipt.stream_seq, head.stream_seq, path))
                exhibits.append(Exhibit(receipt.stream_seq, message, Opening.of(key, message)))
        return files.make_evidence(self.known, claim, statements, ties=ties, exhibits=exhibits)

    def _proofs(self, label: bytes, receipts: Sequence[Receipt], head: Receipt) -> list[proof.MmrProof]:
        """Proofs from the node file if it is intact, otherwise from the entries."""
        try:
            return [_checked(self._reader.prove(label, one.stream_seq, head.stream_seq), one, head) for one in receipts]
        except (VeenError, OSError, EOFError, ValueError):
            nodes = self._nodes(label, head.stream_seq)
            return [_checked(proof.prove(nodes, one.stream_seq, head.stream_seq), one, head) for one in receipts]

    def _nodes(self, label: bytes, size: int) -> NodeReader:
        tree, nodes = Mmr(), list[bytes]()
        for frame in islice(self._log.entries(label, 1), size):
            nodes += tree.append(frame.open()[1].leaf_hash)
        return nodes.__getitem__

    def _needed(self, label: bytes, stream_seq: int) -> LogEntry:
        frame = self._log.entry(label, stream_seq)
        if frame is None:
            raise Unavailable(f"the directory has no entry {stream_seq} of this stream")
        return frame

    def _signed(self, frame: LogEntry) -> tuple[Msg, Receipt]:
        """Open an entry and verify the signatures of client and hub."""
        message, receipt = frame.open()
        message.verify_signature()
        self._reader.hub_metadata.identity_at(receipt.label, receipt.stream_seq).verify_receipt(receipt)
        return message, receipt

    def _check_known(self, folder: ClientDir) -> None:
        """Raise unless the hub keys equal, extend or are a prefix of those that this client knows."""
        kept = folder.state.hub(self.known.identity.hub_id)
        if kept is not None:
            known, shown = HubRecord.decode(kept).identity, self.known.identity
            older, newer = (known, shown) if len(shown.hub_keys) >= len(known.hub_keys) else (shown, known)
            newer.check_follows(older)


def _checked(shown: proof.MmrProof, receipt: Receipt, head: Receipt) -> proof.MmrProof:
    proof.verify_inclusion(shown, Leaf.of(receipt), head)
    return shown
