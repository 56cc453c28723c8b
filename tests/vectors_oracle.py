"""A second, minimal implementation that shares no code with ours.

hashlib for hashes, cbor2 for encodings, pyhpke for HPKE and OpenSSL for the rest. It is slow and trusts its input. To
avoid sharing mistakes with `veen.core`, it follows the specification differently: trees by recursion, objects as plain
lists and dicts.
"""

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import cbor2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from pyhpke import AEADId, CipherSuite, ContextInterface, KDFId, KEMId

SUITE = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)

MSG, RECEIPT, CHECKPOINT = 10, 7, 7  # fields, the last one being the signature


def h(data: bytes) -> bytes:
    return sha256(data).digest()


def ht(tag: str, *parts: bytes) -> bytes:
    return h(b"\0".join((tag.encode(), b"".join(parts))))


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def label(routing_key: bytes, stream_id: bytes, epoch: int) -> bytes:
    return ht("veen/label", routing_key, stream_id, u64(epoch))


def leaf_hash(msg: Sequence[Any]) -> bytes:
    _, profile_id, label_, client_id, client_seq, _, _, ct_hash, _, _ = msg
    return ht("veen/leaf", label_, profile_id, ct_hash, client_id, u64(client_seq))


def aad(msg: Sequence[Any]) -> bytes:
    _, profile_id, label_, client_id, client_seq, prev_ack, auth_ref, _, _, _ = msg
    return ht("veen/aad", profile_id, label_, client_id, u64(client_seq), u64(prev_ack), auth_ref or bytes(32))


def nonce(msg: Sequence[Any]) -> bytes:
    return ht("veen/nonce", msg[2], u64(msg[5]), msg[3], u64(msg[4]))[:24]


def cbor(value: Any) -> bytes:
    """Definite lengths, shortest heads, maps in the order they were written."""
    return cbor2.dumps(value)


def uncbor(data: bytes) -> Any:
    """The value of an encoding that cbor2 itself would write."""
    value = cbor2.loads(data)
    assert cbor(value) == data
    return value


def signed(fields: Sequence[Any], count: int) -> bytes:
    """The signed digest of an array object: all fields before the signature, as a separate array."""
    return ht("veen/sig", cbor(list(fields[: count - 1])))


def ed25519(seed: bytes, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).sign(message)


def ed25519_public(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def x25519_public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def hpke_receiver(secret: bytes, enc: bytes) -> ContextInterface:
    return SUITE.create_recipient_context(enc, SUITE.kem.deserialize_private_key(secret))


# The tree, from its definition: a perfect tree hashes its halves, a range is a row of perfect trees.


def perfect(leaves: Sequence[bytes], tag: str = "veen/mmr-node") -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return ht(tag, perfect(leaves[:half], tag), perfect(leaves[half:], tag))


def rows(leaves: Sequence[bytes]) -> list[Sequence[bytes]]:
    """The leaves of each perfect tree, the smallest tree first."""
    found: list[Sequence[bytes]] = []
    while leaves:
        width = 1 << (len(leaves).bit_length() - 1)
        found.insert(0, leaves[:width])
        leaves = leaves[width:]
    return found


def peaks(leaves: Sequence[bytes]) -> list[bytes]:
    return [perfect(row) for row in rows(leaves)]


def root(leaves: Sequence[bytes], node: str = "veen/mmr-node", top: str = "veen/mmr-root") -> bytes:
    tops = [perfect(row, node) for row in rows(leaves)]
    return tops[0] if len(tops) == 1 else ht(top, *tops)


def proof(leaves: Sequence[bytes], stream_seq: int) -> dict[int, Any]:
    """The mmr_proof of one leaf in the tree of all of them."""
    others, path, first = [], [], len(leaves)
    for row in rows(leaves):
        first -= len(row)
        if first <= stream_seq - 1 < first + len(row):
            path = _path(row, stream_seq - 1 - first)
        else:
            others.append(perfect(row))
    return {1: 1, 2: leaves[stream_seq - 1], 3: path, 4: others}


def _path(row: Sequence[bytes], index: int) -> list[dict[int, Any]]:
    if len(row) == 1:
        return []
    half = len(row) // 2
    if index < half:
        return [*_path(row[:half], index), {1: 0, 2: perfect(row[half:])}]
    return [*_path(row[half:], index - half), {1: 1, 2: perfect(row[:half])}]


# XChaCha20-Poly1305: HChaCha20 from the round function, the rest from OpenSSL.


def _quarter(x: list[int], a: int, b: int, c: int, d: int) -> None:
    for to, by, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[to] = (x[to] + x[by]) & 0xFFFFFFFF
        mixed = x[turned] ^ x[to]
        x[turned] = (mixed << bits | mixed >> (32 - bits)) & 0xFFFFFFFF


def hchacha20(key: bytes, nonce16: bytes) -> bytes:
    x = list(struct.unpack("<16I", b"expand 32-byte k" + key + nonce16))
    for _ in range(10):
        for column in range(4):
            _quarter(x, column, 4 + column, 8 + column, 12 + column)
        for diagonal in range(4):
            _quarter(x, diagonal, 4 + (diagonal + 1) % 4, 8 + (diagonal + 2) % 4, 12 + (diagonal + 3) % 4)
    return struct.pack("<8I", *x[:4], *x[12:])


def xchacha_seal(key: bytes, nonce24: bytes, aad: bytes, plaintext: bytes) -> bytes:
    return ChaCha20Poly1305(hchacha20(key, nonce24[:16])).encrypt(bytes(4) + nonce24[16:], plaintext, aad)
