"""Shard pull: asking for what did not come by itself, of one peer after the other, until an object is whole.

Where k shards are here and do not fit together, somebody lied. Then all that is needed is asked of one peer alone that
says it has the object: an honest one's shards fit, and one whose shards do not has been caught.
"""

from functools import partial

from veil.node.frames import Want
from veil.node.node_context import Desk
from veil.node.object_progress import Tracked, Trial
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet

_MAX_MARGIN = 3.0
_MAX_ROUNDS = 32


class ShardPull:
    """Asks for shards."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def expect(self, tracked: Tracked) -> None:
        """Something of an object is known and it is not whole: ask, unless the rest comes by itself."""
        if not tracked.pull_due and not tracked.whole and not tracked.refused:
            quiet = self._desk.config.pulling.quiet_s
            self._later(tracked, quiet * (1.0 + 0.5 * self._desk.random.random()))

    def answered(self, tracked: Tracked, peer: Peer) -> None:
        """A shard came from a peer, perhaps because we asked."""
        if tracked.asked_of == peer.name and tracked.asked_count > 0:
            tracked.asked_count -= 1
            self._desk.counters["pulls_answered"] += 1
            if tracked.asked_link is not None:
                tracked.asked_link.note(1.0, self._desk.clock() - tracked.asked_at)

    def _later(self, tracked: Tracked, seconds: float) -> None:
        tracked.pull_due = True
        self._desk.agenda.after(seconds, partial(self._due, tracked.of))

    def _due(self, of: ShardSet) -> None:
        tracked = self._desk.ledger.get(of)
        if tracked is None or tracked.whole or tracked.refused:
            return
        tracked.pull_due = False
        pulling, now = self._desk.config.pulling, self._desk.clock()
        quiet_for = now - max(tracked.last_new, tracked.asked_at if tracked.asked_count else 0.0)
        if quiet_for < pulling.quiet_s * 0.99:
            self._later(tracked, pulling.quiet_s - quiet_for)
            return
        self._settle_last(tracked)
        link = self._holder(tracked)
        if link is not None:
            self._ask(tracked, link)
        # Everyone who has it is asked once before anyone is asked again, and waiting grows with the rounds.
        rounds = tracked.asked.get(link.peer.name, 1) - 1 if link else tracked.unasked
        tracked.unasked = 0 if link else tracked.unasked + 1
        patience = pulling.timeout_s * pulling.backoff ** min(rounds, _MAX_ROUNDS)
        patience = min(max(patience, 2.0 * link.rtt_s if link else 0.0), pulling.max_wait_s)
        self._later(tracked, patience * (0.75 + 0.5 * self._desk.random.random()))

    def _settle_last(self, tracked: Tracked) -> None:
        """What was asked for last and has not come counts against the link it was asked over."""
        if tracked.asked_of is None:
            return
        if tracked.asked_count and tracked.asked_link is not None:
            tracked.asked_link.note(0.0)
            self._desk.counters["pulls_failed"] += 1
        tracked.asked_of, tracked.asked_link, tracked.asked_count = None, None, 0

    def _holder(self, tracked: Tracked) -> PeerLink | None:
        """Whom to ask: one that has what is missing, asked least so far; of those the most reliable."""
        missing = tracked.all if self._is_doubtful(tracked) else tracked.all & ~tracked.bits
        now = self._desk.clock()
        best: tuple[tuple[float, ...], PeerLink] | None = None
        for name, bits in tracked.holders.items():
            peer = self._desk.peers.get(name)
            if peer is None or not bits & missing or now < peer.muted_until:
                continue
            if self._is_doubtful(tracked) and bits != tracked.all:
                continue
            link = peer.best_link()
            if link is None:
                continue
            worth = (
                -float(peer.lies) - tracked.asked.get(name, 0),
                float(bits == tracked.all),
                link.score * (0.5 + 0.5 * self._desk.random.random()),
            )
            if best is None or worth > best[0]:
                best = worth, link
        return best[1] if best else None

    def _is_doubtful(self, tracked: Tracked) -> bool:
        return len(tracked.held) >= tracked.of.shape.k

    def _ask(self, tracked: Tracked, link: PeerLink) -> None:
        k, bits = tracked.of.shape.k, tracked.holders[link.peer.name]
        if self._is_doubtful(tracked):
            if tracked.trial is None or tracked.trial.source != link.peer.name:
                tracked.trial = Trial(link.peer.name)
            wanted = bits & ~sum(1 << index for index in tracked.trial.payloads)
            needed = k - len(tracked.trial.payloads)
        else:
            wanted, needed = bits & ~tracked.bits, k - len(tracked.held)
        # A link that loses much is asked for as much more.
        margin = min(1.0 / max(link.answered, 0.01), _MAX_MARGIN)
        count = min(max(round(needed * margin), needed), wanted.bit_count())
        if not self._desk.send(link, Want(tracked.of.object_root, wanted, count)):
            return
        tracked.asked[link.peer.name] = tracked.asked.get(link.peer.name, 0) + 1
        tracked.asked_of, tracked.asked_link = link.peer.name, link
        tracked.asked_at, tracked.asked_count = self._desk.clock(), count
        self._desk.counters["pulls_sent"] += 1
