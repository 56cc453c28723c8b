"""The secrets of a node in `identity.json`: its keys, and its groups with their local names."""

from dataclasses import dataclass, replace
from typing import Any

from plumbing.sodium import SigningKey
from veil.encryption.group_keys import Group, GroupSecret
from veil.encryption.private_delivery import DeliveryKey
from veil.node import Identity
from veil.runtime.contacts import check_name
from veil.runtime.data_directory import DataDirectory
from veil.veil_errors import Malformed, Refused

_FILE = "identity.json"
MAX_GROUPS = 256


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A group and its local name."""

    name: str
    group: Group

    @property
    def group_id(self) -> bytes:
        return self.group.newest.group_id


@dataclass(frozen=True, slots=True)
class Keyring:
    """All secrets of a node, and its name."""

    signing: SigningKey
    delivery: DeliveryKey
    name: str = ""
    groups: tuple[NamedGroup, ...] = ()

    @classmethod
    def generate(cls, name: str = "") -> "Keyring":
        check_name(name)
        return cls(SigningKey.generate(), DeliveryKey.generate(), name)

    @property
    def identity(self) -> Identity:
        return Identity(self.signing, self.delivery, tuple(named.group for named in self.groups))

    def group(self, wanted: str) -> NamedGroup:
        """Find a group by local name or by a prefix of its id. Raise `Refused` unless exactly one matches."""
        found = [one for one in self.groups if one.name == wanted]
        found = found or [one for one in self.groups if wanted and one.group_id.hex().startswith(wanted.lower())]
        if len(found) != 1:
            raise Refused("group", f"{'no' if not found else 'more than one'} group matches {wanted!r}")
        return found[0]

    def with_group(self, named: NamedGroup) -> "Keyring":
        others = tuple(one for one in self.groups if one.group_id != named.group_id)
        if len(others) >= MAX_GROUPS:
            raise Refused("group", f"the limit of {MAX_GROUPS} groups is reached")
        if any(one.name == named.name for one in others):
            raise Refused("group", f"the name {named.name!r} is used by another group")
        return replace(self, groups=(*others, named))

    def without_group(self, group_id: bytes) -> "Keyring":
        return replace(self, groups=tuple(one for one in self.groups if one.group_id != group_id))


def save(directory: DataDirectory, keyring: Keyring) -> None:
    directory.write(
        _FILE,
        {
            "version": 1,
            "name": keyring.name,
            "signing": keyring.signing.seed.hex(),
            "delivery": keyring.delivery.secret.hex(),
            "groups": [
                {"name": one.name, "secrets": [secret.encode().hex() for secret in one.group.secrets]}
                for one in keyring.groups
            ],
        },
    )


def load(directory: DataDirectory) -> Keyring:
    directory.check()
    return _read(directory.read(_FILE))


def _read(data: dict[str, Any]) -> Keyring:
    try:
        groups = tuple(
            NamedGroup(one["name"], Group(tuple(GroupSecret.decode(bytes.fromhex(s)) for s in one["secrets"])))
            for one in data["groups"]
        )
        signing, delivery = SigningKey(bytes.fromhex(data["signing"])), DeliveryKey(bytes.fromhex(data["delivery"]))
        return Keyring(signing, delivery, str(data["name"]), groups)
    except (KeyError, TypeError, ValueError):
        raise Malformed(_FILE, "not a valid identity file") from None
