"""How two nodes find out who is at the other end of a link. The same on every lane; no I/O.

    1  dialler  → listener   HELLO   nonce
    2  listener → dialler    ANSWER  key, nonce, signature over the transcript so far
    3  dialler  → listener   PROOF   key, signature over the whole transcript
    4  listener → dialler    READY

A transcript begins with the binding of the channel, the hash of the listener's certificate: who sits in the middle
has another certificate, and cannot use a signature made for the real one. The listener proves itself first, so a
dialler tells who it is to nobody but the node it meant.
"""

import os
from dataclasses import dataclass

from veil.errors import Malformed, Unverified
from veil.hashing import derive
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES
from veil.sealing.signing import SigningKey, verify

VERSION = 1
NONCE_BYTES = 32
_LISTENER = "veil lane listener v1"
_DIALLER = "veil lane dialler v1"


@dataclass(frozen=True, slots=True)
class Hello:
    """What a dialler begins with."""

    nonce: bytes

    @classmethod
    def make(cls) -> "Hello":
        return cls(os.urandom(NONCE_BYTES))

    def encode(self) -> bytes:
        return bytes((VERSION,)) + self.nonce

    @classmethod
    def decode(cls, data: bytes) -> "Hello":
        if len(data) != 1 + NONCE_BYTES:
            raise Malformed("hello", f"{len(data)} bytes, not {1 + NONCE_BYTES}")
        if data[0] != VERSION:
            raise Malformed("hello", f"version {data[0]}, not {VERSION}")
        return cls(data[1:])


def answer(hello: Hello, key: SigningKey, binding: bytes) -> tuple[bytes, bytes]:
    """What a listener replies, and what the dialler must sign."""
    transcript = binding + hello.nonce + key.public_key + os.urandom(NONCE_BYTES)
    signed = transcript[len(binding) + NONCE_BYTES :] + key.sign(derive(_LISTENER, transcript))
    return signed, transcript


def check_answer(data: bytes, hello: Hello, binding: bytes, wanted: bytes | None) -> tuple[bytes, bytes]:
    """The listener's key, and what we must sign. Raise `Unverified` where it is not the node we meant."""
    if len(data) != PUBKEY_BYTES + NONCE_BYTES + SIGNATURE_BYTES:
        raise Malformed("answer", f"{len(data)} bytes")
    pubkey, signature = data[:PUBKEY_BYTES], data[-SIGNATURE_BYTES:]
    if wanted is not None and pubkey != wanted:
        raise Unverified("peer", "another node answered than the one that was dialled")
    transcript = binding + hello.nonce + data[:-SIGNATURE_BYTES]
    verify(pubkey, derive(_LISTENER, transcript), signature, "peer")
    return pubkey, transcript


def proof(transcript: bytes, key: SigningKey) -> bytes:
    return key.public_key + key.sign(derive(_DIALLER, transcript + key.public_key))


def check_proof(data: bytes, transcript: bytes) -> bytes:
    """The dialler's key."""
    if len(data) != PUBKEY_BYTES + SIGNATURE_BYTES:
        raise Malformed("proof", f"{len(data)} bytes")
    pubkey = data[:PUBKEY_BYTES]
    verify(pubkey, derive(_DIALLER, transcript + pubkey), data[PUBKEY_BYTES:], "peer")
    return pubkey
