"""Shard pull: asking for what did not come by itself, of one peer after the other, until an object is whole.

Where k shards are here and do not fit together, somebody lied. Then all that is needed is asked of one peer alone that
says it has the object: an honest one's shards fit, and one whose shards do not has been caught.
"""

from functools import partial

from veil.node.frames import Want
from veil.node.node_context import NodeContext
from veil.node.object_progress import TrackedObject, Trial
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet

_MAX_MARGIN = 3.0
_MAX_ROUNDS = 32


class ShardPull:
    """Asks for shards."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def expect(self, tracked: TrackedObject) -> None:
        """Something of an object is known and it is not whole: ask, unless the rest comes by itself."""
        if not tracked.pull_due and not tracked.whole and not tracked.refused:
            quiet = self._context.config.pull.quiet_s
            self._schedule(tracked, quiet * (1.0 + 0.5 * self._context.random.random()))

    def answered(self, tracked: TrackedObject, peer: Peer) -> None:
        """A shard came from a peer, perhaps because we asked."""
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
        self._settle_last(tracked)
        link = self._holder(tracked)
        if link is not None:
            self._ask(tracked, link)
        # Everyone who has it is asked once before anyone is asked again, and waiting grows with the rounds.
        rounds = tracked.pull_requests.get(link.peer.name, 1) - 1 if link else tracked.idle_pulls
        tracked.idle_pulls = 0 if link else tracked.idle_pulls + 1
        patience = pull.timeout_s * pull.backoff ** min(rounds, _MAX_ROUNDS)
        patience = min(max(patience, 2.0 * link.rtt_s if link else 0.0), pull.max_wait_s)
        self._schedule(tracked, patience * (0.75 + 0.5 * self._context.random.random()))

    def _settle_last(self, tracked: TrackedObject) -> None:
        """What was asked for last and has not come counts against the link it was asked over."""
        if tracked.pull_peer is None:
            return
        if tracked.pull_outstanding and tracked.pull_link is not None:
            tracked.pull_link.note(0.0)
            self._context.counters["pulls_failed"] += 1
        tracked.pull_peer, tracked.pull_link, tracked.pull_outstanding = None, None, 0

    def _holder(self, tracked: TrackedObject) -> PeerLink | None:
        """Whom to ask: one that has what is missing, asked least so far; of those the most reliable."""
        missing = tracked.all if self._is_doubtful(tracked) else tracked.all & ~tracked.bits
        now = self._context.clock()
        best: tuple[tuple[float, ...], PeerLink] | None = None
        for name, bits in tracked.holders.items():
            peer = self._context.peers.get(name)
            if peer is None or not bits & missing or now < peer.muted_until:
                continue
            if self._is_doubtful(tracked) and bits != tracked.all:
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

    def _is_doubtful(self, tracked: TrackedObject) -> bool:
        return len(tracked.held) >= tracked.of.shape.k

    def _ask(self, tracked: TrackedObject, link: PeerLink) -> None:
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
        if not self._context.send(link, Want(tracked.of.object_root, wanted, count)):
            return
        tracked.pull_requests[link.peer.name] = tracked.pull_requests.get(link.peer.name, 0) + 1
        tracked.pull_peer, tracked.pull_link = link.peer.name, link
        tracked.pulled_at, tracked.pull_outstanding = self._context.clock(), count
        self._context.counters["pulls_sent"] += 1
