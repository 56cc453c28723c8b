"""Groups: members share a secret, from which tags and keys follow, and which is replaced by rotation.

    locator      = derive("veil group locator v1", group_id || u32be(generation) || secret)
    tag          = rv_tag(locator, epoch, namespace)
    content key  = derive("veil group content v1", the same)
    next secret  = derive("veil group ratchet v1", the same)
    agreed id    = derive("veil group agreed v1", secret)

Only members can tell which tags belong to a group, or that two tags belong to the same one. `ratchet` moves everyone
on without a message, and who forgets the old secret can no longer open what was said under it. `rotate` draws a new
secret, which is handed to those who stay by private delivery: who is not given it is out. A group whose members have
their secret from elsewhere is agreed on: it has one generation, and nobody is invited to another.
"""

import os
from dataclasses import dataclass, field
from typing import Self

from veil.codec import cbor_heads
from veil.codec.cbor_heads import ARRAY, UINT, Reader
from veil.encryption.aead import KEY_BYTES, SharedKey
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
            raise Malformed("group secret", "an id and a secret have 32 bytes each")
        if not 0 <= self.generation <= MAX_UINT32:
            raise Malformed("group secret", f"generation {self.generation}, not of 32 bits")

    @classmethod
    def create(cls) -> Self:
        return cls(os.urandom(HASH_BYTES), 0, os.urandom(KEY_BYTES))

    @classmethod
    def agreed(cls, secret: bytes) -> Self:
        """The group of all who have a secret from elsewhere: its id follows from that, so that they need not meet."""
        return cls(derive("veil group agreed v1", secret), 0, secret)

    @property
    def is_agreed(self) -> bool:
        return self.generation == 0 and self == self.agreed(self.secret)

    def locator(self) -> bytes:
        """What stands in for a public key in the tags of the group."""
        return self._derive("veil group locator v1")

    def address(self, namespace: int, epoch: int) -> Address:
        return Address(rv_tag(self.locator(), epoch, namespace), namespace, epoch)

    def key(self) -> SharedKey:
        return SharedKey(self._derive("veil group content v1"))

    def ratchet(self) -> Self:
        """The next generation, which every member can work out alone."""
        return type(self)(self.group_id, self.generation + 1, self._derive("veil group ratchet v1"))

    def rotate(self) -> Self:
        """The next generation with a new secret, for those it is given to."""
        return type(self)(self.group_id, self.generation + 1, os.urandom(KEY_BYTES))

    def encode(self) -> bytes:
        """The share that a member is given, inside a letter."""
        numbers = (
            cbor_heads.uint(SHARE_VERSION),
            cbor_heads.byte_string(self.group_id),
            cbor_heads.uint(self.generation),
        )
        return cbor_heads.head(ARRAY, _FIELDS) + b"".join(numbers) + cbor_heads.byte_string(self.secret)

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
    """The generations a member still reads, ascending; the last is the one to write with."""

    secrets: tuple[GroupSecret, ...]

    @property
    def newest(self) -> GroupSecret:
        return self.secrets[-1]

    def adopt(self, secret: GroupSecret) -> "Group":
        """The group with a newer generation; the oldest are forgotten. Raise `Refused` for any other."""
        if secret.group_id != self.newest.group_id:
            raise Refused("group secret", "it is another group's")
        if secret == self.newest:
            return self
        if secret.generation <= self.newest.generation:
            raise Refused("group secret", f"generation {secret.generation} is not after {self.newest.generation}")
        return Group((*self.secrets, secret)[-MAX_GROUP_GENERATIONS:])

    def tags(self, namespace: int, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, GroupSecret]:
        """Every tag to listen to at a time, with the secret that opens what comes under it."""
        return {tag: secret for secret in self.secrets for tag in rv_tags(secret.locator(), namespace, now_s, epochs)}
