"""Imports bundles from a watched folder.

A file under its final name is complete: exporters write it under another name first. Processed files are moved aside,
so the folder shows what is left to import. A crash between the import and the move is harmless, because the next run
recognizes the bundle as imported.

A path that has a bundle's name but can never be one (a directory, a pipe, a file that is too long) does not block
others: it sorts last and is moved aside too. The operator sees the reason; there are no bytes to log.
"""

import errno
import os
import secrets
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from veen.bridge import bundle as bundles
from veen.bridge.bundle import SUFFIX, BundleCode, BundleFault
from veen.bridge.bundle_import import Importer, ImportOutcome
from veen.client.local_files import DISK, named
from veen.core import Malformed, Unavailable
from veen.overlays.bridging import BridgeResult

IMPORTED, REFUSED = "imported", "refused"
# Errors that will not go away by themselves: dangling or circular links, no permission, sockets.
_PERMANENT_ERRORS = frozenset({errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class ProcessedFile:
    """A processed file: its new path and the result."""

    path: Path
    outcome: ImportOutcome


def waiting(folder: Path) -> list[Path]:
    """The bundles in the folder, ordered by stream and range; other files come last."""
    return sorted(folder.glob(f"*{SUFFIX}"), key=_order)


def _order(path: Path) -> tuple[bool, str, int, int, str]:
    try:
        header = bundles.decode(_read(path)).header
    except (BundleFault, Malformed, Unavailable):
        return True, "", 0, 0, path.name
    return False, header.export_stream, header.epoch, header.export_seq_from, path.name


def _read(path: Path) -> bytes:
    """Read a file of at most a bundle's size. Raises `BundleFault` if the path can never be read as a bundle."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: opening a pipe must not block
    except OSError as error:
        if error.errno in _PERMANENT_ERRORS:
            raise _not_a_bundle(f"cannot be read: {error.strerror}") from None
        raise Unavailable(f"{path}: {error.strerror}") from None
    with named(path):
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _not_a_bundle("not a regular file")
            if found.st_size > bundles.MAX_BUNDLE_BYTES:
                raise _not_a_bundle(f"{found.st_size} bytes, the maximum is {bundles.MAX_BUNDLE_BYTES}")
            with open(fd, "rb", closefd=False) as file:
                return file.read(found.st_size)
        finally:
            os.close(fd)


def _not_a_bundle(reason: str) -> BundleFault:
    return BundleFault(BundleCode.MALFORMED, reason)


async def sweep(importer: Importer, folder: Path) -> AsyncIterator[ProcessedFile]:
    """Import every bundle in the folder, one by one, and move each aside afterwards."""
    for path in waiting(folder):
        if not os.path.lexists(path):
            continue  # removed meanwhile
        try:
            outcome = await importer.take(_read(path))
        except BundleFault as fault:
            outcome = ImportOutcome(bundles.claimed_id(b""), BridgeResult.FAILURE, "", 0, 0, (), fault=fault)
        yield ProcessedFile(_move_aside(path, folder / (IMPORTED if outcome.ok else REFUSED)), outcome)


def _move_aside(path: Path, aside: Path) -> Path:
    """Move aside and return the new path. A file replaces one of the same name; directories get a new name."""
    DISK.make_folder(aside)
    target = aside / path.name
    if os.path.lexists(target) and (_is_folder(target) or _is_folder(path)):
        target = aside / f"{path.stem}-{secrets.token_hex(4)}{SUFFIX}"
    DISK.replace(path, target)
    DISK.sync_folder(aside)
    DISK.sync_folder(path.parent)
    return target


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
