"""Public feeds: readable by anyone who has the tag, written by the one whose key the tag is made of."""

from veil.encryption.aead import SharedKey
from veil.hashing import derive
from veil.objects import Address, ObjectV1
from veil.tags import feed_tag
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
