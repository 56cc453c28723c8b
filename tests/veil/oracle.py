"""A second, slow implementation of the formulas, independent of the first."""

from collections.abc import Sequence
from typing import Any

import cbor2
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from veil import Address, ObjectV1, ShardV1

Matrix = list[list[int]]


def times(a: int, b: int) -> int:
    """Multiplication in GF(2^8), bit by bit."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11D
        b >>= 1
    return product


def power(base: int, exponent: int) -> int:
    value = 1
    for _ in range(exponent):
        value = times(value, base)
    return value


def inverted(matrix: Matrix) -> Matrix:
    """Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [row + [int(at == index) for at in range(size)] for index, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(index for index in range(column, size) if rows[index][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = power(rows[column][column], 254)
        rows[column] = [times(scale, value) for value in rows[column]]
        for index in range(size):
            if index != column:
                factor = rows[index][column]
                rows[index] = [a ^ times(factor, b) for a, b in zip(rows[index], rows[column], strict=True)]
    return [row[size:] for row in rows]


def product(a: Matrix, b: Matrix) -> Matrix:
    def cell(row: Sequence[int], column: Sequence[int]) -> int:
        total = 0
        for x, y in zip(row, column, strict=True):
            total ^= times(x, y)
        return total

    return [[cell(row, column) for column in zip(*b, strict=True)] for row in a]


def generator(k: int, n: int) -> Matrix:
    """V times the inverse of V's first k rows, where V[r][c] = r^c."""
    vandermonde = [[power(row, column) for column in range(k)] for row in range(n)]
    return product(vandermonde, inverted(vandermonde[:k]))


def encode(blocks: list[bytes], n: int) -> list[bytes]:
    return [bytes(row) for row in product(generator(len(blocks), n), [list(block) for block in blocks])]


def harden(root: bytes, data: bytes) -> bytes:
    key_key = blake3(root, derive_key_context="veil hardened key v1").digest()
    wrap_key = blake3(root, derive_key_context="veil hardened wrap v1").digest()
    key = blake3(data, key=key_key).digest()
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(len(data)))
    masked = bytes(a ^ b for a, b in zip(data, stream, strict=True))
    mask = blake3(masked, key=wrap_key).digest()
    return masked + bytes(a ^ b for a, b in zip(key, mask, strict=True))


def object_bytes(obj: ObjectV1) -> bytes:
    address = obj.address
    fields = [1, address.namespace, address.epoch, int(obj.flags), address.tag, obj.nonce, obj.ciphertext, obj.padding]
    return cbor2.dumps(fields + ([obj.sender_pubkey, obj.signature] if obj.sender_pubkey else []), canonical=True)


def shard_bytes(shard: ShardV1) -> bytes:
    address, shape = shard.of.address, shard.of.shape
    named = [2, address.namespace, address.epoch, address.tag, shard.of.object_root, shape.profile_id]
    counted = [int(shard.of.erasure_mode), shape.bucket_size, shape.k, shape.n, shard.index]
    return cbor2.dumps([*named, *counted, shard.payload], canonical=True)


def signing_digest(obj: ObjectV1) -> bytes:
    address = obj.address
    header = [1, address.namespace, address.epoch, int(obj.flags), address.tag, obj.nonce, obj.sender_pubkey]
    signed = cbor2.dumps([*header, blake3(obj.ciphertext).digest()], canonical=True)
    return blake3(signed, derive_key_context="veil object signature v1").digest()


def shards_of(encoded: bytes, address: Address, case: dict[str, Any]) -> list[bytes]:
    """All shards of an object of a vector file, encoded."""
    root, mode = blake3(encoded).digest(), case["erasure_mode"]
    package = harden(root, encoded) if mode else encoded
    k, n, bucket = (case["shape"][name] for name in ("k", "n", "bucket_size"))
    size = len(package) // k
    assert size * k == len(package)
    rows = encode([package[at : at + size] for at in range(0, len(package), size)], n)
    named = [2, address.namespace, address.epoch, address.tag, root, case["shape"]["profile_id"], mode, bucket, k, n]
    return [cbor2.dumps([*named, index, row], canonical=True) for index, row in enumerate(rows)]
