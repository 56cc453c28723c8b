"""Summaries: from time to time a peer is told what is here in a Bloom filter, and says what else there is. Spec §11.1.

A filter holds the roots of objects that are whole, each of which stands for all its shards, and the ids of shards of
those that are not. Whoever gets one names the objects it has and the filter lacks, and the other asks for those it
wants. A filter errs by leaving things out, never for long: the next one is salted anew. What it holds raises the count
of replicas.
"""

from itertools import islice

from veil.node.bloom import Filter, summarise
from veil.node.desk import Desk
from veil.node.frames import SALT_BYTES, Summary
from veil.node.ledger import Tracked
from veil.node.passing import Passing
from veil.node.peers import Link, Peer

_PEERS_AT_ONCE = 1


class Summarising:
    """Sends summaries and answers them."""

    def __init__(self, desk: Desk, passing: Passing) -> None:
        self._desk = desk
        self._passing = passing
        self._is_due = False
        self._asked: dict[str, float] = {}

    def start(self) -> None:
        """Summaries are sent while there is somebody to send them to."""
        if not self._is_due and len(self._desk.peers):
            self._is_due = True
            interval = self._desk.config.summaries.interval_s
            self._desk.agenda.after(interval * (0.5 + self._desk.random.random()), self._due)

    def send(self, link: Link) -> None:
        desk, settings = self._desk, self._desk.config.summaries
        elements: list[bytes] = []
        for tracked in desk.ledger.newest():
            if tracked.whole:
                elements.append(tracked.of.object_root)
            else:
                elements.extend(tracked.held.values())
            if len(elements) >= settings.max_elements:
                break
        salt = desk.random.randbytes(SALT_BYTES)
        epoch = desk.config.epochs.at(desk.clock())
        desk.promised = True  # peers rely on what a filter lists, as on an inventory
        if desk.send(link, summarise(elements[: settings.max_elements], epoch, salt, settings.false_positives)):
            desk.counters["summaries_sent"] += 1

    def received(self, summary: Summary, link: Link) -> None:
        """Learn what a peer has, and tell it of what it has not."""
        desk, settings, peer = self._desk, self._desk.config.summaries, link.peer
        desk.counters["summaries_received"] += 1
        if not self._may_ask(peer):
            return
        found, lacking = Filter(summary), list[Tracked]()
        for tracked in islice(desk.ledger.newest(), settings.max_elements):
            if tracked.of.object_root in found:
                if tracked.holds(peer.name, tracked.all):
                    desk.cache.rank(tracked)
                continue
            # What a filter lacks is not there, whatever was believed before.
            tracked.holders.pop(peer.name, None)
            bits = sum(1 << index for index, shard_id in tracked.held.items() if shard_id in found)
            if bits and tracked.holds(peer.name, bits):
                desk.cache.rank(tracked)
            if tracked.whole and len(lacking) < settings.max_announced:
                lacking.append(tracked)
        if lacking:
            self._passing.announce_to(link, lacking)

    def forget(self, peer: str) -> None:
        self._asked.pop(peer, None)

    def _may_ask(self, peer: Peer) -> bool:
        """Answering takes work, so a peer may have it done only so often."""
        now, least = self._desk.clock(), self._desk.config.summaries.interval_s / 4
        if now - self._asked.get(peer.name, -least) < least:
            return False
        self._asked[peer.name] = now
        return True

    def _due(self) -> None:
        self._is_due = False
        for link in self._desk.choose(_PEERS_AT_ONCE, None, lambda peer: False):
            self.send(link)
        self.start()
