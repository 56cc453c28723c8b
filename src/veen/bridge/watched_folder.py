"""A folder in which bundles are put down, and what is made of them.

A file that has its name is whole: whoever puts one down writes it under another name first. What was dealt with is
moved aside, so that a folder on a medium that goes back and forth shows what is left. A crash between an import and
its move is no harm: the bundle is found to be imported.

What has the name of a bundle and cannot be one, a folder or a file without end, keeps no other waiting: it comes last,
and is moved aside as well. It has no bytes to put on record, so only the operator hears of it.
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
from veen.client.durable import DISK, named
from veen.core import Malformed, Unavailable
from veen.overlays.bridging import BridgeResult

IMPORTED, REFUSED = "imported", "refused"
# A link that leads nowhere or round in circles, what we may not read, a socket: the same the next time.
_LASTING = frozenset({errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class ProcessedFile:
    """A file, what became of it, and where it is now."""

    path: Path
    outcome: ImportOutcome


def waiting(folder: Path) -> list[Path]:
    """The bundles that are there, in the order of the streams they are of; what is no bundle comes last."""
    return sorted(folder.glob(f"*{SUFFIX}"), key=_order)


def _order(path: Path) -> tuple[bool, str, int, int, str]:
    try:
        header = bundles.decode(_read(path)).header
    except (BundleFault, Malformed, Unavailable):
        return True, "", 0, 0, path.name
    return False, header.export_stream, header.epoch, header.export_seq_from, path.name


def _read(path: Path) -> bytes:
    """A file of no more than a bundle's length. Raises `BundleFault` where there is none, and never will be."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would be waited for
    except OSError as error:
        if error.errno in _LASTING:
            raise _no_bundle(f"it cannot be read: {error.strerror}") from None
        raise Unavailable(f"{path}: {error.strerror}") from None
    with named(path):
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _no_bundle("it is not a file")
            if found.st_size > bundles.MAX_BUNDLE_BYTES:
                raise _no_bundle(f"it has {found.st_size} bytes, above {bundles.MAX_BUNDLE_BYTES}")
            with open(fd, "rb", closefd=False) as file:
                return file.read(found.st_size)
        finally:
            os.close(fd)


def _no_bundle(reason: str) -> BundleFault:
    return BundleFault(BundleCode.MALFORMED, reason)


async def sweep(importer: Importer, folder: Path) -> AsyncIterator[ProcessedFile]:
    """Import all that is there, one by one, and move each aside once it is dealt with."""
    for path in waiting(folder):
        if not os.path.lexists(path):
            continue  # it was taken away again
        try:
            outcome = await importer.take(_read(path))
        except BundleFault as fault:
            outcome = ImportOutcome(bundles.claimed_id(b""), BridgeResult.FAILURE, "", 0, 0, (), fault=fault)
        yield ProcessedFile(_moved(path, folder / (IMPORTED if outcome.ok else REFUSED)), outcome)


def _moved(path: Path, aside: Path) -> Path:
    """Where it is now. A file takes the place of one of the same name; where a folder is involved, both stay."""
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
