"""Closed chunks put into the form the registry says, after it was changed. Spec §4.8.4.

For each chunk: the new form, synced, folder synced; then the old form removed, folder synced. A crash in between leaves
a chunk in both forms, each of them whole.
"""

from pathlib import Path

from veen.storage import packed
from veen.storage.blocks import mapped, read_blocks
from veen.storage.directory import read_papers
from veen.storage.durable import Disk
from veen.storage.folders import ChunkName, Folders


def repack(disk: Disk, folders: Folders) -> None:
    """The caller holds the directory's lock, and has checked the log."""
    level = read_papers(folders).limits.chunk_zstd_level
    for path in sorted(folders.log.iterdir()):
        name = ChunkName.parse(path.name)
        if name is None or name.end_seq is None or name.packed == (level is not None):
            continue
        wanted = ChunkName(name.label, name.start_seq, name.end_seq, packed=level is not None)
        _write(disk, path, folders.log / wanted.file_name(), level)
        disk.sync_folder(folders.log)
        disk.unlink(path)
    disk.sync_folder(folders.log)


def _write(disk: Disk, source: Path, target: Path, level: int | None) -> None:
    """Where there are both, the compressed one is the one that was checked."""
    if level is None:
        disk.write_parts(target, (bytes(data) for data, _ in read_blocks(source)))
    elif not target.exists():
        disk.write_parts(target, packed.pack(mapped(source), level))
