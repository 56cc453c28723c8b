"""From payloads to encoded shards, and from a reconstructed object to its payload. Spec §7, §8 and §10.

batch     small items share an object up to the target size; no object exceeds the limit
publish   choose a shape → pad to fill it → seal → sign → encode → root → shards
receive   root (`Reassembly`) → decode → compare the address with the shards → signature and namespace policy
open      decrypt → unpad
"""

import os
from collections import deque
from dataclasses import dataclass

from plumbing.cbor_heads import ARRAY, head_bytes, write_array
from plumbing.sodium import SigningKey
from veil import profiles
from veil.codec import NATIVE, Reader, ciphertext_bytes, fixed_bytes, object_bytes
from veil.encryption import Key, Lock, check_policy, pad, sign_object, unpad
from veil.hashing import h
from veil.objects import NONCE_BYTES, Address, ErasureMode, Flags, NamespacePolicy, ObjectV1, ShardSet
from veil.profiles import Shape
from veil.veil_errors import Malformed, Refused
from veil.veil_limits import MAX_BATCH_ITEMS, MAX_OBJECT_BYTES, TARGET_BATCH_BYTES

MIN_ITEMS = 2


def encode_batch(items: tuple[bytes, ...]) -> bytes:
    if not MIN_ITEMS <= len(items) <= MAX_BATCH_ITEMS:
        raise ValueError(f"a batch has {MIN_ITEMS} to {MAX_BATCH_ITEMS} items, not {len(items)}")
    return write_array(*items)


def decode_batch(payload: bytes) -> tuple[bytes, ...]:
    reader = Reader(payload, "batch")
    count = reader.head(ARRAY, MAX_BATCH_ITEMS)
    if count < MIN_ITEMS:
        reader.fail(f"{count} items, fewer than {MIN_ITEMS}")
    items = tuple(reader.byte_string(MAX_OBJECT_BYTES) for _ in range(count))
    reader.end()
    return items


Batch = tuple[bytes, ...]


class Batcher:
    """A FIFO queue that groups items into batches whose objects stay within the target size.

    `overhead` is the size of an object minus its payload (`assembly.overhead`). An item larger than the target is a
    batch of its own. With `target` from `assembly.batch_target` a full batch exactly fills its shards. An object of
    96 KiB would be a few hundred bytes too large for six shards of 16 KiB, and padding would double its size.
    """

    def __init__(self, overhead: int, target: int = TARGET_BATCH_BYTES, limit: int = MAX_OBJECT_BYTES) -> None:
        self._target = min(target, limit) - overhead
        self._limit = limit - overhead
        self._next: list[bytes] = []
        self._next_bytes = 0
        self._later: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._next) + len(self._later)

    def add(self, item: bytes) -> None:
        """Queue an item. Raise `Refused` if it is too large for an object."""
        if len(item) > self._limit:
            raise Refused("item", f"{len(item)} bytes are more than the {self._limit} bytes that an object can carry")
        self._later.append(item)
        self._fill()

    @property
    def full(self) -> bool:
        """Whether the next batch cannot take another item."""
        return bool(self._later) or head_bytes(len(self._next)) + self._next_bytes >= self._target

    def take(self, *, interactive: bool = False) -> Batch:
        """Remove and return the next batch, or an empty one. An `interactive` batch has a single item."""
        if interactive:
            self._later.extendleft(reversed(self._next[1:]))
            self._next = self._next[:1]
        batch, self._next, self._next_bytes = tuple(self._next), [], 0
        self._fill()
        return batch

    def _fill(self) -> None:
        """Move items into the next batch while they fit. An item too large for the target is a batch of its own."""
        while self._later and len(self._next) < MAX_BATCH_ITEMS:
            grown = self._next_bytes + head_bytes(len(self._later[0])) + len(self._later[0])
            if self._next and head_bytes(len(self._next) + 1) + grown > self._target:
                break
            self._next.append(self._later.popleft())
            self._next_bytes = grown


def batch_payload(items: Batch) -> tuple[bytes, Flags]:
    """The payload of a batch and its flag. A single item is not wrapped."""
    if len(items) == 1:
        return items[0], Flags.NONE
    return encode_batch(items), Flags.BATCHED


_END_MARK_BYTES = 1
_MAX_HEAD_BYTES = 5


@dataclass(frozen=True, slots=True)
class Published:
    """An encoded object and all its encoded shards, each exactly `bucket_size` bytes long."""

    of: ShardSet
    encoded: bytes
    shards: tuple[bytes, ...]

    @property
    def object_root(self) -> bytes:
        return self.of.object_root


@dataclass(frozen=True, slots=True)
class Received:
    """A restored object whose address, signature and namespace policy were verified."""

    of: ShardSet
    obj: ObjectV1


@dataclass(frozen=True, slots=True)
class Opened:
    """The payload of an object. `sender_pubkey` is set if a signature was verified."""

    address: Address
    flags: Flags
    payload: bytes
    sender_pubkey: bytes | None

    @property
    def items(self) -> tuple[bytes, ...]:
        """The items of a batch, or the payload as a single item. Raise `Malformed` for an invalid batch."""
        return decode_batch(self.payload) if self.flags & Flags.BATCHED else (self.payload,)


def overhead(address: Address, lock: Lock, *, signed: bool) -> int:
    """The size of an object minus the size of its payload, before padding."""
    return fixed_bytes(address, signed) + _MAX_HEAD_BYTES + lock.overhead + _END_MARK_BYTES


def batch_target(address: Address, mode: ErasureMode, target: int = TARGET_BATCH_BYTES) -> int:
    """The largest object size within a batch target that exactly fills its shards."""
    return profiles.fullest(target, lambda shape: object_bytes(address, shape, mode))


def publish(
    payload: bytes,
    address: Address,
    lock: Lock,
    *,
    flags: Flags = Flags.NONE,
    signer: SigningKey | None = None,
    mode: ErasureMode = ErasureMode.HARDENED,
    jitter: int = 0,
    shape: Shape | None = None,
    nonce: bytes | None = None,
) -> Published:
    """Seal a payload and encode its shards. Raise `Refused` if it is too large.

    `nonce` and `shape` make the result reproducible. Never use a nonce twice under one key.
    """
    size = len(payload) + overhead(address, lock, signed=signer is not None)
    if size > MAX_OBJECT_BYTES:
        raise Refused("object", f"{size} bytes are more than the limit of {MAX_OBJECT_BYTES}")
    nonce = os.urandom(NONCE_BYTES) if nonce is None else nonce

    def room(of: Shape) -> int:
        return object_bytes(address, of, mode)

    shape = shape or profiles.choose(size, room, jitter=jitter, draw=h(nonce)[0])
    if size > room(shape):
        raise Refused("object", f"{size} bytes do not fit {shape.k} shards of {shape.bucket_size}")
    length = ciphertext_bytes(address, shape, mode, signer is not None)
    sealed = lock.seal(address, nonce, pad(payload, length - lock.overhead))
    obj = ObjectV1(address, flags & ~Flags.SIGNED, nonce, sealed)
    encoded = NATIVE.encode_object(sign_object(obj, signer) if signer else obj)
    of = ShardSet(address, h(encoded), shape, mode)
    return Published(of, encoded, encode_shards(of, encoded))


def encode_shards(of: ShardSet, encoded: bytes) -> tuple[bytes, ...]:
    """All shards of an encoded object. A node that restored the object can serve any of them."""
    return NATIVE.encode_shards(of, encoded)


def receive(of: ShardSet, encoded: bytes, policy: NamespacePolicy) -> Received:
    """Decode and verify a restored object: address, signature and namespace policy. Needs no key."""
    obj = NATIVE.decode_object(encoded)
    if obj.address != of.address:
        raise Malformed("object", "its address differs from the address of its shards")
    check_policy(obj, policy)
    return Received(of, obj)


def open_object(received: Received, key: Key) -> Opened:
    """Decrypt the payload of an object."""
    obj = received.obj
    payload = unpad(key.open(obj.address, obj.nonce, obj.ciphertext))
    if len(payload) + fixed_bytes(obj.address, obj.signed) > MAX_OBJECT_BYTES:
        raise Refused("object", f"the payload has {len(payload)} bytes, more than an object may carry")
    return Opened(obj.address, obj.flags, payload, obj.sender_pubkey)
