"""Files that commands write: new ones only, so that nothing is lost to a slip of the hand."""

import os
from pathlib import Path

from terminalface.command import Misuse
from veen.client.durable import check_local

PUBLIC, SECRET = 0o644, 0o600


def write_new(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """A file that was not there before. What is written is no part of any promise, so it is not synced."""
    check_local(path)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise Misuse(f"{path} is there already", "name another file, or move that one away") from None
    with open(fd, "wb") as file:
        file.write(data)


def check_new(path: Path) -> None:
    """Refuse before the work what `write_new` would refuse after it."""
    check_local(path)
    if path.exists() or path.is_symlink():
        raise Misuse(f"{path} is there already", "name another file, or move that one away")
