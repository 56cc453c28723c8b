"""What travels: one item for each VEIL object, typed, of one hub, and in one encoding.

Contents are a checkpoint with the papers that its signature is checked with, an evidence file, or a bundle. What is
too long for one item goes in parts, each known by its hash, and a manifest that lists them: parts come in any order and
from anyone, and what is put together is what the manifest says or nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.core import Checkpoint, HubIdentity, IdentitySignature
from veen.core.cbor import Bstr, Bytes, Constant, ListOf, Map, Nested, Uint, VersionField, Wire
from veen.core.hashing import ht

KIND = "veen.carriage.v1"
# What fills the shards of one VEIL object as well as it can be done, with room for the item around it.
PART_BYTES = 88 * 1024
MAX_PAYLOAD_BYTES = PART_BYTES + 128
# A node keeps about twice as much of what it was sent, until it is read.
MAX_CONTENT_BYTES = 1 << 25
MAX_PARTS = -(-MAX_CONTENT_BYTES // PART_BYTES)


class ItemKind(IntEnum):
    """What an item holds."""

    CHECKPOINT = 1
    EVIDENCE = 2
    BUNDLE = 3
    MANIFEST = 4
    PART = 5

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class GossipItem(Wire):
    """One payload. The hub is the one that the contents are about; nothing is believed for being said here."""

    hub_id: bytes
    what: int
    body: bytes

    LAYOUT: ClassVar = Map(
        "carriage item",
        {
            1: Constant("kind", KIND),
            2: VersionField(),
            3: Bstr("hub_id"),
            4: Uint("what", least=ItemKind.CHECKPOINT, most=ItemKind.PART),
            5: Bytes("body", PART_BYTES),
        },
    )


@dataclass(frozen=True, slots=True)
class ShownCheckpoint(Wire):
    """A checkpoint, and the hub's papers as its publisher knows them: they may name a key that others do not know yet.

    Profile and origin are not here: a hub has one of each for ever, and who compares knows the hub already.
    """

    identity: HubIdentity
    signature: IdentitySignature
    checkpoint: Checkpoint

    LAYOUT: ClassVar = Map(
        "carried checkpoint",
        {
            1: Nested("identity", HubIdentity),
            2: Nested("signature", IdentitySignature),
            3: Nested("checkpoint", Checkpoint),
        },
    )


@dataclass(frozen=True, slots=True)
class PartsManifest(Wire):
    """How something long was cut: every part is full but the last."""

    what: int
    size: int
    digest: bytes
    parts: tuple[bytes, ...]

    LAYOUT: ClassVar = Map(
        "carriage manifest",
        {
            1: Uint("what", least=ItemKind.CHECKPOINT, most=ItemKind.BUNDLE),
            2: Uint("size", least=PART_BYTES + 1, most=MAX_CONTENT_BYTES),
            3: Bstr("digest"),
            4: ListOf("parts", Bstr("part"), least=2, most=MAX_PARTS),
        },
    )

    def flaw(self) -> str | None:
        wanted = -(-self.size // PART_BYTES)
        return None if len(self.parts) == wanted else f"{len(self.parts)} parts, where its size makes it {wanted}"

    def holds(self, content: bytes) -> bool:
        """Whether this is what was cut."""
        return len(content) == self.size and digest_of(ItemKind(self.what), content) == self.digest


def part_name(data: bytes) -> bytes:
    return ht("veen/carriage-part", data)


def digest_of(what: ItemKind, content: bytes) -> bytes:
    """What contents are known by, however they came."""
    return ht("veen/carriage", bytes((what,)) + content)


def items_of(hub_id: bytes, what: ItemKind, content: bytes) -> Iterator[GossipItem]:
    """The items that carry some contents: one, or a manifest and then its parts."""
    if len(content) > MAX_CONTENT_BYTES:
        raise ValueError(f"{len(content)} bytes, above {MAX_CONTENT_BYTES}")
    if len(content) <= PART_BYTES:
        yield GossipItem(hub_id, what, content)
        return
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    manifest = PartsManifest(what, len(content), digest_of(what, content), tuple(map(part_name, parts)))
    yield GossipItem(hub_id, ItemKind.MANIFEST, manifest.encode())
    for part in parts:
        yield GossipItem(hub_id, ItemKind.PART, part)


# Of the range that VEIL leaves to applications; what is said elsewhere at the node is none of ours.
NAMESPACE = 0x5645


def secret_of(hub_id: bytes) -> bytes:
    """What everyone who knows the hub shares."""
    return ht("veen/carriage-meeting", hub_id)


class GossipGroup:
    """A node that is where the others are."""

    def __init__(self, node: VeilNode, hub_id: bytes, group: str) -> None:
        self.node = node
        self.hub_id = hub_id
        self.group = group

    @classmethod
    async def enter(cls, node: VeilNode, hub_id: bytes, group: str | None = None) -> "GossipGroup":
        """Listen where the hub's clients meet, or in a group that the node is in."""
        if group is None:
            group = await node.join(f"veen-{hub_id.hex()[:16]}", secret_of(hub_id), NAMESPACE)
        await node.subscribe(group, NAMESPACE)
        return cls(node, hub_id, group)

    async def say(self, item: GossipItem) -> int:
        return await self.node.publish(item.encode(), self.group, NAMESPACE)
