"""The keys and groups of a node. The caller stores them; see `runtime.keyring`."""

from dataclasses import dataclass
from typing import Self

from plumbing.sodium import SigningKey
from veil.encryption.group_keys import Group
from veil.encryption.private_delivery import DeliveryKey
from veil.veil_errors import Refused


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
