"""Channels: the three ways to be heard. A feed speaks to all, a mailbox to one, a group to its members.

A channel tells which tags to ask for at a time and with which key each is opened, publishes under its own address, and
judges who a received object is by. Whoever merely passes shards on needs none of this.

    feed      sealed with a key made of the tag, signed in clear by the publisher the tag is made of
    mailbox   sealed to one key, under a tag of the epoch; sender and signature are inside the seal
    group     sealed with a key of the group, under a tag of the epoch; sender and signature are inside the seal
"""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from veil.assembly import Opened, Published, Received, open_object, publish
from veil.encryption.aead import Key, Lock, SharedKey
from veil.encryption.group_keys import Group
from veil.encryption.object_signature import SigningKey
from veil.encryption.private_delivery import DeliveryKey, Recipient, read_letter, write_letter
from veil.hashing import derive
from veil.namespaces import ErasureMode
from veil.objects import Address, Flags, ObjectV1
from veil.tags import DEFAULT_EPOCHS, Epochs, feed_tag, rv_tags
from veil.veil_errors import Unverified

_CONTEXT = "veil public feed v1"


def feed_address(publisher_pubkey: bytes, namespace: int, epoch: int) -> Address:
    return Address(feed_tag(publisher_pubkey, namespace), namespace, epoch)


def feed_key(tag: bytes) -> SharedKey:
    """The key of a feed, for all who know its tag. Relays that do not know what a tag is of can use it too."""
    return SharedKey(derive(_CONTEXT, tag))


def check_author(obj: ObjectV1) -> None:
    """Raise `Unverified` unless the sender an object names is the publisher of the feed it is in.

    The signature must have been verified. Without this, anyone who knows a tag could write into the feed.
    """
    sender = obj.sender_pubkey
    if sender is None or feed_tag(sender, obj.address.namespace) != obj.address.tag:
        raise Unverified("object", "it is not by the publisher of this feed")


class Channel(Protocol):
    """What a node subscribes to."""

    def keys(self, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, Key]:
        """The tags to ask for at a time, and the key that opens what comes under each."""
        ...

    def open(self, received: Received, key: Key) -> Opened:
        """What was said and by whom. Raise `VeilError` where it is not for this channel to say."""
        ...


@dataclass(frozen=True, slots=True)
class Feed:
    """A public feed, known by its tag alone."""

    tag: bytes
    namespace: int

    @classmethod
    def of(cls, publisher_pubkey: bytes, namespace: int) -> Self:
        return cls(feed_tag(publisher_pubkey, namespace), namespace)

    def keys(self, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, Key]:
        return {self.tag: feed_key(self.tag)}

    def open(self, received: Received, key: Key) -> Opened:
        """What the publisher said. Raise `Unverified` for anyone else."""
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
    """Say something in the signer's own feed."""
    tag = feed_tag(signer.public_key, namespace)
    address = Address(tag, namespace, epoch)
    return publish(payload, address, feed_key(tag), flags=flags | Flags.PUBLIC, signer=signer, mode=mode, jitter=jitter)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Where the holder of a delivery key is met in a namespace."""

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
    """Say something to one recipient. Who would rather not be known signs with a key made for the occasion."""
    return _send_letter(body, sender, recipient.address(namespace, epoch), recipient, flags, jitter)


@dataclass(frozen=True, slots=True)
class GroupChannel:
    """Where a group is met in a namespace."""

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
    """Say something to all members of a group, under its newest secret."""
    address = group.newest.address(namespace, epoch)
    return _send_letter(body, sender, address, group.newest.key(), flags, jitter)


def _send_letter(body: bytes, sender: SigningKey, address: Address, lock: Lock, flags: Flags, jitter: int) -> Published:
    return publish(write_letter(address, sender, body), address, lock, flags=flags, jitter=jitter)


def _open_letter(received: Received, key: Key) -> Opened:
    opened = open_object(received, key)
    letter = read_letter(opened.address, opened.payload)
    return replace(opened, payload=letter.body, sender_pubkey=letter.sender_pubkey)
