"""How a node finds and gets what it lacks: requests for missing shards, and summaries of what nodes have.

Shards are requested from one peer after the other until an object is whole. If k shards are here but inconsistent, some
are false. Then all k are requested from a single peer that claims the whole object: shards of an honest peer are
consistent, and a dishonest peer is identified.

A summary is a Bloom filter of the objects and shards of a node (spec §11.1). One keyed BLAKE3 hash gives both hashes of
an element. Every filter has a new salt, so false positives differ between filters, and an attacker cannot construct an
element that is always a false positive.
"""

import math
from collections.abc import Iterable
from functools import partial
from itertools import islice

from veil.hashing import derive, keyed
from veil.node.cache import TrackedObject, Trial
from veil.node.forwarding import Forwarder
from veil.node.frames import MAX_FILTER_BYTES, MAX_HASHES, SALT_BYTES, Summary, Want
from veil.node.node_context import NodeContext
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet

_MAX_MARGIN = 3.0
_MAX_ROUNDS = 32


class ShardPull:
    """Requests missing shards."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def expect(self, tracked: TrackedObject) -> None:
        """Schedule a request, unless the object becomes whole without one."""
        if not tracked.pull_due and not tracked.whole and not tracked.refused:
            quiet = self._context.config.pull.quiet_s
            self._schedule(tracked, quiet * (1.0 + 0.5 * self._context.random.random()))

    def answered(self, tracked: TrackedObject, peer: Peer) -> None:
        """A shard arrived; if it answers a request, update the link quality."""
        if tracked.pull_peer == peer.name and tracked.pull_outstanding > 0:
            tracked.pull_outstanding -= 1
            self._context.counters["pulls_answered"] += 1
            if tracked.pull_link is not None:
                tracked.pull_link.note(1.0, self._context.clock() - tracked.pulled_at)

    def _schedule(self, tracked: TrackedObject, seconds: float) -> None:
        tracked.pull_due = True
        self._context.timers.after(seconds, partial(self._due, tracked.of))

    def _due(self, of: ShardSet) -> None:
        tracked = self._context.objects.get(of)
        if tracked is None or tracked.whole or tracked.refused:
            return
        tracked.pull_due = False
        pull, now = self._context.config.pull, self._context.clock()
        quiet_for = now - max(tracked.last_new, tracked.pulled_at if tracked.pull_outstanding else 0.0)
        if quiet_for < pull.quiet_s * 0.99:
            self._schedule(tracked, pull.quiet_s - quiet_for)
            return
        self._close_last_request(tracked)
        link = self._holder(tracked)
        if link is not None:
            self._request(tracked, link)
        # Ask every holder once before asking one again. The timeout grows with the rounds.
        rounds = tracked.pull_requests.get(link.peer.name, 1) - 1 if link else tracked.idle_pulls
        tracked.idle_pulls = 0 if link else tracked.idle_pulls + 1
        timeout = pull.timeout_s * pull.backoff ** min(rounds, _MAX_ROUNDS)
        timeout = min(max(timeout, 2.0 * link.rtt_s if link else 0.0), pull.max_wait_s)
        self._schedule(tracked, timeout * (0.75 + 0.5 * self._context.random.random()))

    def _close_last_request(self, tracked: TrackedObject) -> None:
        """Count the last request as failed if shards are still outstanding."""
        if tracked.pull_peer is None:
            return
        if tracked.pull_outstanding and tracked.pull_link is not None:
            tracked.pull_link.note(0.0)
            self._context.counters["pulls_failed"] += 1
        tracked.pull_peer, tracked.pull_link, tracked.pull_outstanding = None, None, 0

    def _holder(self, tracked: TrackedObject) -> PeerLink | None:
        """The link to ask next: a holder of missing shards with fewest requests so far, then the best score."""
        missing = tracked.all if self._is_inconsistent(tracked) else tracked.all & ~tracked.bits
        now = self._context.clock()
        best: tuple[tuple[float, ...], PeerLink] | None = None
        for name, bits in tracked.holders.items():
            peer = self._context.peers.get(name)
            if peer is None or not bits & missing or now < peer.muted_until:
                continue
            if self._is_inconsistent(tracked) and bits != tracked.all:
                continue
            link = peer.best_link()
            if link is None:
                continue
            priority = (
                -float(peer.lies) - tracked.pull_requests.get(name, 0),
                float(bits == tracked.all),
                link.score * (0.5 + 0.5 * self._context.random.random()),
            )
            if best is None or priority > best[0]:
                best = priority, link
        return best[1] if best else None

    def _is_inconsistent(self, tracked: TrackedObject) -> bool:
        return len(tracked.held) >= tracked.of.shape.k

    def _request(self, tracked: TrackedObject, link: PeerLink) -> None:
        k, bits = tracked.of.shape.k, tracked.holders[link.peer.name]
        if self._is_inconsistent(tracked):
            if tracked.trial is None or tracked.trial.source != link.peer.name:
                tracked.trial = Trial(link.peer.name)
            wanted = bits & ~sum(1 << index for index in tracked.trial.payloads)
            needed = k - len(tracked.trial.payloads)
        else:
            wanted, needed = bits & ~tracked.bits, k - len(tracked.held)
        # Request more over a lossy link.
        margin = min(1.0 / max(link.answered, 0.01), _MAX_MARGIN)
        count = min(max(round(needed * margin), needed), wanted.bit_count())
        if not self._context.send(link, Want(tracked.of.object_root, wanted, count)):
            return
        tracked.pull_requests[link.peer.name] = tracked.pull_requests.get(link.peer.name, 0) + 1
        tracked.pull_peer, tracked.pull_link = link.peer.name, link
        tracked.pulled_at, tracked.pull_outstanding = self._context.clock(), count
        self._context.counters["pulls_sent"] += 1


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
