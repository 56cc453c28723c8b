"""A client whose state fails or dies at any call never loses a message, and never uses a place for two messages."""

from pathlib import Path

import pytest

from lab.sweep import Extent, StoreCase, sweep
from tests.client.ledger import NOW, Ledger, message
from veen.client import ClientDir, KeyBounds, Pending
from veen.client.writer_keys import WriterRequest
from veen.core import Unavailable

BOUNDS = KeyBounds(max_client_id_lifetime_sec=1 << 40, max_msgs_per_client_id_per_label=4)
ROUNDS, AT_ONCE = 3, 2


class Sending(StoreCase):
    """Creates a client, and sends through its outbox to a hub that answers. The key changes after four messages."""

    errors = (Unavailable,)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.ledger = Ledger()
        self.made = False
        self.stored: dict[tuple[bytes, int], Pending] = {}  # by place; what `put` reported as stored
        self.undecided: list[Pending] = []
        self.answered: set[bytes] = set()  # leaves whose receipts were reported as stored

    def operate(self) -> None:
        ClientDir.create(self.root / "alice", None, NOW, bounds=BOUNDS).close()
        self.made = True
        with self._opened() as client:
            for number in range(ROUNDS):
                self._put(client, b"message %d" % number)
                self._send(client)

    def check(self) -> None:
        assert self.made <= (self.root / "alice").exists()
        if not (self.root / "alice").exists():
            ClientDir.create(self.root / "alice", None, NOW, bounds=BOUNDS).close()
        assert [path.name for path in self.root.iterdir()] == ["alice"]
        with self._opened() as client:
            pending = client.outbox.pending(self.ledger.hub_id, self.ledger.label)
            waiting = {self._place(one): one.encoded for one in pending}
            for place, one in self.stored.items():
                assert waiting.get(place) == one.encoded or one.leaf_hash in self.ledger_leaves(), "a message is lost"
                assert one.leaf_hash not in self.answered or place not in waiting, "an answered message is sent again"
            known = {one.encoded for one in (*self.stored.values(), *self.undecided)}
            assert set(waiting.values()) <= known, "a message that was reported as not stored is sent"
            assert len(waiting) == len(pending)
            for leaf in self.answered:
                receipt = self.ledger.receipts[self.ledger_leaves().index(leaf)]
                stored = client.state.receipt(self.ledger.hub_id, self.ledger.label, receipt.stream_seq)
                assert stored == receipt.encode()
            marks = client.outbox.marks(b"message")
            in_log = [leaf for leaf in marks.values() if leaf in self.ledger_leaves()]
            assert {*in_log, *(one.leaf_hash for one in pending)} == set(marks.values())
            self._send(client)
            for number in range(ROUNDS, ROUNDS + 2):
                self._put(client, b"message %d" % number)
                self._send(client)
            assert client.outbox.places() == ()
        leaves = self.ledger_leaves()
        assert len(leaves) == len(set(leaves))
        assert {one.leaf_hash for one in self.stored.values()} <= set(leaves)

    def ledger_leaves(self) -> list[bytes]:
        return [receipt.leaf_hash for receipt in self.ledger.receipts]

    def _opened(self) -> ClientDir:
        return ClientDir.open(self.root / "alice", bounds=BOUNDS)

    def _place(self, one: Pending) -> tuple[bytes, int]:
        return one.msg.client_id, one.msg.client_seq

    def _put(self, client: ClientDir, name: bytes) -> None:
        ledger = self.ledger
        writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, NOW))
        made = [message(writer, place) for place in range(AT_ONCE)]
        marked = [Pending(one.msg, one.encoded, one.leaf_hash, b"%s %d" % (name, at)) for at, one in enumerate(made)]
        assert not {self._place(one) for one in marked} & self.stored.keys(), "a place is used twice"
        self.undecided = marked
        client.outbox.put(writer, marked)
        self.stored |= {self._place(one): one for one in marked}

    def _send(self, client: ClientDir) -> None:
        """The hub accepts each message once, and the client stores the receipts."""
        ledger = self.ledger
        waiting = client.outbox.pending(ledger.hub_id, ledger.label)
        for one in waiting:
            if one.leaf_hash not in self.ledger_leaves():
                ledger.take(one.msg)
        if waiting:
            receipts = [ledger.receipts[self.ledger_leaves().index(one.leaf_hash)] for one in waiting]
            before, done = client.state.label(ledger.hub_id, ledger.label), [one.leaf_hash for one in waiting]
            client.state.advance(
                ledger.hub_id, ledger.label, ledger.state(), after=before, receipts=receipts, done=done
            )
            self.answered |= set(done)


@pytest.mark.parametrize("extent", [Extent.SAMPLE, pytest.param(Extent.ALL, marks=pytest.mark.slow)])
def test_a_client_loses_and_doubles_nothing_after_a_fault_at_any_call(extent: Extent, tmp_path: Path) -> None:
    report = sweep(Sending, tmp_path, extent)
    assert report.points >= report.calls > 0
