"""ObjectV1: what an application says, sealed, under the address it is asked for by. Spec §4."""

from dataclasses import dataclass
from enum import IntFlag

from veil.hashing import HASH_BYTES, u16be, u32be
from veil.namespaces import ErasureMode
from veil.profiles import Shape
from veil.veil_errors import Malformed
from veil.veil_limits import BUCKET_SIZES, MAX_SHARDS, MAX_UINT16, MAX_UINT32

OBJECT_VERSION = 1
NONCE_BYTES = 24
PUBKEY_BYTES = 32
SIGNATURE_BYTES = 64


class Flags(IntFlag):
    """What an object says of itself; no other bit may be set."""

    NONE = 0
    SIGNED = 1
    PUBLIC = 2
    ACK_REQUESTED = 4
    BATCHED = 8


ALL_FLAGS = Flags.SIGNED | Flags.PUBLIC | Flags.ACK_REQUESTED | Flags.BATCHED
# Plain numbers where every object is asked: an operation on flags makes a new flag, at twenty times the price.
_SIGNED, _UNKNOWN = int(Flags.SIGNED), ~int(ALL_FLAGS)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an object belongs. An object and its shards carry it alike, and the seal is bound to it."""

    tag: bytes
    namespace: int
    epoch: int

    def check(self, what: str) -> None:
        if len(self.tag) != HASH_BYTES:
            raise Malformed(what, f"a tag of {len(self.tag)} bytes, not {HASH_BYTES}")
        if not (0 <= self.namespace <= MAX_UINT16 and 0 <= self.epoch <= MAX_UINT32):
            raise Malformed(what, "a namespace has 16 bits and an epoch 32")

    def aad(self) -> bytes:
        """What the AEAD is bound to, spec §7.2: tag || u16be(namespace) || u32be(epoch)."""
        return self.tag + u16be(self.namespace) + u32be(self.epoch)


@dataclass(frozen=True, slots=True)
class ObjectV1:
    """A sealed object. Its root is the hash of its encoding, so it is not a field of it."""

    address: Address
    flags: Flags
    nonce: bytes
    ciphertext: bytes
    padding: bytes = b""
    sender_pubkey: bytes | None = None
    signature: bytes | None = None
    # Only the dialect carries this: a hash of the plaintext, which lets anyone confirm a guess of it.
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
            raise Malformed("object", f"a nonce of {len(self.nonce)} bytes, not {NONCE_BYTES}")
        if not self.ciphertext:
            raise Malformed("object", "no ciphertext")
        if not self.signed == (self.sender_pubkey is not None) == (self.signature is not None):
            raise Malformed("object", "the flags say otherwise of a signature than the fields")
        if self.sender_pubkey is not None and len(self.sender_pubkey) != PUBKEY_BYTES:
            raise Malformed("object", f"a sender_pubkey of {len(self.sender_pubkey)} bytes, not {PUBKEY_BYTES}")
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise Malformed("object", f"a signature of {len(self.signature)} bytes, not {SIGNATURE_BYTES}")
        if self.payload_root is not None and len(self.payload_root) != HASH_BYTES:
            raise Malformed("object", f"an object_root of {len(self.payload_root)} bytes, not {HASH_BYTES}")


SHARD_VERSION = 2


@dataclass(frozen=True, slots=True)
class ShardSet:
    """What all shards of one object say alike: the whole header but for the index. Shards are grouped by it."""

    address: Address
    object_root: bytes
    shape: Shape
    erasure_mode: ErasureMode

    def __hash__(self) -> int:
        """Of what tells objects apart; what else there is to differ in has few values, and equality asks for all."""
        return hash((self.object_root, self.address.namespace, self.address.epoch))

    def check(self) -> None:
        self.address.check("shard")
        if len(self.object_root) != HASH_BYTES:
            raise Malformed("shard", f"an object_root of {len(self.object_root)} bytes, not {HASH_BYTES}")
        if self.shape.bucket_size not in BUCKET_SIZES:
            raise Malformed("shard", f"no bucket has {self.shape.bucket_size} bytes")
        if not 0 < self.shape.k <= self.shape.n <= MAX_SHARDS:
            raise Malformed("shard", f"{self.shape.k} of {self.shape.n} shards")


@dataclass(frozen=True, slots=True)
class ShardV1:
    """One shard."""

    of: ShardSet
    index: int
    payload: bytes

    def check(self) -> None:
        self.of.check()
        if not 0 <= self.index < self.of.shape.n:
            raise Malformed("shard", f"index {self.index} of {self.of.shape.n}")
