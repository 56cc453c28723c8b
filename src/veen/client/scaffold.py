"""A folder that is there whole or not at all: built beside its place, then moved there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veen.client import durable
from veen.client.durable import SCAFFOLD_INFIX, Busy, Disk
from veen.core import Unavailable


@contextmanager
def scaffold(path: Path, disk: Disk) -> Iterator[Path]:
    """A folder to build in, which takes its place at `path` when the block ends, and is gone where it raises.

    `path` may be an empty folder, and nothing else that is there. A process that is killed leaves its scaffold behind;
    the next one to build here removes it. The lock tells one that is being built in from one that is not.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        raise Unavailable(f"there is no folder {path.parent} to make {path.name} in")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Unavailable(f"{path} is there already, and not an empty folder")
    _remove_old(path, disk)
    folder = disk.make_scaffold(path)
    try:
        with durable.locked_folder(folder):
            yield folder
            disk.sync_folder(folder)
            disk.replace(folder, path)
            disk.sync_folder(path.parent)
    except BaseException:
        disk.remove_folder(folder)
        raise


def _remove_old(path: Path, disk: Disk) -> None:
    for folder in path.parent.iterdir():
        if folder.name.startswith(f".{path.name}{SCAFFOLD_INFIX}"):
            try:
                with durable.locked_folder(folder):
                    disk.remove_folder(folder)
            except Busy:
                continue
