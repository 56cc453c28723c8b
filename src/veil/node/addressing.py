"""The keys of a node, the destinations of messages, and sealing for them.

Messages in the queue are not sealed: a tag lasts one epoch, and a node may be offline for days. The node seals a
message when a peer is connected, under the epoch of that moment.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from plumbing.sodium import SigningKey
from veil.assembly import Published, overhead, publish
from veil.assembly import batch_target as largest_full_batch
from veil.channels import feed_address, feed_key
from veil.encryption import LETTER_BYTES, DeliveryKey, Group, Lock, Recipient, write_letter
from veil.hashing import HASH_BYTES, derive
from veil.node.config import NodeConfig
from veil.objects import Address, ErasureMode, Flags
from veil.veil_errors import Malformed, Refused
from veil.veil_limits import MAX_OBJECT_BYTES, MAX_UINT16


@dataclass(frozen=True, slots=True)
class Identity:
    """Signing key, delivery key and groups of a node."""

    signing: SigningKey
    delivery: DeliveryKey
    groups: tuple[Group, ...] = ()

    @classmethod
    def generate(cls) -> Self:
        return cls(SigningKey.generate(), DeliveryKey.generate())

    def group(self, group_id: bytes) -> Group:
        """Find a group by id. Raise `Refused` if the node is not a member."""
        for group in self.groups:
            if group.newest.group_id == group_id:
                return group
        raise Refused("group", f"this node is not a member of group {group_id.hex()[:16]}")


_ACK_CONTEXT = "veil ack v1"


class DestinationKind(IntEnum):
    FEED = 1
    PRIVATE = 2
    GROUP = 3


@dataclass(frozen=True, slots=True)
class Destination:
    """The feed of this node, one recipient, or a group, in a namespace."""

    kind: DestinationKind
    key: bytes
    namespace: int

    @classmethod
    def feed(cls, namespace: int) -> Self:
        return cls(DestinationKind.FEED, b"", namespace)

    @classmethod
    def private(cls, recipient_pubkey: bytes, namespace: int) -> Self:
        return cls(DestinationKind.PRIVATE, recipient_pubkey, namespace)

    @classmethod
    def group(cls, group_id: bytes, namespace: int) -> Self:
        return cls(DestinationKind.GROUP, group_id, namespace)

    def check(self) -> None:
        if len(self.key) != (0 if self.kind is DestinationKind.FEED else HASH_BYTES):
            raise Malformed("destination", f"the key has {len(self.key)} bytes")
        if not 0 <= self.namespace <= MAX_UINT16:
            raise Malformed("destination", f"namespace {self.namespace} is not a 16-bit number")


@dataclass(frozen=True, slots=True)
class Sealed:
    """An own object, and the key of its acknowledgement (empty if none is requested)."""

    published: Published
    ack_key: bytes


@dataclass(frozen=True, slots=True)
class Capacity:
    """Object overhead for a destination, and the object size that fills its shards."""

    overhead: int
    target: int

    def check(self, size: int) -> None:
        if size + self.overhead > MAX_OBJECT_BYTES:
            raise Refused(
                "payload",
                f"{size} bytes are more than the {MAX_OBJECT_BYTES - self.overhead} bytes that an object carries here",
            )


class Sealer:
    """Seals payloads for destinations with the keys of an identity."""

    def __init__(self, config: NodeConfig, identity: Identity) -> None:
        self._config = config
        self._identity = identity

    def capacity(self, destination: Destination, now: float) -> Capacity:
        address, lock = self._lock(destination, now)
        is_feed = destination.kind is DestinationKind.FEED
        extra = overhead(address, lock, signed=is_feed) + (0 if is_feed else LETTER_BYTES)
        return Capacity(extra, largest_full_batch(address, self._mode(destination)))

    def seal(self, destination: Destination, payload: bytes, flags: Flags, nonce: bytes, now: float) -> Sealed:
        """Seal a payload. Raise `Refused` if the node is no longer a member of the group."""
        address, lock = self._lock(destination, now)
        jitter, mode = self._config.jitter, self._mode(destination)
        if destination.kind is DestinationKind.FEED:
            signer = self._identity.signing
            flags |= Flags.PUBLIC
            made = publish(payload, address, lock, flags=flags, signer=signer, mode=mode, jitter=jitter, nonce=nonce)
            return Sealed(made, b"")
        letter = write_letter(address, self._identity.signing, payload)
        published = publish(letter, address, lock, flags=flags, mode=mode, jitter=jitter, nonce=nonce)
        return Sealed(published, ack_key(published.object_root, letter) if flags & Flags.ACK_REQUESTED else b"")

    def _mode(self, destination: Destination) -> ErasureMode:
        return self._config.policy.erasure_mode(destination.namespace)

    def _lock(self, destination: Destination, now: float) -> tuple[Address, Lock]:
        destination.check()
        epoch = self._config.epochs.at(now)
        match destination.kind:
            case DestinationKind.FEED:
                address = feed_address(self._identity.signing.public_key, destination.namespace, epoch)
                return address, feed_key(address.tag)
            case DestinationKind.PRIVATE:
                recipient = Recipient(destination.key)
                return recipient.address(destination.namespace, epoch), recipient
            case DestinationKind.GROUP:
                secret = self._identity.group(destination.key).newest
                return secret.address(destination.namespace, epoch), secret.key()


def ack_key(object_root: bytes, letter: bytes) -> bytes:
    """The key of an acknowledgement. Only writer and reader of the letter know the signature that it depends on."""
    return derive(_ACK_CONTEXT, object_root + letter)
