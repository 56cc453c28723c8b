"""A message that opens to two contents, each with a secret of its own: the AEADs do not commit to a key.

The header's plaintexts begin alike under both secrets, which takes a search that was made once (`MADE_UP`, `READERS`).
Of the rest one block is free in each sealed part, and is solved for the one Poly1305 tag that both keys give.
"""

import os
import struct
from collections.abc import Sequence
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from veen.core import DhKey, Msg, Place, Profile, SigningKey, msg
from veen.core.hpke import HpkeContext

PRIME, WORD = (1 << 130) - 5, 1 << 128
CLAMP = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
SCHEMA_FOLLOWS = bytes.fromhex("a1015820")  # a header that has a schema and nothing else

SENDER, READER = DhKey(b"\x01" * 32), DhKey(b"\x02" * 32)
ENC = SENDER.public_key
# Two secrets that the reader's key does not share with the enc, and two keys that do share theirs with it.
MADE_UP = tuple(sha256(b"secret %d" % n).digest() for n in (49_525, 105_490))
READERS = tuple(DhKey(sha256(b"reader %d" % n).digest()) for n in (92_673, 134_190))

SHUT, OPEN = b"door 4 was shut all night.      ", b"door 4 stood open, I saw it.    "

Key = tuple[int, int]


def two_faced(writer: SigningKey, profile: Profile, label: bytes, secrets: Sequence[tuple[bytes, bytes]]) -> Msg:
    """A signed message that says SHUT first under the first of these pairs of reader_pk and secret.

    Under the second it says OPEN, at the 32 bytes after that.
    """
    place = Place(profile.profile_id(), label, writer.public_key, 1, 0, None)
    contexts = [HpkeContext(secret, ENC + reader_pk, b"") for reader_pk, secret in secrets]
    streams = [(context._key, context._base_nonce) for context in contexts]
    front = _xor(SCHEMA_FOLLOWS, _chacha(*streams[0], 1, 4))
    assert front == _xor(SCHEMA_FOLLOWS, _chacha(*streams[1], 1, 4)), "these secrets were not searched for"
    header = _collide([_poly_key(*stream) for stream in streams], place.aad(), front, 36, 1)
    nonce = place.nonce()
    keys = [_hchacha(context.export(b"veen/body-k", 32), nonce[:16]) for context in contexts]
    streams = [(key, bytes(4) + nonce[16:]) for key in keys]
    said = _xor(SHUT, _chacha(*streams[0], 1, 32)) + _xor(OPEN, _chacha(*streams[1], 1, 64)[32:])
    body = _collide([_poly_key(*stream) for stream in streams], place.aad(), said, 96, 5)
    sealed = ENC + struct.pack(">II", len(header), len(body)) + header + body
    sealed += bytes(-len(sealed) % profile.pad_block) if profile.pad_block else b""
    return msg.sign(
        writer,
        profile_id=place.profile_id,
        label=label,
        client_seq=1,
        prev_ack=0,
        auth_ref=None,
        ciphertext=sealed,
    )


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _chacha(key: bytes, nonce: bytes, block: int, size: int) -> bytes:
    cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<I", block) + nonce), None)
    return cipher.encryptor().update(bytes(size))


def _hchacha(key: bytes, nonce: bytes) -> bytes:
    """The ChaCha20 block without its last addition: what XChaCha20 derives its key by."""
    constants = b"expand 32-byte k"
    counter, rest = struct.unpack("<I", nonce[:4])[0], nonce[4:]
    block = struct.unpack("<16I", _chacha(key, rest, counter, 64))
    start = struct.unpack("<16I", constants + key + nonce)
    words = [(a - b) % (1 << 32) for a, b in zip(block, start, strict=True)]
    return struct.pack("<8I", *words[:4], *words[12:])


def _poly_key(key: bytes, nonce: bytes) -> Key:
    block = _chacha(key, nonce, 0, 32)
    return int.from_bytes(block[:16], "little") & CLAMP, int.from_bytes(block[16:], "little")


def _blocks(aad: bytes, sealed: bytes) -> list[int]:
    padded = aad + bytes(-len(aad) % 16) + sealed + bytes(-len(sealed) % 16)
    padded += struct.pack("<QQ", len(aad), len(sealed))
    return [int.from_bytes(padded[at : at + 16], "little") + WORD for at in range(0, len(padded), 16)]


def _sum(r: int, blocks: list[int]) -> int:
    total = 0
    for block in blocks:
        total = (total + block) * r % PRIME
    return total


def _collide(keys: Sequence[Key], aad: bytes, front: bytes, size: int, free: int) -> bytes:
    """`size` bytes that begin with `front`, and the tag that both keys give them: block `free` is solved for."""
    (r1, s1), (r2, s2) = keys
    while True:
        sealed = bytearray(front + os.urandom(size - len(front)))
        sealed[16 * free : 16 * free + 16] = bytes(16)
        blocks = _blocks(aad, bytes(sealed))
        power = len(blocks) - len(aad) // 16 - free
        inverse = pow(pow(r1, power, PRIME) - pow(r2, power, PRIME), -1, PRIME)
        apart = _sum(r2, blocks) - _sum(r1, blocks) + s2 - s1
        for carry in range(-4, 5):
            solved = (apart + carry * WORD) * inverse % PRIME
            if solved >= WORD:
                continue
            sealed[16 * free : 16 * free + 16] = solved.to_bytes(16, "little")
            blocks = _blocks(aad, bytes(sealed))
            tags = {(_sum(r, blocks) + s) % WORD for r, s in keys}
            if len(tags) == 1:
                return bytes(sealed) + tags.pop().to_bytes(16, "little")
