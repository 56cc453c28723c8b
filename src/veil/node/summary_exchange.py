"""Summaries: Bloom filters of the objects and shards of a node. Spec §11.1.

One keyed BLAKE3 hash gives both hashes of an element. Every filter has a new salt, so false positives differ between
filters, and an attacker cannot construct an element that is always a false positive.
"""

import math
from collections.abc import Iterable
from itertools import islice

from veil.hashing import derive, keyed
from veil.node.forwarding import Forwarder
from veil.node.frames import MAX_FILTER_BYTES, MAX_HASHES, SALT_BYTES, Summary
from veil.node.node_context import NodeContext
from veil.node.object_progress import TrackedObject
from veil.node.peers import Peer, PeerLink

MIN_BITS = 256
_CONTEXT = "veil bloom v1"


def summarise(elements: Iterable[bytes], epoch: int, salt: bytes, false_positives: float) -> Summary:
    """A filter of all elements with the given rate of false positives."""
    assert len(salt) == SALT_BYTES
    held = list(elements)
    count = max(len(held), 1)
    wanted = math.ceil(-count * math.log(false_positives) / math.log(2) ** 2)
    size = min(max(wanted, MIN_BITS) + 7 >> 3, MAX_FILTER_BYTES)
    hashes = min(max(round(size * 8 / count * math.log(2)), 1), MAX_HASHES)
    bits = bytearray(size)
    key = derive(_CONTEXT, salt)
    for element in held:
        for place in _places(key, element, hashes, size * 8):
            bits[place >> 3] |= 1 << (place & 7)
    return Summary(epoch, salt, hashes, bytes(bits))


class Filter:
    """Membership tests on a received summary."""

    __slots__ = ("_bits", "_hashes", "_key")

    def __init__(self, summary: Summary) -> None:
        self._bits = summary.bits
        self._hashes = summary.hashes
        self._key = derive(_CONTEXT, summary.salt)

    def __contains__(self, element: bytes) -> bool:
        bits = self._bits
        places = _places(self._key, element, self._hashes, len(bits) * 8)
        return all(bits[place >> 3] >> (place & 7) & 1 for place in places)


def _places(key: bytes, element: bytes, hashes: int, size: int) -> Iterable[int]:
    digest = keyed(key, element)
    first, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big") | 1
    return ((first + number * step) % size for number in range(hashes))


_PEERS_PER_INTERVAL = 1


class SummaryExchange:
    """Sends summaries and answers them."""

    def __init__(self, context: NodeContext, forwarder: Forwarder) -> None:
        self._context = context
        self._forwarder = forwarder
        self._is_due = False
        self._answered_at: dict[str, float] = {}

    def start(self) -> None:
        """Schedule the next summary, if there are peers."""
        if not self._is_due and len(self._context.peers):
            self._is_due = True
            interval = self._context.config.summaries.interval_s
            self._context.timers.after(interval * (0.5 + self._context.random.random()), self._due)

    def send(self, link: PeerLink) -> None:
        context, settings = self._context, self._context.config.summaries
        elements: list[bytes] = []
        for tracked in context.objects.newest():
            if tracked.whole:
                elements.append(tracked.of.object_root)
            else:
                elements.extend(tracked.held.values())
            if len(elements) >= settings.max_elements:
                break
        salt = context.random.randbytes(SALT_BYTES)
        epoch = context.config.epochs.at(context.clock())
        context.promised = True  # peers rely on the content of a filter, as on an inventory
        if context.send(link, summarise(elements[: settings.max_elements], epoch, salt, settings.false_positives)):
            context.counters["summaries_sent"] += 1

    def received(self, summary: Summary, link: PeerLink) -> None:
        """Record the objects of a peer, and announce objects that it lacks."""
        context, settings, peer = self._context, self._context.config.summaries, link.peer
        context.counters["summaries_received"] += 1
        if not self._may_answer(peer):
            return
        found, lacking = Filter(summary), list[TrackedObject]()
        for tracked in islice(context.objects.newest(), settings.max_elements):
            if tracked.of.object_root in found:
                if tracked.add_holder(peer.name, tracked.all):
                    context.cache.rank(tracked)
                continue
            # A Bloom filter has no false negatives: the peer no longer has this object.
            tracked.holders.pop(peer.name, None)
            bits = sum(1 << index for index, shard_id in tracked.held.items() if shard_id in found)
            if bits and tracked.add_holder(peer.name, bits):
                context.cache.rank(tracked)
            if tracked.whole and len(lacking) < settings.max_announced:
                lacking.append(tracked)
        if lacking:
            self._forwarder.announce_to(link, lacking)

    def forget(self, peer: str) -> None:
        self._answered_at.pop(peer, None)

    def _may_answer(self, peer: Peer) -> bool:
        """Limit the rate of answers per peer, because an answer is expensive."""
        now, least = self._context.clock(), self._context.config.summaries.interval_s / 4
        if now - self._answered_at.get(peer.name, -least) < least:
            return False
        self._answered_at[peer.name] = now
        return True

    def _due(self) -> None:
        self._is_due = False
        for link in self._context.choose(_PEERS_PER_INTERVAL, None, lambda peer: False):
            self.send(link)
        self.start()
