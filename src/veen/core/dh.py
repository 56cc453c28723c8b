"""X25519 key pairs. Spec §3.2, RFC 7748."""

import os
from typing import NoReturn, Self

from nacl import bindings
from nacl.exceptions import RuntimeError as SodiumError

from veen.core.errors import Malformed

KEY_BYTES = 32


class DhKey:
    """An X25519 key pair. The secret half never shows in `repr`."""

    __slots__ = ("_secret", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed("dh key", f"{len(secret)} secret bytes, not {KEY_BYTES}")
        self._secret = secret
        self.public_key = bindings.crypto_scalarmult_base(secret)

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The 32 secret bytes: for keystores, and for `dleq`."""
        return self._secret

    def exchange(self, peer: bytes) -> bytes:
        """The shared secret with a peer's public key; a peer of small order is refused (RFC 7748 §6.1)."""
        if len(peer) != KEY_BYTES:
            raise Malformed("dh key", f"{len(peer)} public bytes, not {KEY_BYTES}")
        try:
            return bindings.crypto_scalarmult(self._secret, peer)
        except SodiumError:
            raise Malformed("dh key", "the public key has small order") from None

    def __repr__(self) -> str:
        return f"DhKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")
