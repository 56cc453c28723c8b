"""What a hub signed, as files hold it: receipts, checkpoints and proofs, one after the other."""

from pathlib import Path
from typing import TypeAlias

from veen.cli.failures import hinted
from veen.client import durable
from veen.core import Checkpoint, Malformed, MmrProof, Receipt
from veen.core.cbor import Late

Statement: TypeAlias = Receipt | Checkpoint | MmrProof
_MOST_BYTES = 1 << 24
_KINDS: tuple[type[Statement], ...] = (Receipt, Checkpoint, MmrProof)


def read(path: Path) -> list[Statement]:
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
        late = Late()
        try:
            one, end = kind.read(data, pos, late)
            late.judge()
        except Malformed:
            continue
        return one, end
    raise hinted(Malformed(str(path), f"no receipt, checkpoint or proof starts at byte {pos}"), _MADE_BY)
