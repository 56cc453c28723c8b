"""Secrets encrypted with a passphrase: Argon2id over the passphrase, XChaCha20-Poly1305 over the secrets.

The file contains the cost of the key derivation. Reading bounds it, so that a foreign file can neither exhaust memory
nor weaken the derivation. The AEAD authenticates everything before the ciphertext.
"""

import os
from dataclasses import dataclass, field
from typing import Annotated, Self

from nacl import bindings
from nacl.exceptions import RuntimeError as SodiumError

from veen.core import hpke
from veen.core.cbor import Bstr, Bytes, Constant, Map, Nested, Uint, VersionField, Wire, int_map
from veen.core.errors import Unavailable, Unverified
from veen.core.limits import DEFAULT_KDF_KIB, LEAST_KDF_KIB, MAX_KDF_KIB, MAX_KDF_PASSES, MAX_SEALED_BYTES

_SALT_BYTES = 16


class WrongPassphrase(Unverified):
    """The passphrase is wrong or the file was altered; these cases cannot be distinguished."""


@int_map("cost")
class Cost(Wire):
    """The cost of one passphrase guess. The default is the second choice of RFC 9106 §4, with one lane."""

    passes: Annotated[int, Uint(least=1, most=MAX_KDF_PASSES)] = 3
    memory_kib: Annotated[int, Uint(least=LEAST_KDF_KIB, most=MAX_KDF_KIB)] = DEFAULT_KDF_KIB

    def key(self, passphrase: bytes, salt: bytes) -> bytes:
        try:
            return bindings.crypto_pwhash_alg(
                hpke.KEY_BYTES,
                passphrase,
                salt,
                self.passes,
                self.memory_kib << 10,
                bindings.crypto_pwhash_ALG_ARGON2ID13,
            )
        except SodiumError:
            raise Unavailable(f"not enough memory: the keystore's key derivation needs {self.memory_kib} KiB") from None


DEFAULT_COST = Cost()


@int_map("keystore", VersionField(), Constant("veen/keystore", name="kind"), Constant("argon2id", name="kdf"))
class SealedSecrets(Wire):
    """Encrypted secrets, as in `keystore.enc` of a client and in the file of a root key."""

    cost: Annotated[Cost, Nested(Cost)]
    salt: Annotated[bytes, Bstr(_SALT_BYTES)]
    nonce: Annotated[bytes, Bstr(hpke.XCHACHA_NONCE_BYTES)]
    sealed: Annotated[bytes, Bytes(MAX_SEALED_BYTES)]


# The authenticated data: all fields before the ciphertext.
_HEADER = Map("keystore header", dict(zip(range(1, 7), SealedSecrets.LAYOUT.kinds, strict=False)))


@dataclass(frozen=True, slots=True)
class PassphraseLock:
    """The key derived from the passphrase, so that the passphrase is not kept."""

    cost: Cost
    salt: bytes
    key: bytes = field(repr=False)

    @classmethod
    def new(cls, passphrase: bytes, cost: Cost = DEFAULT_COST) -> Self:
        if not passphrase:
            raise Unavailable("the passphrase is empty: give one, or choose a keystore without passphrase")
        salt = os.urandom(_SALT_BYTES)
        return cls(cost, salt, cost.key(passphrase, salt))

    @classmethod
    def of(cls, file: SealedSecrets, passphrase: bytes) -> Self:
        return cls(file.cost, file.salt, file.cost.key(passphrase, file.salt))

    def seal(self, secrets: bytes) -> bytes:
        nonce = os.urandom(hpke.XCHACHA_NONCE_BYTES)
        header = _HEADER.write([self.cost, self.salt, nonce])
        sealed = hpke.xchacha_seal(self.key, nonce, header, secrets)
        return SealedSecrets(self.cost, self.salt, nonce, sealed).encode()

    def unseal(self, file: SealedSecrets, name: str) -> bytes:
        """The secrets. Raises `WrongPassphrase`, which names the file."""
        header = _HEADER.write([file.cost, file.salt, file.nonce])
        try:
            return hpke.xchacha_open(self.key, file.nonce, header, file.sealed)
        except Unverified:
            raise WrongPassphrase(name, "the passphrase is wrong, or the file was altered") from None
