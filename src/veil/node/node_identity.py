"""Who a node is: the keys it signs and is written to with, and the groups it is in. Kept by whoever runs the node."""

from dataclasses import dataclass
from typing import Self

from veil.encryption.group_keys import Group
from veil.encryption.object_signature import SigningKey
from veil.encryption.private_delivery import DeliveryKey
from veil.veil_errors import Refused


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's keys and groups."""

    signing: SigningKey
    delivery: DeliveryKey
    groups: tuple[Group, ...] = ()

    @classmethod
    def generate(cls) -> Self:
        return cls(SigningKey.generate(), DeliveryKey.generate())

    def group(self, group_id: bytes) -> Group:
        """The group of an id. Raise `Refused` where the node is not in it."""
        for group in self.groups:
            if group.newest.group_id == group_id:
                return group
        raise Refused("group", f"this node is not in {group_id.hex()[:16]}")
