"""Namespaces; ObjectV1, the sealed form of what an application publishes; and ShardV1, one of its n pieces.

A shard has in clear all that a node needs to forward it: its address and its shard set. No key is needed. Spec §2.1, §4
and §5; the local policy for objects in a namespace follows §8 and §9.3.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from veil.hashing import HASH_BYTES, u16be, u32be
from veil.profiles import Shape
from veil.veil_errors import Malformed
from veil.veil_limits import BUCKET_SIZES, MAX_SHARDS, MAX_UINT16, MAX_UINT32


class Namespace(IntEnum):
    """Assigned numbers. The range up to 31 is reserved; applications use the rest."""

    SYSTEM = 0
    PUBLIC_FEED = 1
    PRIVATE = 2
    TRUST = 3
    RELAY = 4
    BUNDLES = 5


class ErasureMode(IntEnum):
    """Systematic: the first k shards are the blocks. Hardened: blocks pass the all-or-nothing transform first."""

    SYSTEMATIC = 0
    HARDENED = 1


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """Local policy: the namespaces with systematic shards, and those that require a signature in clear.

    Public feeds are systematic, as the specification suggests, because their content is not secret. Public feeds,
    endorsements and relay announcements must be signed, because their meaning depends on the author.
    """

    systematic: frozenset[int] = frozenset({Namespace.PUBLIC_FEED})
    signed: frozenset[int] = frozenset({Namespace.PUBLIC_FEED, Namespace.TRUST, Namespace.RELAY})

    def erasure_mode(self, namespace: int) -> ErasureMode:
        return ErasureMode.SYSTEMATIC if namespace in self.systematic else ErasureMode.HARDENED

    def requires_signature(self, namespace: int) -> bool:
        return namespace in self.signed


OBJECT_VERSION = 1
NONCE_BYTES = 24
PUBKEY_BYTES = 32
SIGNATURE_BYTES = 64


class Flags(IntFlag):
    """Flags of an object. All other bits must be zero."""

    NONE = 0
    SIGNED = 1
    PUBLIC = 2
    ACK_REQUESTED = 4
    BATCHED = 8


ALL_FLAGS = Flags.SIGNED | Flags.PUBLIC | Flags.ACK_REQUESTED | Flags.BATCHED
# Plain integers for the checks of every object: an operation on `Flags` creates an object and takes 20 times as long.
_SIGNED, _UNKNOWN = int(Flags.SIGNED), ~int(ALL_FLAGS)


@dataclass(frozen=True, slots=True)
class Address:
    """Tag, namespace and epoch of an object. Object and shards both carry it, and the AEAD binds it."""

    tag: bytes
    namespace: int
    epoch: int

    def check(self, what: str) -> None:
        if len(self.tag) != HASH_BYTES:
            raise Malformed(what, f"the tag has {len(self.tag)} bytes, not {HASH_BYTES}")
        if not (0 <= self.namespace <= MAX_UINT16 and 0 <= self.epoch <= MAX_UINT32):
            raise Malformed(what, f"namespace {self.namespace} or epoch {self.epoch} is out of range (16 and 32 bits)")

    def aad(self) -> bytes:
        """Additional data of the AEAD, spec §7.2: tag || u16be(namespace) || u32be(epoch)."""
        return self.tag + u16be(self.namespace) + u32be(self.epoch)


@dataclass(frozen=True, slots=True)
class ObjectV1:
    """A sealed object. Its root is the hash of its encoding and therefore not a field."""

    address: Address
    flags: Flags
    nonce: bytes
    ciphertext: bytes
    padding: bytes = b""
    sender_pubkey: bytes | None = None
    signature: bytes | None = None
    # Only the dialect has this: a hash of the plaintext, which lets anyone confirm a guess of the plaintext.
    payload_root: bytes | None = None

    @property
    def signed(self) -> bool:
        return bool(int(self.flags) & _SIGNED)

    def check(self) -> None:
        """Raise `Malformed` unless the fields have their sizes and agree on whether there is a signature."""
        self.address.check("object")
        if int(self.flags) & _UNKNOWN:
            raise Malformed("object", f"unknown flags in {int(self.flags):#06x}")
        if len(self.nonce) != NONCE_BYTES:
            raise Malformed("object", f"the nonce has {len(self.nonce)} bytes, not {NONCE_BYTES}")
        if not self.ciphertext:
            raise Malformed("object", "the ciphertext is empty")
        if not self.signed == (self.sender_pubkey is not None) == (self.signature is not None):
            raise Malformed("object", "the flag `signed` does not match the presence of sender_pubkey and signature")
        if self.sender_pubkey is not None and len(self.sender_pubkey) != PUBKEY_BYTES:
            raise Malformed("object", f"sender_pubkey has {len(self.sender_pubkey)} bytes, not {PUBKEY_BYTES}")
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise Malformed("object", f"the signature has {len(self.signature)} bytes, not {SIGNATURE_BYTES}")
        if self.payload_root is not None and len(self.payload_root) != HASH_BYTES:
            raise Malformed("object", f"object_root has {len(self.payload_root)} bytes, not {HASH_BYTES}")


SHARD_VERSION = 2


@dataclass(frozen=True, slots=True)
class ShardSet:
    """The header fields that all shards of one object share: all but the index. Nodes group shards by it."""

    address: Address
    object_root: bytes
    shape: Shape
    erasure_mode: ErasureMode

    def __hash__(self) -> int:
        """Hash only the fields that differ between objects. Equality compares all fields."""
        return hash((self.object_root, self.address.namespace, self.address.epoch))

    def check(self) -> None:
        self.address.check("shard")
        if len(self.object_root) != HASH_BYTES:
            raise Malformed("shard", f"object_root has {len(self.object_root)} bytes, not {HASH_BYTES}")
        if self.shape.bucket_size not in BUCKET_SIZES:
            raise Malformed("shard", f"bucket size {self.shape.bucket_size} does not exist")
        if not 0 < self.shape.k <= self.shape.n <= MAX_SHARDS:
            raise Malformed("shard", f"k = {self.shape.k} and n = {self.shape.n} are not 0 < k <= n <= {MAX_SHARDS}")


@dataclass(frozen=True, slots=True)
class ShardV1:
    """One of the n pieces of an object: the unit of forwarding, deduplication and caching."""

    of: ShardSet
    index: int
    payload: bytes

    def check(self) -> None:
        self.of.check()
        if not 0 <= self.index < self.of.shape.n:
            raise Malformed("shard", f"index {self.index} is not below n = {self.of.shape.n}")
