"""Ed25519 with libsodium's acceptance rule, so that every implementation admits the same signatures.

The rule: A, R and S are canonical, A and R are not of small order, and R equals [S]B - [k]A exactly, without the
cofactor. OpenSSL accepts more signatures, so no other module verifies Ed25519. A libsodium that uses the cofactor
would admit messages that other hubs reject, so importing this module fails with such a library.
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
    """An Ed25519 key pair. `repr` does not show the secret half, and keys are not compared by it."""

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
        """The 32 secret bytes from which the key pair is derived. Only keystores need them."""
        return self._secret[:SEED_BYTES]

    def sign(self, message: bytes) -> bytes:
        return bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secret keys cannot be pickled")


def is_valid(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature verifies. For choosing among keys; use `verify` where the result must not be ignored."""
    # libsodium reads fixed lengths from the pointers it gets, so the lengths must be checked here.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        bindings.crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


def verify(public_key: bytes, message: bytes, signature: bytes, what: str = "signature") -> None:
    """Raise `Unverified` unless the signature over the message verifies under the key."""
    if not is_valid(public_key, message, signature):
        raise Unverified(what, "the signature does not verify under the key")


# Valid with the cofactor and invalid without: the key and R each have a component of order 8.
_PROBE = (
    bytes.fromhex("2624e942216e9ab01bdb288080586b3aff8b1fdf18119f732271c50ada61a4ff"),
    bytes(4),
    bytes.fromhex(
        "f07c9320643bdc58041b6c9eee4825b6d5b06af7c0dbb08174d05ddf50acac3f"
        "ef54376f3981f6a8868a5fa9da232b396e44342144d8fb86d6b927094eb9a605"
    ),
)


def check_rule() -> None:
    """Raise `ImportError` if the library behind PyNaCl verifies signatures with the cofactor."""
    if is_valid(*_PROBE):
        raise ImportError("this libsodium verifies Ed25519 with the cofactor; veen needs one that does not")


check_rule()
