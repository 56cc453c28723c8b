"""Files that commands write, and files of receipts, checkpoints and proofs that they read.

Commands only create files. They never overwrite one, so a mistyped name destroys nothing.
"""

import os
from pathlib import Path
from typing import TypeAlias

from plumbing.cli.command import Misuse
from veen.cli.kit.exit_status import hinted
from veen.client import local_files
from veen.client.local_files import check_local
from veen.core import Checkpoint, Malformed, MmrProof, Receipt
from veen.core.cbor import DeferredFaults
from veen.core.handover import Cover

PUBLIC_MODE, SECRET_MODE = 0o644, 0o600


def write_new(path: Path, data: bytes, mode: int = PUBLIC_MODE) -> None:
    """Create a file. It is not synced: no guarantee depends on it, and the command can be repeated."""
    check_local(path)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise Misuse(f"{path} already exists", "name another file, or move it away") from None
    with open(fd, "wb") as file:
        file.write(data)


def check_new(path: Path) -> None:
    """Fail before the work starts if `write_new` would fail after it."""
    check_local(path)
    if path.exists() or path.is_symlink():
        raise Misuse(f"{path} already exists", "name another file, or move it away")


Statement: TypeAlias = Receipt | Checkpoint | MmrProof | Cover
_MAX_FILE_BYTES = 1 << 24
_KINDS: tuple[type[Statement], ...] = (Receipt, Checkpoint, MmrProof, Cover)


def read_statements(path: Path) -> list[Statement]:
    """Read a file of statements. Raises `Malformed` if it is empty or contains anything else."""
    data = local_files.read_file(path, _MAX_FILE_BYTES)
    found: list[Statement] = []
    pos = 0
    while pos < len(data):
        one, pos = _read_one(data, pos, path)
        found.append(one)
    if not found:
        raise hinted(Malformed(str(path), "the file is empty"), _MADE_BY)
    return found


_MADE_BY = (
    "veen receipt, veen proof and veen checkpoint write such files with --out; for files of veen evidence, use veen "
    "evidence verify"
)


def _read_one(data: bytes, pos: int, path: Path) -> tuple[Statement, int]:
    for kind in _KINDS:
        late = DeferredFaults()
        try:
            one, end = kind.read(data, pos, late)
            late.raise_first()
        except Malformed:
            continue
        return one, end
    raise hinted(Malformed(str(path), f"no receipt, checkpoint or proof starts at byte {pos}"), _MADE_BY)
