"""Reed-Solomon: any k of n rows of bytes give all others. Spec §8.

Byte by byte, the k blocks are the values of one polynomial of degree below k at the points 0 to k-1 of GF(2^8), and
row i is its value at point i. This is the systematic code of the Vandermonde matrix V[r][c] = r^c: its generator is
V times the inverse of V's first k rows, and each of its rows is what Lagrange's formula gives for one point.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from veil.fec.field import EXP, LOG, Bytes, Rows, apply, inverse, mul


@lru_cache(maxsize=4096)
def _row(known: tuple[int, ...], wanted: int) -> bytes:
    """How the value at `wanted` is made of the values at the `known` points."""
    if wanted in known:
        return bytes(point == wanted for point in known)
    coefficients = []
    for point in known:
        above = below = 0
        for other in known:
            if other != point:
                above += LOG[wanted ^ other]
                below += LOG[point ^ other]
        coefficients.append(mul(EXP[above % 255], inverse(EXP[below % 255])))
    return bytes(coefficients)


def parity_rows(k: int, n: int) -> Rows:
    """The rows of the generator below its identity."""
    return tuple(_row(tuple(range(k)), point) for point in range(k, n))


def encode(data: bytes, k: int, n: int) -> list[memoryview]:
    """All n rows of data that is k blocks of one length. They are views: copying them costs as much as making them."""
    size, rest = divmod(len(data), k)
    if rest or not size:
        raise ValueError(f"{len(data)} bytes are not {k} blocks")
    blocks = list(np.frombuffer(data, dtype=np.uint8).reshape(k, size))
    return [row.data for row in (*blocks, *apply(parity_rows(k, n), blocks))]


def decode(rows: Mapping[int, bytes], k: int) -> bytes:
    """The data of exactly k rows, by index."""
    if len(rows) != k:
        raise ValueError(f"{len(rows)} rows, not {k}")
    known = tuple(sorted(rows))
    missing = [index for index in range(k) if index not in rows]
    blocks: dict[int, bytes] = dict(rows)
    if missing:
        columns: list[Bytes] = [np.frombuffer(rows[index], dtype=np.uint8) for index in known]
        found = apply(tuple(_row(known, index) for index in missing), columns)
        blocks.update(zip(missing, (row.tobytes() for row in found), strict=True))
    return b"".join(blocks[index] for index in range(k))
