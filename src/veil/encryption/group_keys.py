"""Groups: members share a secret. Tags and keys are derived from it, and rotation replaces it.

    locator      = derive("veil group locator v1", group_id || u32be(generation) || secret)
    tag          = rv_tag(locator, epoch, namespace)
    content key  = derive("veil group content v1", the same)
    next secret  = derive("veil group ratchet v1", the same)
    agreed id    = derive("veil group agreed v1", secret)

Only members can recognise the tags of a group, or link two of them. `ratchet` derives the next secret without a
message; a member that deletes the old secret can no longer open older objects. `rotate` draws a new secret, which
remaining members receive by private delivery; a member that does not receive it is excluded. An agreed group has a
secret that its members got elsewhere: it has one generation and no invitations.
"""

import os
from dataclasses import dataclass, field
from typing import Self

from plumbing.cbor_heads import ARRAY, UINT, write_array
from plumbing.sodium import AEAD_KEY_BYTES as KEY_BYTES
from veil.codec.cbor_reader import Reader
from veil.encryption.aead import SharedKey
from veil.hashing import HASH_BYTES, derive, u32be
from veil.objects import Address
from veil.tags import DEFAULT_EPOCHS, Epochs, rv_tag, rv_tags
from veil.veil_errors import Malformed, Refused
from veil.veil_limits import MAX_GROUP_GENERATIONS, MAX_UINT32

SHARE_VERSION = 1
_FIELDS = 4


@dataclass(frozen=True, slots=True)
class GroupSecret:
    """One generation of a group's secret."""

    group_id: bytes
    generation: int
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.group_id) != HASH_BYTES or len(self.secret) != KEY_BYTES:
            raise Malformed("group secret", "the group id and the secret must have 32 bytes each")
        if not 0 <= self.generation <= MAX_UINT32:
            raise Malformed("group secret", f"generation {self.generation} is not a 32-bit number")

    @classmethod
    def create(cls) -> Self:
        return cls(os.urandom(HASH_BYTES), 0, os.urandom(KEY_BYTES))

    @classmethod
    def agreed(cls, secret: bytes) -> Self:
        """The agreed group of a secret. The id is derived from the secret, so members need not communicate."""
        return cls(derive("veil group agreed v1", secret), 0, secret)

    @property
    def is_agreed(self) -> bool:
        return self.generation == 0 and self == self.agreed(self.secret)

    def locator(self) -> bytes:
        """Takes the place of a public key in the tags of the group."""
        return self._derive("veil group locator v1")

    def address(self, namespace: int, epoch: int) -> Address:
        return Address(rv_tag(self.locator(), epoch, namespace), namespace, epoch)

    def key(self) -> SharedKey:
        return SharedKey(self._derive("veil group content v1"))

    def ratchet(self) -> Self:
        """The next generation, which every member can derive alone."""
        return type(self)(self.group_id, self.generation + 1, self._derive("veil group ratchet v1"))

    def rotate(self) -> Self:
        """The next generation with a new random secret, for the members that receive it."""
        return type(self)(self.group_id, self.generation + 1, os.urandom(KEY_BYTES))

    def encode(self) -> bytes:
        """The share that a member receives in a letter."""
        return write_array(SHARE_VERSION, self.group_id, self.generation, self.secret)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "group secret")
        reader.exactly(ARRAY, _FIELDS)
        reader.exactly(UINT, SHARE_VERSION)
        share = cls(reader.fixed(HASH_BYTES), reader.uint(MAX_UINT32), reader.fixed(KEY_BYTES))
        reader.end()
        return share

    def _derive(self, context: str) -> bytes:
        return derive(context, self.group_id + u32be(self.generation) + self.secret)


@dataclass(frozen=True, slots=True)
class Group:
    """The generations that a member reads, ascending. The last one is used for writing."""

    secrets: tuple[GroupSecret, ...]

    @property
    def newest(self) -> GroupSecret:
        return self.secrets[-1]

    def adopt(self, secret: GroupSecret) -> "Group":
        """Add a newer generation and drop the oldest. Raise `Refused` for an older one or another group."""
        if secret.group_id != self.newest.group_id:
            raise Refused("group secret", "it belongs to another group")
        if secret == self.newest:
            return self
        if secret.generation <= self.newest.generation:
            raise Refused("group secret", f"generation {secret.generation} is not after {self.newest.generation}")
        return Group((*self.secrets, secret)[-MAX_GROUP_GENERATIONS:])

    def tags(self, namespace: int, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, GroupSecret]:
        """The tags to request at a time, each with the secret that opens its objects."""
        return {tag: secret for secret in self.secrets for tag in rv_tags(secret.locator(), namespace, now_s, epochs)}
