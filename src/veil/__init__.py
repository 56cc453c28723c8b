"""VEIL: sealed objects, cut into shards of one size, for lossy and hostile networks."""

from plumbing.sodium import SigningKey
from veil import profiles, tags
from veil.assembly import Batcher, Opened, Published, Received, batch_payload, open_object, publish, receive
from veil.channels import Channel, Feed, GroupChannel, Mailbox, publish_feed, send_group, send_private
from veil.codec import NATIVE
from veil.encryption import DeliveryKey, Group, GroupSecret, Recipient, SharedKey
from veil.objects import Address, ErasureMode, Flags, Namespace, NamespacePolicy, ObjectV1, ShardSet, ShardV1
from veil.profiles import Shape
from veil.reassembly import Inbox, Reassembled, Reassembly
from veil.tags import Epochs
from veil.veil_errors import Malformed, Refused, Unavailable, Unverified, VeilError

__all__ = [
    "Address",
    "Batcher",
    "Channel",
    "DeliveryKey",
    "Epochs",
    "ErasureMode",
    "Feed",
    "Flags",
    "Group",
    "GroupChannel",
    "GroupSecret",
    "Inbox",
    "Mailbox",
    "Malformed",
    "NATIVE",
    "Namespace",
    "NamespacePolicy",
    "ObjectV1",
    "Opened",
    "Published",
    "Reassembled",
    "Reassembly",
    "Received",
    "Recipient",
    "Refused",
    "Shape",
    "ShardSet",
    "ShardV1",
    "SharedKey",
    "SigningKey",
    "Unavailable",
    "Unverified",
    "VeilError",
    "batch_payload",
    "open_object",
    "profiles",
    "publish",
    "publish_feed",
    "receive",
    "send_group",
    "send_private",
    "tags",
]
