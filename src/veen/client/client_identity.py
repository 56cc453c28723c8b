"""A client's secrets: long-term keys, and the seed of the short-lived keys that it writes with. Spec 001 §3, KEX0.2."""

import os
from dataclasses import dataclass, field
from typing import Self

from veen.core import DhKey, SigningKey
from veen.core.hashing import HASH_BYTES, u64be
from veen.core.hpke import hkdf

SEED_BYTES = 32


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The long-term keys, and the seed from which client_ids are derived.

    A client_id is derived from its generation, so it is not stored, and only the holder of the seed can link two of
    them. Prekeys are derived from the long-term key, so a copy of the identity with another seed can still open what
    was sealed to them.
    """

    id_sign: SigningKey
    id_dh: DhKey
    client_seed: bytes = field(repr=False)
    created_at: int

    @classmethod
    def generate(cls, now: int) -> Self:
        return cls(SigningKey.generate(), DhKey.generate(), os.urandom(SEED_BYTES), now)

    def client_key(self, generation: int) -> SigningKey:
        """The key pair whose public half is the client_id of that generation."""
        return SigningKey(_derived(self.client_seed, b"veen/client-id" + u64be(generation)))

    def prekey(self, number: int) -> DhKey:
        """The key pair of a prekey. Peers seal to its public half until it expires."""
        return DhKey(_derived(self.id_dh.secret, b"veen/prekey" + u64be(number)))

    def state_key(self) -> bytes:
        """The key that seals secrets within the state."""
        return _derived(self.client_seed, b"veen/client-state")

    def first_rk(self, label: bytes) -> bytes:
        """The first key of a label's rekey ladder."""
        return _derived(self.client_seed, b"veen/rk" + label)


def _derived(secret: bytes, info: bytes) -> bytes:
    return hkdf(secret, salt=b"", info=info, length=HASH_BYTES)
