"""GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D), and matrices over it applied to rows of bytes.

One look-up gives the share of a byte in up to eight results at once: a table per column holds, for each value of a
byte, its products with all coefficients of the column side by side in one machine word. So a matrix costs one gather
and one XOR per column, whatever its number of rows up to eight, at near a gigabyte a second.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Rows = tuple[bytes, ...]

POLYNOMIAL = 0x11D
_ORDER = 255
_WORDS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _powers() -> list[int]:
    """The powers of 2, twice around, so that a sum of two logarithms needs no reduction."""
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
    """For each column, what a byte there adds to every row; at most eight rows."""
    width = next(size for size in _WORDS if size >= len(rows))
    coefficients = np.zeros((width, len(rows[0])), dtype=np.uint8)
    coefficients[: len(rows)] = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)
    return tuple(np.ascontiguousarray(_PRODUCTS[column].T).view(_WORDS[width]).ravel() for column in coefficients.T)


def apply(rows: Rows, columns: list[Bytes]) -> list[Bytes]:
    """The matrix times the columns, which are byte strings of one length: one result for each row."""
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
