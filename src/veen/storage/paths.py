"""Names and paths in a data directory. Spec §4.8.3, §8.4."""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

INDEX_DRAFT = "index.draft"  # an index that is being built
_WIDTH = 20
_CHUNK = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(?:(\d{20})\.log(\.zst)?|open\.log)")
_PRUNED = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(\d{20})\.pruned")
_PATHS = {
    "log": "log",
    "index": "{index}",
    "nodes": "{index}/nodes",
    "journal": "journal",
    "journal_mark": "journal.mark",
    "attachments": "attachments",
    "attachment_drafts": "attachments/drafts",
    "uploads": "uploads",
    "keys": "keys",
    "evidence": "evidence",
    "witnesses": "witnesses",
    "requested": "requested",
    "handovers": "handovers",
    "lock": "lock",
    "identity": "hub-identity.json",
    "rotation": "hub-identity.next",
    "root_request": "root-request.json",
    "identity_sig": "hub-identity.sig",
    "key_map": "hub-key-map.json",
    "binding": "checkpoint-binding.cbor",
    "origin": "origin.cbor",
    "fault": "fault.txt",
    "clock": "hub-clock.json",
    "recoveries": "recoveries",
    "recovery_pending": "recoveries/pending",
    "limits": "limits.json",
    "limit_history": "limit-history.json",
    "profile": "profile.json",
    "admission": "admission.json",
    "format": "format.json",
    "scrub": "scrub.json",
}


@dataclass(frozen=True, slots=True)
class Folders:
    """The paths in one data directory."""

    root: Path
    index_name: str = "index"
    # Folders, computed once: every file of a label is below one of these.
    log: Path = field(init=False)
    index: Path = field(init=False)
    nodes: Path = field(init=False)
    journal: Path = field(init=False)
    attachments: Path = field(init=False)
    attachment_drafts: Path = field(init=False)  # uploads in progress
    uploads: Path = field(init=False)  # the labels of attachments, and tombstones; missing in older directories
    keys: Path = field(init=False)
    evidence: Path = field(init=False)
    witnesses: Path = field(init=False)  # the keys of the witnesses that signed checkpoints
    requested: Path = field(init=False)  # checkpoints between the regular ones, and the newest that was cosigned
    handovers: Path = field(init=False)  # what the log contained at each change of the key
    # Files.
    lock: Path = field(init=False)
    identity: Path = field(init=False)
    journal_mark: Path = field(init=False)  # which segments of the journal must exist
    rotation: Path = field(init=False)  # the new identity of an unfinished key rotation
    root_request: Path = field(init=False)  # a request to the root that has no answer yet
    identity_sig: Path = field(init=False)
    key_map: Path = field(init=False)
    binding: Path = field(init=False)
    origin: Path = field(init=False)  # the identity and checkpoints of the hub that this one was forked from
    fault: Path = field(init=False)  # faults of the index, recorded so that the next start rebuilds it
    clock: Path = field(init=False)  # the last wall clock time that the hub or its operator trusted
    recoveries: Path = field(init=False)  # statements of recoveries, and what was moved out of the journal
    recovery_pending: Path = field(init=False)  # exists while a recovery is not finished
    limits: Path = field(init=False)
    limit_history: Path = field(init=False)  # the limit registry of a hub whose limits were lowered
    profile: Path = field(init=False)
    admission: Path = field(init=False)  # missing in older directories
    format: Path = field(init=False)  # which versions can use the directory; missing in older ones
    scrub: Path = field(init=False)  # position of the background scrubber; may be deleted

    def __post_init__(self) -> None:
        for name, path in _PATHS.items():
            object.__setattr__(self, name, self.root / path.format(index=self.index_name))

    def inner(self) -> tuple[Path, ...]:
        """All folders inside, parents first."""
        draft = self.root / INDEX_DRAFT
        index = (self.index, self.nodes, draft, draft / self.nodes.name)
        kept = (self.keys, self.journal, self.log, self.attachments, self.attachment_drafts)
        return (
            *kept,
            *index,
            self.uploads,
            self.evidence,
            self.witnesses,
            self.requested,
            self.recoveries,
            self.handovers,
        )

    def open_chunk(self, label: bytes, start_seq: int) -> Path:
        return self.log / f"chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-open.log"

    def open_chunk_size(self, label: bytes, start_seq: int) -> int:
        """0 if it is missing. Called for every label at a start, where building a `Path` would dominate."""
        try:
            found = os.lstat(f"{self.root}/log/chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-open.log")
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def closed_chunk(self, label: bytes, start_seq: int, end_seq: int) -> Path:
        """The closed chunk, compressed or plain; the plain path if neither exists."""
        plain = self.log / ChunkName(label, start_seq, end_seq).file_name()
        packed = self.log / ChunkName(label, start_seq, end_seq, packed=True).file_name()
        return packed if packed.exists() and not plain.exists() else plain

    def closed_chunk_from(self, label: bytes, start_seq: int) -> Path | None:
        """The closed chunk that starts there, if its end is unknown."""
        for path in self.log.glob(f"chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-*"):
            name = ChunkName.parse(path.name)
            if name and name.end_seq is not None:
                return path
        return None

    def pruned_chunk(self, label: bytes, start_seq: int, end_seq: int) -> Path:
        """The file that replaces a chunk after it was pruned."""
        return self.log / f"chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-{end_seq:0{_WIDTH}d}.pruned"

    def manifest(self, label: bytes) -> Path:
        """The closed chunks of a label, with those that were pruned."""
        return self.log / f"manifest-{label.hex()}.cbor"

    def summary(self, label: bytes, start_seq: int, end_seq: int) -> Path:
        return self.log / f"chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-{end_seq:0{_WIDTH}d}.summary"

    def peaks(self, label: bytes, upto_seq: int) -> Path:
        return self.log / f"peaks-{label.hex()}-{upto_seq:0{_WIDTH}d}.cbor"

    def checkpoint(self, label: bytes, upto_seq: int) -> Path:
        return self.log / f"checkpoint-{label.hex()}-{upto_seq:0{_WIDTH}d}.cbor"

    def requested_checkpoint(self, label: bytes, upto_seq: int) -> Path:
        """A checkpoint that was made because someone asked for it."""
        return self.requested / self.checkpoint(label, upto_seq).name

    def newest_cosigned(self, label: bytes) -> Path:
        """A copy of the newest checkpoint of a label with the signature of a witness."""
        return self.requested / f"cosigned-{label.hex()}.cbor"

    def witnesses_of(self, label: bytes, upto_seq: int) -> Path:
        return self.witnesses / f"{label.hex()}-{upto_seq:0{_WIDTH}d}.cbor"

    def lost_receipt(self, label: bytes) -> Path:
        """A receipt of this hub for an entry that its log lacks."""
        return self.evidence / f"lost-{label.hex()}.cbor"

    def recovery(self, new_key_id: bytes) -> Path:
        return self.recoveries / f"recovery-{new_key_id.hex()[:16]}.cbor"

    def recovery_logged(self, new_key_id: bytes) -> Path:
        """A mark: the statement is on the control stream."""
        return self.recovery(new_key_id).with_suffix(".logged")

    def handover(self, old_key_id: bytes) -> Path:
        return self.handovers / f"{old_key_id.hex()[:16]}.cbor"

    def handover_rows(self, old_key_id: bytes) -> Path:
        return self.handovers / f"{old_key_id.hex()[:16]}.rows"

    def handover_nodes(self, old_key_id: bytes) -> Path:
        return self.handovers / f"{old_key_id.hex()[:16]}.mmr"

    def handover_logged(self, old_key_id: bytes) -> Path:
        """A mark: the hand-over is on the control stream."""
        return self.handovers / f"{old_key_id.hex()[:16]}.logged"

    def final_checkpoint(self, label: bytes, upto_seq: int) -> Path:
        """The last checkpoint of a label whose epoch was over when the key changed."""
        return self.handovers / self.checkpoint(label, upto_seq).name

    def checkpoint_index(self, label: bytes) -> Path:
        return self.log / f"checkpoint-index-{label.hex()}.cbor"

    def node_file(self, label: bytes) -> Path:
        return self.nodes / f"{label.hex()}.mmr"

    def attachment(self, coid: bytes) -> Path:
        return self.attachments / coid.hex()[:2] / coid.hex()

    def upload(self, coid: bytes) -> Path:
        """The label of an attachment."""
        return self.uploads / f"{coid.hex()}.cbor"

    def attachment_tombstone(self, coid: bytes) -> Path:
        """The signed statement that an attachment was deleted."""
        return self.uploads / f"{coid.hex()}.tombstone"


@dataclass(frozen=True, slots=True, order=True)
class ChunkName:
    """The fields of a chunk's file name."""

    label: bytes
    start_seq: int
    end_seq: int | None  # None while it is open
    packed: bool = False

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """None if the name is not that of a chunk."""
        found = _CHUNK.fullmatch(name)
        if not found:
            return None
        label, start, end, packed = found.groups()
        return cls(bytes.fromhex(label), int(start), None if end is None else int(end), packed is not None)

    def file_name(self) -> str:
        end = "open" if self.end_seq is None else f"{self.end_seq:0{_WIDTH}d}"
        return f"chunk-{self.label.hex()}-{self.start_seq:0{_WIDTH}d}-{end}.log{'.zst' if self.packed else ''}"


def pruned_range(name: str) -> tuple[bytes, int, int] | None:
    """`(label, start_seq, end_seq)` of the name of a pruned chunk; None if it is another name."""
    found = _PRUNED.fullmatch(name)
    return (bytes.fromhex(found[1]), int(found[2]), int(found[3])) if found else None
