"""Reed-Solomon, and the hardened transform before it. Spec §8.

Any k of n rows determine all others. Byte by byte, the k blocks are the values of one polynomial of degree below k at
the points 0 to k-1 of GF(2^8), and row i is its value at point i. This is the systematic code of the Vandermonde
matrix V[r][c] = r^c. Its generator is V times the inverse of the first k rows of V. Lagrange interpolation gives the
same rows.

The hardened transform is an all-or-nothing package, so fewer than k shards reveal nothing of the object:

    key      = keyed(derive("veil hardened key v1", root), object)
    masked   = object XOR ChaCha20(key)
    wrapped  = key XOR keyed(derive("veil hardened wrap v1", root), masked)
    package  = masked || wrapped

The key is a keyed hash of the whole object, so the package is a function of the object, and the root in the shards
does not reveal the key. Unwrapping the key needs all of `masked`, which fewer than k shards do not have.
`keyed` and `derive` are BLAKE3's keyed hash and key derivation; `root` is the object root.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from veil.hashing import HASH_BYTES, derive, keyed
from veil.veil_errors import Unverified

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


WRAPPED_BYTES = HASH_BYTES

_KEY = "veil hardened key v1"
_WRAP = "veil hardened wrap v1"
# Each key encrypts one object, so counter and nonce are zero.
_START = bytes(16)


def harden(root: bytes, data: bytes) -> bytes:
    """The package of an object, `WRAPPED_BYTES` longer than the object."""
    key = keyed(derive(_KEY, root), data)
    masked = _stream(key, data)
    return masked + _xor(key, keyed(derive(_WRAP, root), masked))


def unharden(root: bytes, package: bytes) -> bytes:
    """The object in a package. Raise `Unverified` unless this is the only valid package of the object."""
    masked, wrapped = package[:-WRAPPED_BYTES], package[-WRAPPED_BYTES:]
    key = _xor(wrapped, keyed(derive(_WRAP, root), masked))
    data = _stream(key, masked)
    if keyed(derive(_KEY, root), data) != key:
        raise Unverified("object", "the shards are inconsistent")
    return data


def _stream(key: bytes, data: bytes) -> bytes:
    return Cipher(ChaCha20(key, _START), None).encryptor().update(data)


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(HASH_BYTES, "big")
