"""Check the journal of a data directory: entries that are durable there and not yet in a chunk. Local files only."""

from collections.abc import Iterator
from pathlib import Path

from veen.core import Malformed, Mmr
from veen.pipeline.audit.chain import ChainLink
from veen.pipeline.extents import journal_groups
from veen.pipeline.sources import Chunk, DirectoryChunks
from veen.storage import frame, journal
from veen.storage.entry_check import EntryVerifier
from veen.storage.frame import LogEntry
from veen.storage.fsck_report import Finding, Severity
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders


class JournalTail:
    """The journal of one directory, compared with its log."""

    def __init__(self, source: DirectoryChunks, root: Path, metadata: HubMetadata) -> None:
        self._source = source
        self._folder = Folders(root).journal
        self._root = root
        self._metadata = metadata
        self._hashed: tuple[Chunk, list[bytes]] | None = None
        self._verifiers: dict[bytes, EntryVerifier | None] = {}
        self.first: dict[bytes, int] = {}  # first journal entry of each label
        self.sizes: dict[bytes, int] = {}
        self.entries = 0

    def check(self, labels: dict[bytes, list[ChainLink]]) -> Iterator[Finding]:
        """Every group is intact, matches the log where both have the entry, and continues where the log ends."""
        self.sizes = {label: links[-1].piece.last for label, links in labels.items()}
        try:
            for found in journal_groups(self._folder):
                if isinstance(found, journal.Torn):
                    yield self._torn(found)
                    continue
                for entry in found[1]:
                    yield from self._entry(f"journal, group {found[0]}", entry, labels)
        except Malformed as error:
            yield Finding(Severity.DAMAGED, "journal", str(error))

    def _torn(self, torn: journal.Torn) -> Finding:
        artifact = str(torn.path.relative_to(self._root))
        if torn.cut_short:
            return Finding(
                Severity.LEFTOVER, artifact, f"group {torn.group} is an unfinished write that was never acknowledged"
            )
        return Finding(Severity.DAMAGED, artifact, f"group {torn.group}, its last, does not match its checksum")

    def _entry(self, artifact: str, entry: LogEntry, labels: dict[bytes, list[ChainLink]]) -> Iterator[Finding]:
        label, seq = entry.label, entry.stream_seq
        size = self.sizes.get(label, 0)
        self.first.setdefault(label, seq)
        if seq > size + 1:
            yield Finding(Severity.DAMAGED, artifact, f"it does not follow entry {size} of its label", label, seq)
        elif seq <= size:
            logged = self._logged(labels[label], seq) if label not in self._verifiers else None
            if logged != entry.entry_hash:
                yield Finding(Severity.DAMAGED, artifact, "the log has another entry at this place", label, seq)
        else:
            verifier = self._verifier_of(label, labels.get(label, []))
            for failure in verifier.judge(entry, b"")[1] if verifier else ():
                yield Finding(Severity.DAMAGED, artifact, f"{failure.check}: {failure}", label, seq)
            self.sizes[label] = seq
            self.entries += 1

    def _verifier_of(self, label: bytes, links: list[ChainLink]) -> EntryVerifier | None:
        """The verifier for entries after the log; None if the end of the log is unknown."""
        if label not in self._verifiers:
            if links and not links[-1].outcome.sound:
                self._verifiers[label] = None
            else:
                tree = Mmr(links[-1].piece.last, links[-1].outcome.peaks) if links else Mmr()
                clock = links[-1].outcome.hub_ts if links else None
                made = EntryVerifier(self._metadata, label, tree, clock[1] if clock else 0, None)
                for link in links:
                    made.cursors |= {who: (run.last_seq, run.last_ack) for who, run in link.outcome.clients.items()}
                self._verifiers[label] = made
        return self._verifiers[label]

    def _logged(self, links: list[ChainLink], seq: int) -> bytes | None:
        """The hash of the entry that the log has at this place."""
        chunk = next((link.piece.chunk for link in links if link.piece.first <= seq <= link.piece.last), None)
        if chunk is None:
            return None
        if self._hashed is None or self._hashed[0] != chunk:
            self._hashed = chunk, list(self._hashes(chunk))
        at = seq - chunk.start_seq
        return self._hashed[1][at] if at < len(self._hashed[1]) else None

    def _hashes(self, chunk: Chunk) -> Iterator[bytes]:
        try:
            for data, begin in self._source.blocks(chunk):
                pos = begin
                while pos < len(data):
                    entry, pos = frame.read_unhashed(data, pos)
                    yield entry.entry_hash
        except Malformed:
            return  # the audit of the chunk reports it
