"""The journal's part of a log: entries that are durable there and not in a chunk yet. On this machine only."""

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
    """The journal of one directory, against its log."""

    def __init__(self, source: DirectoryChunks, root: Path, hub_metadata: HubMetadata) -> None:
        self._source = source
        self._folder = Folders(root).journal
        self._root = root
        self._hub_metadata = hub_metadata
        self._hashed: tuple[Chunk, list[bytes]] | None = None
        self._judges: dict[bytes, EntryVerifier | None] = {}
        self.first: dict[bytes, int] = {}  # the first entry of each label that the journal has
        self.sizes: dict[bytes, int] = {}
        self.entries = 0

    def check(self, labels: dict[bytes, list[ChainLink]]) -> Iterator[Finding]:
        """Every group is sound, is what the log has, and goes on where the log ends."""
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
                Severity.LEFTOVER, artifact, f"group {torn.group} was never finished, and never acknowledged"
            )
        return Finding(Severity.DAMAGED, artifact, f"the bytes of group {torn.group}, its last, are not those written")

    def _entry(self, artifact: str, entry: LogEntry, labels: dict[bytes, list[ChainLink]]) -> Iterator[Finding]:
        label, seq = entry.label, entry.stream_seq
        size = self.sizes.get(label, 0)
        self.first.setdefault(label, seq)
        if seq > size + 1:
            yield Finding(Severity.DAMAGED, artifact, f"it follows entry {size} of its label", label, seq)
        elif seq <= size:
            logged = self._logged(labels[label], seq) if label not in self._judges else None
            if logged != entry.entry_hash:
                yield Finding(Severity.DAMAGED, artifact, "the log does not have it there", label, seq)
        else:
            judge = self._judge(label, labels.get(label, []))
            for failure in judge.judge(entry, b"")[1] if judge else ():
                yield Finding(Severity.DAMAGED, artifact, f"{failure.check}: {failure}", label, seq)
            self.sizes[label] = seq
            self.entries += 1

    def _judge(self, label: bytes, links: list[ChainLink]) -> EntryVerifier | None:
        """The judge of what comes after the log; None where the log does not say where that is."""
        if label not in self._judges:
            if links and not links[-1].outcome.sound:
                self._judges[label] = None
            else:
                tree = Mmr(links[-1].piece.last, links[-1].outcome.peaks) if links else Mmr()
                clock = links[-1].outcome.hub_ts if links else None
                made = EntryVerifier(self._hub_metadata, label, tree, clock[1] if clock else 0, None)
                for link in links:
                    made.cursors |= {who: (run.last_seq, run.last_ack) for who, run in link.outcome.clients.items()}
                self._judges[label] = made
        return self._judges[label]

    def _logged(self, links: list[ChainLink], seq: int) -> bytes | None:
        """The hash of what the log has there."""
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
            return  # which those who judge the chunk have said
