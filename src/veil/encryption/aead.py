"""XChaCha20-Poly1305 over padded plaintext, bound to the address of the object. Spec §7.2.

A `Lock` seals and a `Key` opens; a shared key is both. Padding is a byte 0x80 and zeros after the plaintext, inside
the seal, so a node without the key cannot learn the length of the plaintext.
"""

import os
from typing import NoReturn, Protocol, Self

from plumbing import sodium
from plumbing.sodium import AEAD_KEY_BYTES as KEY_BYTES
from plumbing.sodium import AEAD_TAG_BYTES as TAG_BYTES
from veil.objects import NONCE_BYTES, Address
from veil.veil_errors import Malformed, Unverified

_END = b"\x80"


class Lock(Protocol):
    """Seals. The ciphertext is `overhead` bytes longer than the plaintext."""

    @property
    def overhead(self) -> int: ...

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes: ...


class Key(Protocol):
    """Opens a ciphertext or raises `Unverified`."""

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes: ...


class SharedKey:
    """A key that seals and opens. It never shows in `repr` and is not pickled."""

    __slots__ = ("_key",)

    overhead = TAG_BYTES

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise Malformed("key", f"{len(key)} bytes, not {KEY_BYTES}")
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes:
        return sodium.aead_seal(self._key, nonce, address.aad(), plaintext)

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes:
        if len(nonce) != NONCE_BYTES:
            raise Unverified("object", f"the nonce has {len(nonce)} bytes, not {NONCE_BYTES}")
        try:
            return sodium.aead_open(self._key, nonce, address.aad(), ciphertext)
        except sodium.CannotOpen as error:
            raise Unverified("object", str(error)) from None

    def __repr__(self) -> str:
        return "SharedKey(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")


def pad(payload: bytes, length: int) -> bytes:
    """The payload, an end mark, and zeros up to `length`."""
    if len(payload) >= length:
        raise ValueError(f"{len(payload)} bytes and an end mark do not fit into {length}")
    return payload + _END + bytes(length - len(payload) - 1)


def unpad(padded: bytes) -> bytes:
    """The payload without padding. Raise `Malformed` if there is no end mark."""
    end = padded.rfind(_END)
    if end < 0 or padded[end + 1 :] != bytes(len(padded) - end - 1):
        raise Malformed("payload", "the padding has no end mark")
    return padded[:end]
