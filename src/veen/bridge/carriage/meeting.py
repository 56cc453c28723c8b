"""Where clients of one hub meet in VEIL: a group that whoever knows the hub can work out, or one of their own.

The first is public: its secret is made of `hub_id`, so that clients who never heard of each other find each other, and
so does anyone else who knows the hub. The second is a VEIL group like any other, whose members were invited.
"""

from veen.bridge.carriage.items import Item
from veen.bridge.carriage.node import VeilNode
from veen.core.hashing import ht

# Of the range that VEIL leaves to applications; what is said elsewhere at the node is none of ours.
NAMESPACE = 0x5645


def secret_of(hub_id: bytes) -> bytes:
    """What everyone who knows the hub shares."""
    return ht("veen/carriage-meeting", hub_id)


class Meeting:
    """A node that is where the others are."""

    def __init__(self, node: VeilNode, hub_id: bytes, group: str) -> None:
        self.node = node
        self.hub_id = hub_id
        self.group = group

    @classmethod
    async def enter(cls, node: VeilNode, hub_id: bytes, group: str | None = None) -> "Meeting":
        """Listen where the hub's clients meet, or in a group that the node is in."""
        if group is None:
            group = await node.join(f"veen-{hub_id.hex()[:16]}", secret_of(hub_id), NAMESPACE)
        await node.subscribe(group, NAMESPACE)
        return cls(node, hub_id, group)

    async def say(self, item: Item) -> int:
        return await self.node.publish(item.encode(), self.group, NAMESPACE)
