"""Check a data directory without reading its chunks: everything that is missing was pruned, and the hub signed for it.

The binding names the end of every closed chunk. Each must exist, or the signed manifest of its label must say that it
was pruned and what replaced it. The events of the control stream must explain the manifests: each pruned row names the
`Prune` that was logged before it. So a row that was removed or changed is noticed by the signature, an earlier manifest
by the chunk that it does not explain, or if that was put back too, by the logged event; a range without manifest by the
binding. A label is not missed if all its files and its rows in the binding are gone; `veen fsck` compares the index,
clients and witnesses what they know.

`veen fsck` also compares what is left of the chunks with the manifests, byte by byte.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from veen.core import Receipt, VeenError, control_stream, naming
from veen.core.recovery import RecoveredLog
from veen.core.retention import Level, Prune, Segment
from veen.storage import checkpoint_files, chunk_reader, journal, pruned_chunk, safe_open
from veen.storage.frame import LogEntry
from veen.storage.log_check import check_checkpoint
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import Folders


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """The result for one label, or for the statement of a recovery that cannot be used."""

    label: bytes  # empty for a statement
    segments: int
    pruned: int
    without_receipts: int
    entries: int  # whose payload was pruned
    unfinished: int  # logged prunes that the manifest does not have: interrupted, or the manifest is an earlier one
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _LoggedPrune:
    event: Prune
    stream_seq: int
    hub_ts: int


def check_manifests(root: Path) -> list[CheckedManifest]:
    """Every label with a manifest, a logged prune or a fault."""
    folders = Folders(root)
    hub_metadata = read_metadata(folders)
    bound = checkpoint_files.read_binding(folders)
    ends: dict[bytes, list[int]] = defaultdict(list)
    for row in bound.checkpoints if bound else ():
        ends[row.label].append(row.upto_seq)
    logged: dict[bytes, list[_LoggedPrune]] = defaultdict(list)
    sizes: dict[int, int] = {}
    recoveries, invalid = _recoveries(folders, hub_metadata)
    for prune in _logged_prunes(folders, hub_metadata, sizes):
        logged[prune.event.label].append(prune)
    named = {bytes.fromhex(path.stem.partition("-")[2]) for path in folders.log.glob("manifest-*.cbor")}
    checked = (
        _LabelCheck(folders, hub_metadata, label, ends.get(label, []), logged.get(label, []), sizes, recoveries).run()
        for label in sorted(named | ends.keys() | logged.keys())
    )
    return invalid + [one for one in checked if one.segments or one.unfinished or one.faults]


def _recoveries(folders: Folders, hub_metadata: HubMetadata) -> tuple[list[RecoveredLog], list[CheckedManifest]]:
    """The statements of recoveries that verify, and a fault for each other one, which explains nothing."""
    found, invalid = [], []
    for path in sorted(folders.recoveries.glob("recovery-*.cbor")):
        try:
            one = RecoveredLog.decode(safe_open.read(path))
            one.statement.verify(hub_metadata.identity)
            found.append(one)
        except (OSError, VeenError) as error:
            fault = f"{path.relative_to(folders.root)}: {error}"
            invalid.append(CheckedManifest(b"", 0, 0, 0, 0, 0, (fault,)))
    return found, invalid


def _logged_prunes(folders: Folders, hub_metadata: HubMetadata, sizes: dict[int, int]) -> Iterator[_LoggedPrune]:
    """The prunes on the control stream, in the log and in the journal. Sets the size of each epoch in `sizes`."""
    hub_id, limits = hub_metadata.identity.hub_id, hub_metadata.limits
    control = naming.control_stream(hub_id)
    for entry in _control_entries(folders, hub_metadata):
        receipt = Receipt.decode(entry.receipt)
        epoch = hub_metadata.profile.epoch(receipt.hub_ts)
        if entry.label != naming.label(hub_metadata.identity.routing_key, control, epoch):
            continue  # of the origin of a fork
        if entry.stream_seq <= sizes.get(epoch, 0):
            continue  # the log and the journal may both have it
        sizes[epoch] = entry.stream_seq
        event = control_stream.event_of(hub_id, entry.open()[0], limits)
        if isinstance(event, Prune):
            yield _LoggedPrune(event, entry.stream_seq, receipt.hub_ts)


def _control_entries(folders: Folders, hub_metadata: HubMetadata) -> Iterator[LogEntry]:
    files = chunk_reader.chunk_files(folders)
    for label in chunk_reader.control_labels(hub_metadata, files):
        for entry, _ in chunk_reader.read_log(files[label], None):
            assert isinstance(entry, LogEntry), "control streams are never pruned"
            yield entry
    for found in journal.read(folders.journal, journal.first_group(folders.journal) - 1):
        if not isinstance(found, journal.Torn):
            for entry in found[1]:
                if hub_metadata.control_hub(entry.label, Receipt.decode(entry.receipt).hub_ts) is not None:
                    yield entry


@dataclass(frozen=True, slots=True)
class _LabelCheck:
    folders: Folders
    hub_metadata: HubMetadata
    label: bytes
    ends: list[int]  # of its closed chunks
    logged: list[_LoggedPrune]
    control_sizes: dict[int, int]  # of the control stream, by epoch
    recoveries: list[RecoveredLog]

    def run(self) -> CheckedManifest:
        try:
            manifest = pruned_chunk.verified_manifest(self.folders, self.hub_metadata.identity, self.label)
        except (OSError, VeenError) as error:
            return CheckedManifest(self.label, 0, 0, 0, 0, 0, (str(error),))
        segments = manifest.segments if manifest else ()
        pruned = {(one.start_seq, one.end_seq): one for one in segments if one.level}
        ranges = [(before + 1, end) for before, end in pairwise([0, *self.ends])]
        faults = [fault for one in ranges if (fault := self._fault(*one, pruned.get(one)))]
        if not pruned.keys() <= set(ranges):
            faults.append("the checkpoint binding lacks chunks that the manifest calls pruned")
        entries = sum(end - start + 1 for start, end in pruned)
        bare = sum(one.level == Level.RECEIPTS for one in pruned.values())
        unfinished = sum(not _is_done(one.event, segments) for one in self.logged)
        return CheckedManifest(self.label, len(segments), len(pruned), bare, entries, unfinished, tuple(faults))

    def _fault(self, start: int, end: int, segment: Segment | None) -> str | None:
        """The fault of a closed chunk, if any. `segment` is its row if the manifest says that it was pruned.

        Rows of whole chunks are not compared: after a restore from a backup, other chunks may be at their places.
        """
        chunk, left = (
            folder(self.label, start, end) for folder in (self.folders.closed_chunk, self.folders.pruned_chunk)
        )
        if segment is None:
            if chunk.exists() or self.folders.open_chunk(self.label, start).exists():  # a hub may be closing it
                return None
            return f"entries {start} to {end} are missing, and no manifest says that they were pruned"
        if not self._is_logged(segment):
            return f"entries {start} to {end} were pruned without an event on the control stream"
        try:
            signed = safe_open.read(self.folders.checkpoint(self.label, end))
            check_checkpoint(signed, self.hub_metadata, self.label, end, segment.mmr_root_end)
            if not chunk.exists():
                with pruned_chunk.PrunedChunk(left) as found:
                    if found.root != segment.mmr_root_end or found.level > segment.level:
                        return f"{left.name} does not match the manifest"
        except (OSError, VeenError) as error:
            return f"entries {start} to {end}: {error}"
        return None

    def _is_logged(self, segment: Segment) -> bool:
        """Whether the event that a pruned row names was logged for it, or is not in this copy of the log.

        An older backup gets the manifest of the hub, which may name events that the backup does not have. If a hub was
        restored from that backup, the statement of the restore says where its control stream ended.
        """
        seq, at = segment.event_seq, segment.pruned_at
        assert seq is not None
        assert at is not None
        identity, epoch = self.hub_metadata.identity, self.hub_metadata.profile.epoch(at)
        if seq > self.control_sizes.get(epoch, 0):
            return True
        for one in self.logged:
            if (one.stream_seq, one.hub_ts) == (seq, at):
                event = one.event
                covers = event.start_seq <= segment.start_seq and segment.end_seq <= event.end_seq
                return covers and event.level >= segment.level
        control = naming.label(identity.routing_key, naming.control_stream(identity.hub_id), epoch)
        return any(
            at <= one.statement.recovery.recovered_at
            and seq > next((row.size for row in one.labels if row.label == control), 0)
            for one in self.recoveries
        )


def _is_done(event: Prune, segments: tuple[Segment, ...]) -> bool:
    """Whether a manifest has everything that an event announced."""
    inside = [one for one in segments if one.end_seq >= event.start_seq and one.start_seq <= event.end_seq]
    return bool(inside) and inside[-1].end_seq >= event.end_seq and all(one.level >= event.level for one in inside)
