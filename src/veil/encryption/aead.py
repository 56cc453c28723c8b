"""XChaCha20-Poly1305, bound to the address of what is sealed, over plaintext padded to a length of its own. Spec §7.2.

A `Lock` seals and a `Key` opens; a shared key is both. What they seal is padded first: a byte 80 and zeros after the
plaintext, inside the seal, so that not even who puts an object together learns how long it is.
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
    """Seals. The ciphertext is longer than what is sealed by `overhead` bytes."""

    @property
    def overhead(self) -> int: ...

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes: ...


class Key(Protocol):
    """Opens, or raises `Unverified`."""

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
        # libsodium reads fixed lengths through the pointers it is given, so lengths are ours to check.
        if len(ciphertext) < TAG_BYTES or len(nonce) != NONCE_BYTES:
            raise Unverified("object", "too short to be sealed")
        try:
            return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, address.aad(), nonce, self._key)
        except CryptoError:
            raise Unverified("object", "does not open: another key, or altered") from None

    def __repr__(self) -> str:
        return "SharedKey(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")


def pad(payload: bytes, length: int) -> bytes:
    """The payload, its end marked, filled up to a length."""
    if len(payload) >= length:
        raise ValueError(f"{len(payload)} bytes and the mark of their end do not fit {length}")
    return payload + _END + bytes(length - len(payload) - 1)


def unpad(padded: bytes) -> bytes:
    """The payload. Raise `Malformed` where nothing marks its end."""
    end = padded.rfind(_END)
    if end < 0 or padded[end + 1 :] != bytes(len(padded) - end - 1):
        raise Malformed("payload", "nothing marks its end")
    return padded[:end]
