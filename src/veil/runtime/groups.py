"""The secrets of a node in `identity.json`, and its groups. A private message carries a group secret to a new member.

invitation   = "VEIL group 1\\n" || [name, share]
"""

from dataclasses import dataclass, replace
from typing import Any

from plumbing.cbor_heads import ARRAY, TEXT, write_array
from plumbing.sodium import SigningKey
from veil.codec import Reader
from veil.encryption import DeliveryKey, Group, GroupSecret
from veil.node import Destination, Event, Identity, Node, Publication, Subscription
from veil.objects import Namespace
from veil.runtime.contacts import MAX_NAME_BYTES, AddressBook, AddressBookEntry, check_name
from veil.runtime.data_directory import DataDirectory
from veil.veil_errors import Malformed, Refused, Unverified

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


def save_keyring(directory: DataDirectory, keyring: Keyring) -> None:
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


def load_keyring(directory: DataDirectory) -> Keyring:
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


MAGIC = b"VEIL group 1\n"
_FIELDS = 2
_MAX_SHARE_BYTES = 128


@dataclass(frozen=True, slots=True)
class Invitation:
    """A generation of a group secret, and the sender's name for the group."""

    name: str
    secret: GroupSecret

    def encode(self) -> bytes:
        return MAGIC + write_array(self.name, self.secret.encode())

    @classmethod
    def decode(cls, payload: bytes) -> "Invitation":
        if not payload.startswith(MAGIC):
            raise Malformed("invitation", "does not start with the magic bytes")
        reader = Reader(payload[len(MAGIC) :], "invitation")
        reader.exactly(ARRAY, _FIELDS)
        data = reader.take(reader.head(TEXT, MAX_NAME_BYTES))
        share = reader.byte_string(_MAX_SHARE_BYTES)
        reader.end()
        try:
            name = data.decode()
        except UnicodeDecodeError:
            raise Malformed("invitation", "the name is not UTF-8") from None
        check_name(name)
        return cls(name, GroupSecret.decode(share))


_SEEN = "seen.json"


class Groups:
    """Creates, joins and leaves groups. Secrets are stored before they are used."""

    def __init__(self, directory: DataDirectory, ring: Keyring, book: AddressBook, node: Node) -> None:
        self.ring = ring
        self._directory = directory
        self._book = book
        self._node = node
        self._seen = int(directory.read(_SEEN).get("events", 0))

    def create(self, name: str) -> NamedGroup:
        check_name(name)
        if not name:
            raise Refused("group", "the name is empty")
        named = NamedGroup(name, Group((GroupSecret.create(),)))
        self._adopt(named)
        return named

    def join(self, name: str, secret: bytes, namespace: int) -> NamedGroup:
        """Join the agreed group of a secret. Joining again changes nothing."""
        check_name(name)
        if not name:
            raise Refused("group", "the name is empty")
        agreed = GroupSecret.agreed(secret)
        named = NamedGroup(self._name_for(name, agreed.group_id), Group((agreed,)))
        self._adopt(named, namespace)
        return named

    def invite(self, wanted: str, entry: AddressBookEntry) -> Publication:
        """Send a contact the newest secret of a group."""
        named = self.ring.group(wanted)
        invitation = Invitation(named.name, named.group.newest)
        destination = Destination.private(entry.contact.delivery_pubkey, Namespace.PRIVATE)
        return self._node.publish(destination, invitation.encode(), ack=True)

    def rotate(self, wanted: str, stay: tuple[AddressBookEntry, ...]) -> tuple[NamedGroup, tuple[Publication, ...]]:
        """Replace the secret and send the new one to the contacts in `stay`."""
        named = self.ring.group(wanted)
        if named.group.newest.is_agreed:
            raise Refused("group", f"{named.name!r} is an agreed group; its secret cannot be rotated")
        named = replace(named, group=named.group.adopt(named.group.newest.rotate()))
        self._adopt(named)
        return named, tuple(self.invite(named.name, entry) for entry in stay)

    def leave(self, wanted: str) -> NamedGroup:
        named = self.ring.group(wanted)
        self._set(replace(self.ring, groups=tuple(one for one in self.ring.groups if one.group_id != named.group_id)))
        for subscription in self._node.subscriptions():
            if subscription.key == named.group_id:
                self._node.unsubscribe(subscription)
        return named

    def catch_up(self) -> None:
        """Process the invitations since the last processed event, also after a crash.

        Raise `Unavailable` if one cannot be stored; the next call starts with it again.
        """
        while events := self._node.events(self._seen):
            for event in events:
                self._process(event)

    def on_event(self, event: Event) -> None:
        """Process an event. Each event is processed once, also across restarts."""
        if event.seq == self._seen + 1:
            self._process(event)
        elif event.seq > self._seen:
            self.catch_up()  # an earlier one could not be stored

    def _process(self, event: Event) -> None:
        payload = event.data.get("payload")
        if event.kind == "delivered" and isinstance(payload, bytes) and payload.startswith(MAGIC):
            if event.data.get("namespace") == Namespace.PRIVATE:
                self._accept_invitation(payload, event.data.get("sender"))
            self._directory.write(_SEEN, {"events": event.seq})
        self._seen = event.seq

    def _accept_invitation(self, payload: bytes, sender: object) -> None:
        try:
            if not isinstance(sender, bytes) or self._book.get(sender) is None:
                raise Refused("invitation", "not from a contact")
            invitation = Invitation.decode(payload)
            self._adopt(self._joined(invitation), Namespace.PRIVATE)
        except (Malformed, Unverified, Refused):
            return  # invalid invitations and those of strangers are ignored

    def _joined(self, invitation: Invitation) -> NamedGroup:
        known = [one for one in self.ring.groups if one.group_id == invitation.secret.group_id]
        if known and known[0].group.newest.is_agreed:
            raise Refused("invitation", "an agreed group has no invitations")
        if known:
            return replace(known[0], group=known[0].group.adopt(invitation.secret))
        name = self._name_for(invitation.name, invitation.secret.group_id)
        return NamedGroup(name, Group((invitation.secret,)))

    def _name_for(self, name: str, group_id: bytes) -> str:
        """A local name that no other group has."""
        taken = {one.name for one in self.ring.groups if one.group_id != group_id}
        return name if name not in taken else f"{name}-{group_id.hex()[:8]}"

    def _adopt(self, named: NamedGroup, *namespaces: int) -> None:
        self._set(self.ring.with_group(named))
        for namespace in namespaces or (Namespace.PRIVATE,):
            self._node.subscribe(Subscription.group(named.group_id, namespace))

    def _set(self, ring: Keyring) -> None:
        save_keyring(self._directory, ring)
        self.ring = ring
        self._node.set_identity(ring.identity)
