"""Reed-Solomon: any k of n rows determine all others. Spec §8.

Byte by byte, the k blocks are the values of one polynomial of degree below k at the points 0 to k-1 of GF(2^8), and
row i is its value at point i. This is the systematic code of the Vandermonde matrix V[r][c] = r^c. Its generator is
V times the inverse of the first k rows of V. Lagrange interpolation gives the same rows.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Rows = tuple[bytes, ...]

POLYNOMIAL = 0x11D
_ORDER = 255
_WORDS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _powers() -> list[int]:
    """Two periods of the powers of 2, so a sum of two logarithms needs no reduction."""
    powers, value = [], 1
    for _ in range(2 * _ORDER):
        powers.append(value)
        value = value << 1 ^ (POLYNOMIAL if value & 0x80 else 0)
    return powers


EXP = _powers()
LOG = [0] + [EXP.index(value) for value in range(1, 256)]


def mul(a: int, b: int) -> int:
    return EXP[LOG[a] + LOG[b]] if a and b else 0


def inverse(a: int) -> int:
    if not a:
        raise ZeroDivisionError("0 has no inverse in GF(2^8)")
    return EXP[_ORDER - LOG[a]]


_PRODUCTS: Bytes = np.array([[mul(a, b) for b in range(256)] for a in range(256)], dtype=np.uint8)


@lru_cache(maxsize=512)
def _tables(rows: Rows) -> tuple[NDArray[np.unsignedinteger], ...]:
    """Per column, a table from byte value to its contribution to at most eight rows, packed into one word."""
    width = next(size for size in _WORDS if size >= len(rows))
    coefficients = np.zeros((width, len(rows[0])), dtype=np.uint8)
    coefficients[: len(rows)] = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)
    return tuple(np.ascontiguousarray(_PRODUCTS[column].T).view(_WORDS[width]).ravel() for column in coefficients.T)


def apply(rows: Rows, columns: list[Bytes]) -> list[Bytes]:
    """Multiply the matrix with columns of equal length; one result per row."""
    results: list[Bytes] = []
    for start in range(0, len(rows), 8):
        part = rows[start : start + 8]
        tables = _tables(part)
        total = tables[0].take(columns[0])
        for table, column in zip(tables[1:], columns[1:], strict=True):
            total ^= table.take(column)
        split = np.ascontiguousarray(total.view(np.uint8).reshape(len(total), -1).T)
        results.extend(split[: len(part)])
    return results


@lru_cache(maxsize=4096)
def _row(known: tuple[int, ...], wanted: int) -> bytes:
    """Lagrange coefficients of the value at `wanted` from the values at the `known` points."""
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
    """All n rows of `data`, which is k blocks of equal length. The rows are views to avoid copies."""
    size, rest = divmod(len(data), k)
    if rest or not size:
        raise ValueError(f"{len(data)} bytes are not {k} blocks")
    blocks = list(np.frombuffer(data, dtype=np.uint8).reshape(k, size))
    return [row.data for row in (*blocks, *apply(parity_rows(k, n), blocks))]


def decode(rows: Mapping[int, bytes], k: int) -> bytes:
    """The data from exactly k rows, by index."""
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
