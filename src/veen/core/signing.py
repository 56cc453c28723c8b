"""Ed25519 with libsodium's acceptance rule, so that every machine admits the same signatures.

The rule: A, R and S are canonical, A and R are not of small order, and R is exactly [S]B - [k]A, without the cofactor.
OpenSSL accepts more, so nothing else in this project verifies Ed25519. A libsodium that judged by another equation
would admit other messages than its neighbours, so such a one is refused when this module is loaded.
"""

import os
from typing import NoReturn, Self

from nacl import bindings
from nacl.exceptions import BadSignatureError

from veen.core.errors import Malformed, Unverified

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEED_BYTES = 32


class SigningKey:
    """An Ed25519 key pair. The secret half never shows in `repr` and is never compared."""

    __slots__ = ("_secret", "public_key")

    public_key: bytes

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise Malformed("signing key", f"a seed of {len(seed)} bytes, not {SEED_BYTES}")
        self.public_key, self._secret = bindings.crypto_sign_seed_keypair(seed)

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(SEED_BYTES))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes that are the whole key: for keystores only."""
        return self._secret[:SEED_BYTES]

    def sign(self, message: bytes) -> bytes:
        return bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")


def is_valid(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature holds: for choosing among keys. Use `verify` wherever the answer must not be ignored."""
    # libsodium reads fixed lengths through the pointers it is given, so lengths are ours to check.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        bindings.crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


def verify(public_key: bytes, message: bytes, signature: bytes, what: str = "signature") -> None:
    """Raise `Unverified` unless the signature over the message holds under the key."""
    if not is_valid(public_key, message, signature):
        raise Unverified(what, "the signature does not verify under the key")


# Holds with the cofactor and not without: a key and an R each with a part of order 8.
_PROBE = (
    bytes.fromhex("2624e942216e9ab01bdb288080586b3aff8b1fdf18119f732271c50ada61a4ff"),
    bytes(4),
    bytes.fromhex(
        "f07c9320643bdc58041b6c9eee4825b6d5b06af7c0dbb08174d05ddf50acac3f"
        "ef54376f3981f6a8868a5fa9da232b396e44342144d8fb86d6b927094eb9a605"
    ),
)


def check_rule() -> None:
    """Raise `ImportError` where the library behind PyNaCl judges signatures by another rule than ours."""
    if is_valid(*_PROBE):
        raise ImportError("this libsodium verifies Ed25519 with the cofactor; veen needs one that does not")


check_rule()
