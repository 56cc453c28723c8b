"""The one way to open for reading what stands in a data directory. Writing is `durable`'s.

A directory may come from anywhere: out of an archive, from another machine, from someone who means harm. So nothing in
it may lead out of it, keep its reader waiting or fill his memory: links are not followed, nothing but files is read,
and of a file no more than one of its name can hold. The directory itself may be reached through a link, since that is
the operator's own word; only what is inside is held to this.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from veen.core import Malformed, Unavailable, limits
from veen.storage.paths import Folders

# Without NONBLOCK, opening a FIFO waits for its other end; on files it changes nothing.
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_ROOM = 1024  # for what stands around a list
_ROW_BYTES = 128  # of a checkpoint index or binding: two hashes and a key id, and integers of nine bytes
_CHECKPOINT = _ROOM + 128 * limits.MAX_WITNESS_SIGS
_MAX_METADATA_FILE = _ROOM + 1024 * limits.MAX_HUB_KEYS
_ORIGIN = _ROOM + limits.MAX_ORIGINS * (_MAX_METADATA_FILE + limits.MAX_ORIGIN_LABELS * _CHECKPOINT)

# What a name is of, and how many bytes such a file can have. The order counts: the first that matches is taken.
_KINDS = {
    r"hub-[a-z-]+\.(?:json|sig)|(?:limits|profile)\.json": _MAX_METADATA_FILE,
    r"hub-identity\.next": 2 * _MAX_METADATA_FILE,  # a record and its signature
    r".+\.seed": _ROOM,
    r"origin\.cbor": _ORIGIN,
    r"checkpoint-binding\.cbor": _ROOM + _ROW_BYTES * limits.MAX_BOUND_CHECKPOINTS,
    r"checkpoint-index-.+\.cbor": _ROOM + _ROW_BYTES * limits.MAX_CHUNKS_PER_LABEL,
    r"checkpoint-.+\.cbor|[0-9a-f]{64}-\d+\.cbor": _CHECKPOINT,  # also the keys of its witnesses
    r"peaks-.+\.cbor": _ROOM + 64 * limits.MAX_PEAKS,
    r".+\.summary|equivocation-.+\.cbor": _ROOM,
    r".+\.wal": 1 << 33,  # where it is full a group comes on top, whose length has 32 bits
    r".+\.log(?:\.zst)?": 2 * limits.MAX_CHUNK_BYTES,  # what does not compress becomes longer
    r".+\.mmr": 1 << 63,  # 32 bytes for every node, and read one by one
    r"[0-9a-f]{64}": limits.MAX_ATTACHMENT_BYTES,
}
_NAME = re.compile("|".join(f"({names})" for names in _KINDS))
_MOST = tuple(_KINDS.values())
_SHARDS = re.compile(r"[0-9a-f]{2}")


def read(path: Path) -> bytes:
    """All of a file. Raises `Malformed` where it is none of its kind, an `OSError` where it cannot be read."""
    with open(open_file(path), "rb", buffering=0) as file:
        try:
            return file.readall()
        except MemoryError:
            raise Unavailable(f"{path.name} has more bytes than there is memory for") from None


def open_file(path: Path) -> int:
    """A descriptor for reading a file. Raises as `read` does."""
    try:
        fd = os.open(path, os.O_RDONLY | SAFELY)
    except OSError as error:
        raise as_malformed(path.name, error) or error from None
    try:
        found = os.fstat(fd)
        check(path.name, found.st_mode, stat.S_IFREG)
        most = most_bytes(path.name)
        if found.st_size > most:
            raise Malformed(path.name, f"it has {found.st_size} bytes, and at most {most} are possible")
    except BaseException:
        os.close(fd)
        raise
    return fd


def most_bytes(name: str) -> int:
    """How large a file of that name can be."""
    found = _NAME.fullmatch(name)
    if found is None or found.lastindex is None:
        raise ValueError(f"no file of a data directory that is read is called {name}")
    return _MOST[found.lastindex - 1]


def is_file(path: Path) -> bool:
    """Whether a file stands there, and not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_file(path: Path) -> None:
    """Raise `Malformed` where something stands there that is no file. For what others open by its path."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    check(path.name, mode, stat.S_IFREG)


def check_folders(folders: Folders) -> None:
    """Raise `Malformed` where a place of the directory leads elsewhere. Looks at places only, so it takes no time."""
    for path, what in misplaced(folders):
        raise Malformed(str(path.relative_to(folders.root)), what)


def listed(folder: Path) -> list[Path]:
    """What is in a folder, in order; nothing where it is a link, or none."""
    return [] if _other_than(folder, stat.S_IFDIR) or not folder.is_dir() else sorted(folder.iterdir())


def misplaced(folders: Folders) -> Iterator[tuple[Path, str]]:
    """What should be a folder, or the file that faults are noted in, and is none, with what is wrong with it."""
    wrong: set[Path] = set()
    shards = (folders.attachments / name for name in _shard_names(folders.attachments))
    for path in (*folders.inner(), *shards):
        if path.parent not in wrong and (what := _other_than(path, stat.S_IFDIR)):
            wrong.add(path)
            yield path, what
    if what := _other_than(folders.fault, stat.S_IFREG):
        yield folders.fault, what


def check(name: str, mode: int, wanted: int) -> None:
    """Raise `Malformed` where a mode is not that of a file or folder, whichever is wanted."""
    if stat.S_IFMT(mode) != wanted:
        raise Malformed(name, _wrong(mode, wanted))


def as_malformed(name: str, error: OSError) -> Malformed | None:
    """What the system says of a link that is not followed, and of a socket, in the words used here."""
    if error.errno == errno.ELOOP:
        return Malformed(name, _wrong(stat.S_IFLNK, stat.S_IFREG))
    return Malformed(name, _wrong(stat.S_IFSOCK, stat.S_IFREG)) if error.errno == errno.ENXIO else None


def _other_than(path: Path, wanted: int) -> str | None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None  # what is missing, or cannot be looked at, is for others to tell
    return None if stat.S_IFMT(mode) == wanted else _wrong(mode, wanted)


def _wrong(mode: int, wanted: int) -> str:
    what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "something else"
    return f"it is {what}, not a {'file' if wanted == stat.S_IFREG else 'folder'}"


def _shard_names(attachments: Path) -> list[str]:
    """The folders that attachments are in: at most 256 and what does not belong there, told apart without a look."""
    if _other_than(attachments, stat.S_IFDIR):
        return []
    try:
        with os.scandir(attachments) as found:
            return sorted(
                one.name for one in found if _SHARDS.fullmatch(one.name) and not one.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []
