"""Back up a data directory while a hub writes to it, incrementally, and erase pruned entries from older backups.

A backup folder has one folder for each backup, numbered, and beside it a statement of what it has:

    1. 000002.part, as a whole, synced         an earlier backup is untouched; the next run removes the part
    2. renamed to 000002                       a backup without a statement does not count
    3. 000002.json, synced                     the backup is complete
    4. older ones removed, statement first     as before step 2 for each of them

Closed chunks and attachments never change. A later backup links to those of the one before it and reads none of them.

An erasure reaches older backups if the caller wants it. Their files are names of files that others may share, so
nothing is written into them: names are added, replaced and removed. For each label of an older backup:

    1. links to the newest one's pruned chunks, synced   they are beside the chunks, and are ignored
    2. the newest one's manifest, synced                 the chunks count as pruned, but are still there
    3. chunks and older pruned chunks removed            the next run does the rest

An older backup that has pruned entries in its open chunk or its journal is removed: a newer one has all that it has.
"""

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.core import Malformed, Unavailable, Unverified, VeenError, strict_json
from veen.core.retention import Manifest, Segment
from veen.storage import (
    metadata,
    pruned_chunk,
    pruning,
)
from veen.storage.attachment_store import AttachmentStore
from veen.storage.chunk_reader import (
    ChunkFile,
    chunk_files,
)
from veen.storage.directory_copy import CopyCounts, DirectoryCopy
from veen.storage.lock import exclusive, is_held
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import PrunedChunk
from veen.storage.rebuild import Progress

FORMAT = 1
_PART = ".part"
_NUMBERED = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True, slots=True)
class BackupStatement:
    """The content of one backup, from the statement beside it."""

    path: Path
    hub_id: bytes
    made_at: int
    sizes: dict[bytes, tuple[int, bytes]]  # size and root of each label

    @property
    def entries(self) -> int:
        return sum(size for size, _ in self.sizes.values())

    def encode(self) -> bytes:
        labels: Any = [
            {"label": label.hex(), "size": n, "mmr_root": root.hex()} for label, (n, root) in self.sizes.items()
        ]
        made: dict[str, Any] = {"format": FORMAT, "hub_id": self.hub_id.hex(), "made_at": self.made_at}
        return strict_json.encode({**made, "entries": self.entries, "labels": labels}) + b"\n"


def backup(
    disk: Disk,
    source: Path,
    to: Path,
    now: int,
    *,
    keys: bool = False,
    keep: int = 1,
    prune: bool = False,
    progress: Progress | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> tuple[BackupStatement, CopyCounts]:
    """Add a backup to the folder `to`, and remove all but the newest `keep`. A hub may run on the source.

    With `prune`, whatever the hub has pruned is erased from the older backups, too. While a hub runs, `wait` is called
    with the seconds of each pause.

    Raises `Malformed` or `Unverified` if something in the source does not verify, and `Unavailable` if a file cannot be
    read or written. Earlier backups are kept then.
    """
    folders = Folders(source)
    try:
        disk.make_durable_folder(to, PRIVATE_FOLDER)
        with _one_at_a_time(to):
            made, counts = _backup(disk, folders, to, now, keys=keys, keep=keep, progress=progress, wait=wait)
            if prune:
                for older in statements(to)[:-1]:
                    _erase_from(disk, older, made, counts)
            return made, counts
    except OSError as error:
        raise Unavailable(f"the backup cannot be written: {error.strerror or error}") from error


@contextmanager
def _one_at_a_time(to: Path) -> Iterator[None]:
    lock = to / "lock"
    if is_held(lock):
        raise Unavailable(f"another backup to {to} is running")
    with exclusive(lock):
        yield


def _backup(
    disk: Disk,
    folders: Folders,
    to: Path,
    now: int,
    *,
    keys: bool,
    keep: int,
    progress: Progress | None,
    wait: Callable[[float], object],
) -> tuple[BackupStatement, CopyCounts]:
    earlier = statements(to)
    hub_id = _hub_id(folders)
    if earlier and earlier[-1].hub_id != hub_id:
        raise Unavailable(f"{to} has backups of hub {earlier[-1].hub_id.hex()[:16]}…, not of {hub_id.hex()[:16]}…")
    for left in (*to.glob(f"*{_PART}"), *(path for path in to.glob("[0-9]*") if _is_unstated(path))):
        disk.remove_tree(left)  # of an interrupted run
    number = int(earlier[-1].path.name) + 1 if earlier else 1
    part, final = to / f"{number:06d}{_PART}", to / f"{number:06d}"
    linked = Folders(earlier[-1].path) if earlier else None
    copy = DirectoryCopy(disk, folders, Folders(part), linked, keys=keys, wait=wait)
    try:
        sizes = copy.run(progress)
    except BaseException:
        disk.remove_tree(part)
        raise
    disk.sync_filesystem(part)
    disk.replace(part, final)
    disk.sync_folder(to)
    made = BackupStatement(final, hub_id, now, sizes)
    disk.write_file(to / f"{final.name}.json", made.encode(), PRIVATE_FILE)
    disk.sync_folder(to)
    for old in [*earlier, made][:-keep]:
        _remove(disk, old)
    return made, copy.counts


def _remove(disk: Disk, old: BackupStatement) -> None:
    disk.unlink(old.path.with_name(f"{old.path.name}.json"))
    disk.sync_folder(old.path.parent)
    disk.remove_tree(old.path)


def _erase_from(disk: Disk, older: BackupStatement, newest: BackupStatement, counts: CopyCounts) -> None:
    """Erase from an older backup what is pruned in the newest."""
    source, target = Folders(newest.path), Folders(older.path)
    identity = metadata.read_metadata(source).identity
    due: list[tuple[Manifest, list[Segment]]] = []
    chunks = chunk_files(target)
    for path in sorted(source.log.glob("manifest-*.cbor")):
        manifest = pruned_chunk.verified_manifest(source, identity, bytes.fromhex(path.stem.partition("-")[2]))
        assert manifest is not None, "its file was listed"
        label = manifest.label
        closed = {(one.start_seq, one.end_seq): one for one in chunks.get(label, ()) if one.end_seq is not None}
        pruned = [segment for segment in manifest.segments if segment.level]
        here = [one for one in pruned if (file := closed.get((one.start_seq, one.end_seq))) and _is_left(file, one)]
        later = [one for one in pruned if (one.start_seq, one.end_seq) not in closed]
        size, _ = older.sizes.get(label, (0, b""))
        # A manifest that says more than the backup has would prune entries that come after a restore.
        if any(one.start_seq <= size for one in later) or (here and later):
            _remove(disk, older)
            counts.removed.append(older.path.name)
            return
        if here:
            due.append((manifest, here))
    for manifest, segments in due:
        _erase_label(disk, source, target, manifest, segments)
    attachments = AttachmentStore(disk, target)
    known = AttachmentStore(disk, source).tombstones(identity, _raise)
    gone = [one for one in known if attachments.exists(one.coid)]
    for tombstone in gone:
        attachments.prune(tombstone)
    if due or gone:
        counts.pruned.append(older.path.name)


def _raise(error: VeenError) -> None:
    raise error


def _is_left(file: ChunkFile, segment: Segment) -> bool:
    """Whether a chunk of a backup has more than the manifest allows."""
    if not file.pruned:
        return True
    with PrunedChunk(file.path) as found:
        return found.level < segment.level


def _erase_label(disk: Disk, source: Folders, target: Folders, manifest: Manifest, segments: list[Segment]) -> None:
    label = manifest.label
    for one in segments:
        left = target.pruned_chunk(label, one.start_seq, one.end_seq)
        if not left.exists():
            _link_or_copy(disk, source.pruned_chunk(label, one.start_seq, one.end_seq), left)
    disk.sync_folder(target.log)
    disk.write_file(target.manifest(label), manifest.encode(), PRIVATE_FILE)
    disk.sync_folder(target.log)
    for one in segments:
        pruning.finish_segment(disk, target, label, one)
    disk.sync_folder(target.log)


def _link_or_copy(disk: Disk, path: Path, target: Path) -> None:
    try:
        disk.link(path, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
            raise
        disk.write_file(target, path.read_bytes(), PRIVATE_FILE)


def _hub_id(folders: Folders) -> bytes:
    try:
        return metadata.read_metadata(folders).identity.hub_id
    except (Malformed, Unverified):
        if not folders.rotation.exists():
            raise
        text = "a change of the hub's key is not finished: try again, or start the hub, which completes it"
        raise Unavailable(text) from None


def _is_unstated(path: Path) -> bool:
    return path.is_dir() and path.name.isdigit() and not path.with_name(f"{path.name}.json").exists()


def statements(to: Path) -> list[BackupStatement]:
    """The complete backups in a backup folder, oldest first."""
    found = []
    for path in sorted(to.glob("*.json")):
        if _NUMBERED.fullmatch(path.name) and path.with_suffix("").is_dir():
            found.append(_read_statement(path))
    return sorted(found, key=lambda one: int(one.path.name))


def _read_statement(path: Path) -> BackupStatement:
    try:
        read: Any = strict_json.decode(path.read_bytes(), path.name)
        if not isinstance(read, dict) or read.get("format") != FORMAT:
            raise Malformed(path.name, "a backup of another version of this program")
        sizes = {
            bytes.fromhex(row["label"]): (int(row["size"]), bytes.fromhex(row["mmr_root"])) for row in read["labels"]
        }
        return BackupStatement(path.with_suffix(""), bytes.fromhex(read["hub_id"]), int(read["made_at"]), sizes)
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(path.name, f"not the statement of a backup: {error}") from None


def newest(path: Path) -> Path:
    """The newest backup of a backup folder. Any other folder is returned as it is."""
    found = statements(path) if path.is_dir() and not Folders(path).identity.exists() else []
    return found[-1].path if found else path
