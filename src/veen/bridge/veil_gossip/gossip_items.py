"""The objects that travel: one item per VEIL object, typed, about one hub, in one encoding.

The content is a checkpoint with the hub metadata that verifies it, an evidence file, or a bundle. Content that is too
long for one item is cut into parts named by their hash, and a manifest lists them. Parts may arrive in any order and
from any sender; assembled content that does not match the manifest is discarded.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated

from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.core import Checkpoint, HubIdentity, IdentitySignature
from veen.core.cbor import Bstr, Bytes, Constant, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.hashing import ht

KIND = "veen.carriage.v1"
# Fills the shards of one VEIL object well and leaves room for the item around it.
PART_BYTES = 88 * 1024
MAX_PAYLOAD_BYTES = PART_BYTES + 128
# A node keeps about twice this much unread data.
MAX_CONTENT_BYTES = 1 << 25
MAX_PARTS = -(-MAX_CONTENT_BYTES // PART_BYTES)


class ItemKind(IntEnum):
    CHECKPOINT = 1
    EVIDENCE = 2
    BUNDLE = 3
    MANIFEST = 4
    PART = 5

    @property
    def word(self) -> str:
        return self.name.lower()


@int_map("carriage item", Constant(KIND, name="kind"), VersionField())
class GossipItem(Wire):
    """One payload. `hub_id` is the hub that the content is about. The receiver verifies the content itself."""

    hub_id: Annotated[bytes, Bstr()]
    what: Annotated[int, Uint(least=ItemKind.CHECKPOINT, most=ItemKind.PART)]
    body: Annotated[bytes, Bytes(PART_BYTES)]


@int_map("carried checkpoint")
class ShownCheckpoint(Wire):
    """A checkpoint with the hub metadata known to its publisher, which may name keys that receivers do not know yet.

    Profile and origin of a hub never change and are known to the receiver, so they are not included.
    """

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]


@int_map("carriage manifest")
class PartsManifest(Wire):
    """How long content was cut: every part except the last has PART_BYTES."""

    what: Annotated[int, Uint(least=ItemKind.CHECKPOINT, most=ItemKind.BUNDLE)]
    size: Annotated[int, Uint(least=PART_BYTES + 1, most=MAX_CONTENT_BYTES)]
    digest: Annotated[bytes, Bstr()]
    parts: Annotated[tuple[bytes, ...], ListOf(Bstr(name="part"), least=2, most=MAX_PARTS)]

    def flaw(self) -> str | None:
        wanted = -(-self.size // PART_BYTES)
        return None if len(self.parts) == wanted else f"{len(self.parts)} parts, but its size requires {wanted}"

    def holds(self, content: bytes) -> bool:
        """Whether this is the content that was cut."""
        return len(content) == self.size and digest_of(ItemKind(self.what), content) == self.digest


def part_name(data: bytes) -> bytes:
    return ht("veen/carriage-part", data)


def digest_of(what: ItemKind, content: bytes) -> bytes:
    """Identifies content, whether it came in one item or in parts."""
    return ht("veen/carriage", bytes((what,)) + content)


def items_of(hub_id: bytes, what: ItemKind, content: bytes) -> Iterator[GossipItem]:
    """The items for some content: one item, or a manifest followed by its parts."""
    if len(content) > MAX_CONTENT_BYTES:
        raise ValueError(f"{len(content)} bytes, the maximum is {MAX_CONTENT_BYTES}")
    if len(content) <= PART_BYTES:
        yield GossipItem(hub_id, what, content)
        return
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    manifest = PartsManifest(what, len(content), digest_of(what, content), tuple(map(part_name, parts)))
    yield GossipItem(hub_id, ItemKind.MANIFEST, manifest.encode())
    for part in parts:
        yield GossipItem(hub_id, ItemKind.PART, part)


# From the range that VEIL reserves for applications. Items in other namespaces are ignored.
NAMESPACE = 0x5645


def secret_of(hub_id: bytes) -> bytes:
    """The group secret, which anyone who knows the hub id can derive."""
    return ht("veen/carriage-meeting", hub_id)


class GossipGroup:
    """The VEIL group in which the clients of one hub exchange items."""

    def __init__(self, node: VeilNode, hub_id: bytes, group: str) -> None:
        self.node = node
        self.hub_id = hub_id
        self.group = group

    @classmethod
    async def join(cls, node: VeilNode, hub_id: bytes, group: str | None = None) -> "GossipGroup":
        """Join and subscribe to the group of the hub's clients, or subscribe to a group that the node is in."""
        if group is None:
            group = await node.join(f"veen-{hub_id.hex()[:16]}", secret_of(hub_id), NAMESPACE)
        await node.subscribe(group, NAMESPACE)
        return cls(node, hub_id, group)

    async def publish(self, item: GossipItem) -> int:
        return await self.node.publish(item.encode(), self.group, NAMESPACE)
