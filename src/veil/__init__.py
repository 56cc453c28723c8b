"""VEIL: sealed objects, cut into shards of one size, for lossy and hostile networks."""

from plumbing.sodium import SigningKey
from veil import profiles, tags
from veil.assembly import Opened, Published, Received, open_object, publish, receive
from veil.batching import Batcher, batch_payload
from veil.channels import Channel, Feed, GroupChannel, Mailbox, publish_feed, send_group, send_private
from veil.codec.native import NATIVE
from veil.encryption.aead import SharedKey
from veil.encryption.group_keys import Group, GroupSecret
from veil.encryption.private_delivery import DeliveryKey, Recipient
from veil.fec.reassembly import Inbox, Reassembled, Reassembly
from veil.namespaces import ErasureMode, Namespace, NamespacePolicy
from veil.objects import Address, Flags, ObjectV1, ShardSet, ShardV1
from veil.profiles import Shape
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
