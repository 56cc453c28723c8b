"""A node whose store fails or dies at any commit keeps its promises: nothing confirmed is lost, nothing comes twice."""

from collections import Counter
from pathlib import Path

import pytest

from lab.sweep import Extent, StoreCase, sweep
from tests.veil.node.net import Net
from veil import Unavailable
from veil.node import Destination, Node, Subscription
from veil.store import DiskStore
from veil.tags import feed_tag

NAMESPACE, FEED_NAMESPACE = 2, 1
ROUNDS, RESUME_S = 2, 150.0


class Exchange(StoreCase):
    """Node `n` exchanges letters with `a`, and forwards the feed of `a` to `b`. Only `n` has a disk."""

    errors = (Unavailable,)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.net = Net()
        self.net.add("a").subscribe(Subscription.mailbox(NAMESPACE))
        self.feed = feed_tag(self.net.identities["a"].signing.public_key, FEED_NAMESPACE)
        self.net.add("b").subscribe(Subscription.feed(self.feed, FEED_NAMESPACE))
        self.letters: list[bytes] = []  # by `a` for `n`
        self.news: list[bytes] = []  # by `a` for all
        self.accepted: list[bytes] = []  # by `n` for `a`
        self.undecided: list[bytes] = []  # `n` died before it said whether it accepted them

    def operate(self) -> None:
        node = self._start()
        for number in range(ROUNDS):
            self.letters.append(b"to n, %d" % number)
            self.net.nodes["a"].publish(self._private("n"), self.letters[-1])
            self._publish(b"to a, %d" % number)
            self.news.append(b"to all, %d" % number)
            self.net.nodes["a"].publish(Destination.feed(FEED_NAMESPACE), self.news[-1])
            self.net.advance(0.75)
        self.net.advance(RESUME_S, step=0.5)
        node.close()

    def check(self) -> None:
        """Start the node again: everything confirmed is in its store, and everything arrives once."""
        net = self.net
        confirmed = {event.data["message_id"] for event in net.events("a", "acked")}
        read = set(net.delivered("a"))
        assert read <= {*self.accepted, *self.undecided}, "a letter was sent that the node refused"
        for peer in ("a", "b"):
            net.nodes[peer].disconnected("fast", "n")
        node = self._start()
        received = Counter(net.delivered("n"))
        for number, letter in enumerate(self.letters):
            assert 2 * number + 1 not in confirmed or received[letter] == 1, f"{letter!r} was acknowledged and is lost"
        net.advance(RESUME_S, step=0.5)
        assert node.status().store_fault is None
        assert net.nodes["a"].outbound() == node.outbound() == ()
        mail = Counter(net.delivered("a"))
        assert mail - Counter(self.undecided) == Counter(self.accepted)
        assert Counter(net.delivered("n")) == Counter([*self.letters, *self.news])
        assert Counter(net.delivered("b")) == Counter(self.news)
        node.close()

    def _start(self) -> Node:
        net = self.net
        node = net.add("n", store=DiskStore(self.root / "data" / "n"))
        for subscription in (Subscription.mailbox(NAMESPACE), Subscription.feed(self.feed, FEED_NAMESPACE)):
            node.subscribe(subscription)
        net.connect("a", "n")
        net.connect("b", "n")
        return node

    def _private(self, name: str) -> Destination:
        return Destination.private(self.net.identities[name].delivery.public_key, NAMESPACE)

    def _publish(self, letter: bytes) -> None:
        self.undecided.append(letter)
        try:
            self.net.nodes["n"].publish(self._private("a"), letter)
        except Unavailable:
            self.undecided.remove(letter)
        else:
            self.accepted.append(self.undecided.pop())


def test_a_node_keeps_its_promises_when_its_store_fails(tmp_path: Path) -> None:
    report = sweep(Exchange, tmp_path, Extent.SAMPLE)
    assert report.points >= report.calls > 0


@pytest.mark.slow
def test_a_node_keeps_its_promises_at_every_fault_of_every_call(tmp_path: Path) -> None:
    report = sweep(Exchange, tmp_path, Extent.ALL)
    assert report.points >= report.calls > 0
