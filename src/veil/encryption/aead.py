"""XChaCha20-Poly1305 over padded plaintext, bound to the address of the object. Spec §7.2.

A `Lock` seals and a `Key` opens; a shared key is both. Padding is a byte 0x80 and zeros after the plaintext, inside
the seal, so a node without the key cannot learn the length of the plaintext.
"""

import os
from typing import NoReturn, Protocol, Self

from nacl import bindings
from nacl.exceptions import CryptoError

from veil.objects import NONCE_BYTES, Address
from veil.veil_errors import Malformed, Unverified

KEY_BYTES = 32
TAG_BYTES = 16
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
        return bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, address.aad(), nonce, self._key)

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes:
        # libsodium reads fixed lengths through raw pointers, so the lengths must be checked here.
        if len(ciphertext) < TAG_BYTES or len(nonce) != NONCE_BYTES:
            raise Unverified("object", "the ciphertext or nonce is too short")
        try:
            return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, address.aad(), nonce, self._key)
        except CryptoError:
            raise Unverified("object", "decryption failed: wrong key or altered") from None

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
