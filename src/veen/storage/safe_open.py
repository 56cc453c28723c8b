"""Opens files of a data directory for reading. Writing is in `plumbing.durable`.

A data directory may come from an archive, another machine or an attacker. Its content must not lead out of the
directory, block the reader or exhaust memory: links are not followed, only regular files are read, and each file name
has a maximum size. The path of the directory itself may contain links, because the operator chose it.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from veen.core import Malformed, Unavailable, limits
from veen.storage.paths import Folders

# Without NONBLOCK, opening a FIFO blocks until its other end is opened. It has no effect on regular files.
SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_OVERHEAD_BYTES = 1024  # for the fields around a list
_ROW_BYTES = 128  # row of a checkpoint index or binding: two hashes, a key id, and integers of nine bytes
_CHECKPOINT = _OVERHEAD_BYTES + 128 * limits.MAX_WITNESS_SIGS
_MAX_METADATA_FILE = _OVERHEAD_BYTES + 1024 * limits.MAX_HUB_KEYS
_ORIGIN = _OVERHEAD_BYTES + limits.MAX_ORIGINS * (_MAX_METADATA_FILE + limits.MAX_ORIGIN_LABELS * _CHECKPOINT)

# Name patterns with the maximum size of such a file. The first match counts.
_KINDS = {
    r"hub-[a-z-]+\.(?:json|sig)|(?:limits|profile|admission|root-request)\.json": _MAX_METADATA_FILE,
    r"(?:limit-history|scrub|format)\.json": _MAX_METADATA_FILE,
    r"hub-identity\.next": 2 * _MAX_METADATA_FILE,  # a record and its signature
    r".+\.seed": _OVERHEAD_BYTES,
    r"origin\.cbor": _ORIGIN,
    r"checkpoint-binding\.cbor": _OVERHEAD_BYTES + _ROW_BYTES * limits.MAX_BOUND_CHECKPOINTS,
    r"checkpoint-index-.+\.cbor": _OVERHEAD_BYTES + _ROW_BYTES * limits.MAX_CHUNKS_PER_LABEL,
    r"(?:checkpoint|cosigned)-.+\.cbor|[0-9a-f]{64}-\d+\.cbor": _CHECKPOINT,  # also the keys of its witnesses
    r"[0-9a-f]{16}\.cbor": _OVERHEAD_BYTES,  # a hand-over
    r"[0-9a-f]{64}\.(?:cbor|tombstone)": _OVERHEAD_BYTES,  # of an attachment
    r"[0-9a-f]{16}\.rows": 1 << 40,  # 72 bytes per label, read one by one
    r"peaks-.+\.cbor": _OVERHEAD_BYTES + 64 * limits.MAX_PEAKS,
    r".+\.summary|(?:equivocation|lost)-.+\.cbor": _OVERHEAD_BYTES,
    r"pending": _OVERHEAD_BYTES,
    r"recovery-.+\.cbor": _OVERHEAD_BYTES + _ROW_BYTES * limits.MAX_RECOVERED_LABELS,
    r".+\.mark": _OVERHEAD_BYTES + 512,  # three blocks
    r".+\.wal": 1 << 33,  # a full segment plus one group, whose length has 32 bits
    r".+\.log(?:\.zst)?": 2 * limits.MAX_CHUNK_BYTES,  # incompressible data grows
    r".+\.pruned": 2 * limits.MAX_CHUNK_BYTES,
    r"manifest-.+\.cbor": _OVERHEAD_BYTES + 2 * _ROW_BYTES * limits.MAX_CHUNKS_PER_LABEL,
    r".+\.mmr": 1 << 63,  # 32 bytes per node, read one by one
    r"[0-9a-f]{64}": limits.MAX_ATTACHMENT_BYTES,
}
_NAME = re.compile("|".join(f"({names})" for names in _KINDS))
_MAX_SIZES = tuple(_KINDS.values())
_SHARDS = re.compile(r"[0-9a-f]{2}")


def read(path: Path) -> bytes:
    """Read a whole file. Raises `Malformed` if it is not a regular file or too large, `OSError` if it is unreadable."""
    with open(open_file(path), "rb", buffering=0) as file:
        try:
            return file.readall()
        except MemoryError:
            raise Unavailable(f"{path.name} does not fit in memory") from None


def open_file(path: Path) -> int:
    """A descriptor for reading. Raises as `read` does."""
    try:
        fd = os.open(path, os.O_RDONLY | SAFE_FLAGS)
    except OSError as error:
        raise as_malformed(path.name, error) or error from None
    try:
        found = os.fstat(fd)
        check(path.name, found.st_mode, stat.S_IFREG)
        max_size = max_bytes(path.name)
        if found.st_size > max_size:
            raise Malformed(path.name, f"it has {found.st_size} bytes; the maximum is {max_size}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def max_bytes(name: str) -> int:
    """The maximum size of a file of that name."""
    found = _NAME.fullmatch(name)
    if found is None or found.lastindex is None:
        raise ValueError(f"{name} is not a file name of a data directory")
    return _MAX_SIZES[found.lastindex - 1]


def is_file(path: Path) -> bool:
    """Whether the path is a regular file, and not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_file(path: Path) -> None:
    """Raise `Malformed` if the path exists and is not a regular file. For files that a library opens by path."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    check(path.name, mode, stat.S_IFREG)


def check_folders(folders: Folders) -> None:
    """Raise `Malformed` if a folder of the directory is not a folder. Fast, because it checks only fixed paths."""
    for path, what in misplaced(folders):
        raise Malformed(str(path.relative_to(folders.root)), what)


def list_folder(folder: Path) -> list[Path]:
    """The content of a folder, sorted; empty if it is a link or not a folder."""
    return [] if _type_error(folder, stat.S_IFDIR) or not folder.is_dir() else sorted(folder.iterdir())


def misplaced(folders: Folders) -> Iterator[tuple[Path, str]]:
    """Paths that should be a folder, or the fault file, and are something else, with a description."""
    wrong: set[Path] = set()
    shards = (folders.attachments / name for name in _shard_names(folders.attachments))
    for path in (*folders.inner(), *shards):
        if path.parent not in wrong and (what := _type_error(path, stat.S_IFDIR)):
            wrong.add(path)
            yield path, what
    if what := _type_error(folders.fault, stat.S_IFREG):
        yield folders.fault, what


def check(name: str, mode: int, wanted: int) -> None:
    """Raise `Malformed` if the mode is not of the wanted type."""
    if stat.S_IFMT(mode) != wanted:
        raise Malformed(name, _wrong_type(mode, wanted))


def as_malformed(name: str, error: OSError) -> Malformed | None:
    """Translate the errno for a link or a socket that was not opened."""
    if error.errno == errno.ELOOP:
        return Malformed(name, _wrong_type(stat.S_IFLNK, stat.S_IFREG))
    return Malformed(name, _wrong_type(stat.S_IFSOCK, stat.S_IFREG)) if error.errno == errno.ENXIO else None


def _type_error(path: Path, wanted: int) -> str | None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None  # missing or unreadable paths are reported elsewhere
    return None if stat.S_IFMT(mode) == wanted else _wrong_type(mode, wanted)


def _wrong_type(mode: int, wanted: int) -> str:
    what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "something else"
    return f"{what}, not a {'file' if wanted == stat.S_IFREG else 'folder'}"


def _shard_names(attachments: Path) -> list[str]:
    """Attachment folders that are not folders: at most 256 names, found in one listing."""
    if _type_error(attachments, stat.S_IFDIR):
        return []
    try:
        with os.scandir(attachments) as found:
            return sorted(
                one.name for one in found if _SHARDS.fullmatch(one.name) and not one.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []
