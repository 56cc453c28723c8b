"""Subscriptions: the tags that a node requests and forwards. Spec §9.2.

A subscription is to a channel that this node reads, or to a tag or mailbox that it only relays, which needs no key.
Rendezvous tags change with the epoch, so the set of tags is computed again at every epoch change.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from plumbing.cbor_heads import ARRAY, write_array
from veil.channels import Channel, Feed, GroupChannel, Mailbox
from veil.codec import Reader
from veil.encryption import Key
from veil.hashing import HASH_BYTES
from veil.node.addressing import Identity
from veil.node.config import NodeConfig
from veil.store import Store, Table
from veil.tags import rv_tags
from veil.veil_errors import Malformed, Refused
from veil.veil_limits import MAX_UINT16

_FIELDS = 3


class SubscriptionKind(IntEnum):
    """Stored numbers of the subscription kinds."""

    FEED = 1
    MAILBOX = 2
    GROUP = 3
    RELAY = 4
    RELAY_MAILBOX = 5


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription. `key` is a tag, a group id or a delivery key; it is empty for the own mailbox."""

    kind: SubscriptionKind
    key: bytes
    namespace: int

    @classmethod
    def feed(cls, tag: bytes, namespace: int) -> Self:
        return cls(SubscriptionKind.FEED, tag, namespace)

    @classmethod
    def mailbox(cls, namespace: int) -> Self:
        return cls(SubscriptionKind.MAILBOX, b"", namespace)

    @classmethod
    def group(cls, group_id: bytes, namespace: int) -> Self:
        return cls(SubscriptionKind.GROUP, group_id, namespace)

    @classmethod
    def relay(cls, tag: bytes) -> Self:
        """Relay a tag in all namespaces."""
        return cls(SubscriptionKind.RELAY, tag, 0)

    @classmethod
    def relay_mailbox(cls, delivery_pubkey: bytes, namespace: int) -> Self:
        """Relay the mailbox of another node."""
        return cls(SubscriptionKind.RELAY_MAILBOX, delivery_pubkey, namespace)

    def check(self) -> None:
        if len(self.key) != (0 if self.kind is SubscriptionKind.MAILBOX else HASH_BYTES):
            raise Malformed("subscription", f"the key has {len(self.key)} bytes")
        if not 0 <= self.namespace <= MAX_UINT16:
            raise Malformed("subscription", f"namespace {self.namespace} is not a 16-bit number")

    def encode(self) -> bytes:
        return write_array(self.kind, self.key, self.namespace)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "subscription")
        reader.exactly(ARRAY, _FIELDS)
        kind = reader.uint(max(SubscriptionKind))
        if not kind:
            reader.fail("kind 0 does not exist")
        found = cls(SubscriptionKind(kind), reader.byte_string(HASH_BYTES), reader.uint(MAX_UINT16))
        reader.end()
        found.check()
        return found


class Subscriptions:
    """All subscriptions, and their current tags."""

    def __init__(self, store: Store, config: NodeConfig, identity: Identity, now: float) -> None:
        self._store = store
        self._config = config
        self._identity = identity
        self._all = {Subscription.decode(key): None for key, _ in store.items(Table.SUBSCRIPTIONS)}
        self._readers: dict[bytes, list[tuple[Channel, Key]]] = {}
        self._relayed: set[bytes] = set()
        # Tags of own objects that wait for an acknowledgement.
        self._awaited: dict[bytes, int] = {}
        self._epochs: tuple[int, ...] = ()
        self.refresh(now)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._all

    def all(self) -> tuple[Subscription, ...]:
        return tuple(self._all)

    def add(self, subscription: Subscription, now: float) -> bool:
        subscription.check()
        if subscription in self._all:
            return False
        if len(self._all) >= self._config.bounds.subscriptions:
            raise Refused("subscription", f"the limit of {self._config.bounds.subscriptions} subscriptions is reached")
        if subscription.kind is SubscriptionKind.GROUP:
            self._identity.group(subscription.key)
        self._all[subscription] = None
        self._store.put(Table.SUBSCRIPTIONS, subscription.encode(), b"")
        self._recompute(now)
        return True

    def remove(self, subscription: Subscription, now: float) -> bool:
        if subscription not in self._all:
            return False
        del self._all[subscription]
        self._store.delete(Table.SUBSCRIPTIONS, subscription.encode())
        self._recompute(now)
        return True

    def set_identity(self, identity: Identity, now: float) -> None:
        self._identity = identity
        self._recompute(now)

    def refresh(self, now: float) -> bool:
        """Recompute the tags if the valid epochs changed. Return whether they did."""
        if self._config.epochs.around(now) == self._epochs:
            return False
        self._recompute(now)
        return True

    def await_tag(self, tag: bytes) -> None:
        self._awaited[tag] = self._awaited.get(tag, 0) + 1

    def release_tag(self, tag: bytes) -> None:
        left = self._awaited.get(tag, 0) - 1
        if left > 0:
            self._awaited[tag] = left
        else:
            self._awaited.pop(tag, None)

    def subscribed(self, tag: bytes) -> bool:
        return tag in self._readers or tag in self._relayed or tag in self._awaited

    def wanted(self, tag: bytes) -> bool:
        """Whether this node forwards shards of a tag."""
        return self._config.relay_all or self.subscribed(tag)

    def readers(self, tag: bytes) -> list[tuple[Channel, Key]]:
        """The channels that may open objects of a tag, with the key of each."""
        return self._readers.get(tag, [])

    def tags(self) -> frozenset[bytes]:
        return frozenset(self._readers) | self._relayed

    def _recompute(self, now: float) -> None:
        epochs = self._config.epochs
        self._epochs = epochs.around(now)
        self._readers, self._relayed = {}, set()
        for subscription in self._all:
            if subscription.kind is SubscriptionKind.RELAY:
                self._relayed.add(subscription.key)
            elif subscription.kind is SubscriptionKind.RELAY_MAILBOX:
                self._relayed.update(rv_tags(subscription.key, subscription.namespace, now, epochs))
            else:
                channel = self._channel(subscription)
                if channel is None:
                    continue
                for tag, key in channel.keys(now, epochs).items():
                    self._readers.setdefault(tag, []).append((channel, key))

    def _channel(self, subscription: Subscription) -> Channel | None:
        """None for a group that this node has left; the subscription becomes active if it joins again."""
        match subscription.kind:
            case SubscriptionKind.FEED:
                return Feed(subscription.key, subscription.namespace)
            case SubscriptionKind.MAILBOX:
                return Mailbox(self._identity.delivery, subscription.namespace)
            case _:
                try:
                    return GroupChannel(self._identity.group(subscription.key), subscription.namespace)
                except Refused:
                    return None
