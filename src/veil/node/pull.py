"""Shard pull: requests for missing shards, one peer after the other, until an object is whole.

If k shards are here but inconsistent, some are false. Then all k are requested from a single peer that claims the
whole object: shards of an honest peer are consistent, and a dishonest peer is identified.
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
