"""Files that commands write: new ones only, so that nothing is lost to a slip of the hand."""

import os
from pathlib import Path
from typing import TypeAlias

from plumbing.cli.command import Misuse
from veen.cli.kit.exit_status import hinted
from veen.client import durable
from veen.client.durable import check_local
from veen.core import Checkpoint, Malformed, MmrProof, Receipt
from veen.core.cbor import DeferredFaults

PUBLIC_MODE, SECRET_MODE = 0o644, 0o600


def write_new(path: Path, data: bytes, mode: int = PUBLIC_MODE) -> None:
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


Statement: TypeAlias = Receipt | Checkpoint | MmrProof
_MOST_BYTES = 1 << 24
_KINDS: tuple[type[Statement], ...] = (Receipt, Checkpoint, MmrProof)


def read_statements(path: Path) -> list[Statement]:
    """All that a file holds. Raises `Malformed` where any of it is something else."""
    data = durable.read_file(path, _MOST_BYTES)
    found: list[Statement] = []
    pos = 0
    while pos < len(data):
        one, pos = _one(data, pos, path)
        found.append(one)
    if not found:
        raise hinted(Malformed(str(path), "it is empty"), _MADE_BY)
    return found


_MADE_BY = "veen receipt, proof and checkpoint make such files with --out; what veen evidence made, it verifies"


def _one(data: bytes, pos: int, path: Path) -> tuple[Statement, int]:
    for kind in _KINDS:
        late = DeferredFaults()
        try:
            one, end = kind.read(data, pos, late)
            late.raise_first()
        except Malformed:
            continue
        return one, end
    raise hinted(Malformed(str(path), f"no receipt, checkpoint or proof starts at byte {pos}"), _MADE_BY)
