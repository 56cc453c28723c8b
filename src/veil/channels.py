"""Channels: a feed for everyone, a mailbox for one node, a group for its members.

A channel gives the tags to request at a time and the key of each, and authenticates the sender of an object. Nodes
that only forward shards need none of this.

    feed      sealed with a key derived from the tag; signed in clear by the publisher whose key gives the tag
    mailbox   sealed to one key, under a tag of the epoch; sender and signature are inside the seal
    group     sealed with a key of the group, under a tag of the epoch; sender and signature are inside the seal
"""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from plumbing.sodium import SigningKey
from veil.assembly import Opened, Published, Received, open_object, publish
from veil.encryption import DeliveryKey, Group, Key, Lock, Recipient, SharedKey, read_letter, write_letter
from veil.hashing import derive
from veil.objects import Address, ErasureMode, Flags, ObjectV1
from veil.tags import DEFAULT_EPOCHS, Epochs, feed_tag, rv_tags
from veil.veil_errors import Unverified

_CONTEXT = "veil public feed v1"


def feed_address(publisher_pubkey: bytes, namespace: int, epoch: int) -> Address:
    return Address(feed_tag(publisher_pubkey, namespace), namespace, epoch)


def feed_key(tag: bytes) -> SharedKey:
    """The key of a feed. Anyone who knows the tag can derive it, including relays."""
    return SharedKey(derive(_CONTEXT, tag))


def check_author(obj: ObjectV1) -> None:
    """Raise `Unverified` unless the sender of an object is the publisher of its feed.

    The caller has verified the signature. Without this check anyone who knows the tag could write to the feed.
    """
    sender = obj.sender_pubkey
    if sender is None or feed_tag(sender, obj.address.namespace) != obj.address.tag:
        raise Unverified("object", "the sender is not the publisher of this feed")


class Channel(Protocol):
    """A feed, mailbox or group that a node reads."""

    def keys(self, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, Key]:
        """The tags to request at a time, each with the key that opens its objects."""
        ...

    def open(self, received: Received, key: Key) -> Opened:
        """Open an object and authenticate its sender. Raise `VeilError` if either fails."""
        ...


@dataclass(frozen=True, slots=True)
class Feed:
    """A public feed, identified by its tag."""

    tag: bytes
    namespace: int

    @classmethod
    def of(cls, publisher_pubkey: bytes, namespace: int) -> Self:
        return cls(feed_tag(publisher_pubkey, namespace), namespace)

    def keys(self, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, Key]:
        return {self.tag: feed_key(self.tag)}

    def open(self, received: Received, key: Key) -> Opened:
        """Raise `Unverified` unless the object is signed by the publisher of the feed."""
        check_author(received.obj)
        return open_object(received, key)


def publish_feed(
    payload: bytes,
    signer: SigningKey,
    namespace: int,
    epoch: int,
    *,
    flags: Flags = Flags.NONE,
    mode: ErasureMode = ErasureMode.SYSTEMATIC,
    jitter: int = 0,
) -> Published:
    """Publish a payload in the feed of the signer."""
    tag = feed_tag(signer.public_key, namespace)
    address = Address(tag, namespace, epoch)
    return publish(payload, address, feed_key(tag), flags=flags | Flags.PUBLIC, signer=signer, mode=mode, jitter=jitter)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Private messages to the holder of a delivery key, in one namespace."""

    key: DeliveryKey
    namespace: int

    def keys(self, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, Key]:
        return dict.fromkeys(rv_tags(self.key.public_key, self.namespace, now_s, epochs), self.key)

    def open(self, received: Received, key: Key) -> Opened:
        return _open_letter(received, key)


def send_private(
    body: bytes,
    sender: SigningKey,
    recipient: Recipient,
    namespace: int,
    epoch: int,
    *,
    flags: Flags = Flags.NONE,
    jitter: int = 0,
) -> Published:
    """Publish a payload for one recipient. To stay anonymous, sign with a key that is used only once."""
    return _send_letter(body, sender, recipient.address(namespace, epoch), recipient, flags, jitter)


@dataclass(frozen=True, slots=True)
class GroupChannel:
    """Messages of a group, in one namespace."""

    group: Group
    namespace: int

    def keys(self, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, Key]:
        return {tag: secret.key() for tag, secret in self.group.tags(self.namespace, now_s, epochs).items()}

    def open(self, received: Received, key: Key) -> Opened:
        return _open_letter(received, key)


def send_group(
    body: bytes,
    sender: SigningKey,
    group: Group,
    namespace: int,
    epoch: int,
    *,
    flags: Flags = Flags.NONE,
    jitter: int = 0,
) -> Published:
    """Publish a payload for all members of a group, under its newest secret."""
    address = group.newest.address(namespace, epoch)
    return _send_letter(body, sender, address, group.newest.key(), flags, jitter)


def _send_letter(body: bytes, sender: SigningKey, address: Address, lock: Lock, flags: Flags, jitter: int) -> Published:
    return publish(write_letter(address, sender, body), address, lock, flags=flags, jitter=jitter)


def _open_letter(received: Received, key: Key) -> Opened:
    opened = open_object(received, key)
    letter = read_letter(opened.address, opened.payload)
    return replace(opened, payload=letter.body, sender_pubkey=letter.sender_pubkey)
