"""Check the manifests of a data directory: everything that is missing was pruned, and the hub signed for it.

No chunk is read. `veen fsck` also compares what is left of the chunks with the manifests, byte by byte.
"""

from dataclasses import dataclass
from pathlib import Path

from veen.core import VeenError
from veen.core.retention import Level, Segment
from veen.storage import pruned_chunk, safe_open
from veen.storage.chunk_reader import chunk_files
from veen.storage.log_check import check_checkpoint
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import Folders


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """The result for one label."""

    label: bytes
    segments: int
    pruned: int
    without_receipts: int
    entries: int  # whose payload was pruned
    faults: tuple[str, ...]


def check_manifests(root: Path) -> list[CheckedManifest]:
    """Every manifest of a directory, by label."""
    folders = Folders(root)
    hub_metadata = read_metadata(folders)
    labels = [bytes.fromhex(path.stem.partition("-")[2]) for path in sorted(folders.log.glob("manifest-*.cbor"))]
    chunks = chunk_files(folders)
    ends = {label: max((one.end_seq or 0 for one in chunks.get(label, ())), default=0) for label in labels}
    return [_checked(folders, hub_metadata, label, ends[label]) for label in labels]


def _checked(folders: Folders, hub_metadata: HubMetadata, label: bytes, end: int) -> CheckedManifest:
    try:
        manifest = pruned_chunk.verified_manifest(folders, hub_metadata.identity, label)
    except (OSError, VeenError) as error:
        return CheckedManifest(label, 0, 0, 0, 0, (str(error),))
    assert manifest is not None, "its file was listed"
    # The manifest of an older backup, or of a log that was restored from one, may list later chunks than it has.
    here = [one for one in manifest.segments if one.level or one.start_seq <= end]
    faults = [fault for one in here if (fault := _fault(folders, hub_metadata, label, one))]
    pruned = [one for one in manifest.segments if one.level]
    entries = sum(one.end_seq - one.start_seq + 1 for one in pruned)
    bare = sum(one.level == Level.RECEIPTS for one in pruned)
    return CheckedManifest(label, len(manifest.segments), len(pruned), bare, entries, tuple(faults))


def _fault(folders: Folders, hub_metadata: HubMetadata, label: bytes, segment: Segment) -> str | None:
    start, end = segment.start_seq, segment.end_seq
    chunk, left = folders.closed_chunk(label, start, end), folders.pruned_chunk(label, start, end)
    if not chunk.exists() and not (segment.level and left.exists()):
        return f"entries {start} to {end} are missing, and the manifest does not say that they were pruned"
    try:
        signed = safe_open.read(folders.checkpoint(label, end))
        check_checkpoint(signed, hub_metadata, label, end, segment.mmr_root_end)
        if segment.level and not chunk.exists():
            with pruned_chunk.PrunedChunk(left) as found:
                if found.root != segment.mmr_root_end or found.level > segment.level:
                    return f"{left.name} does not match the manifest"
    except (OSError, VeenError) as error:
        return f"entries {start} to {end}: {error}"
    return None
