"""Invariants hold for any order of sending, answering, abandoning, rotating, crashing and reopening."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.client.conftest import SCRATCH
from tests.client.ledger import NOW, Ledger, messages
from veen.client import ClientDir, KeyBounds, Pending, StateConflict, WriterKey, client_state
from veen.client.writer_keys import WriterRequest

BOUNDS = KeyBounds(max_client_id_lifetime_sec=50, max_msgs_per_client_id_per_label=6)
LABELS = 2


class Client(RuleBasedStateMachine):
    """One client with two logs, and a model that records every message that was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SCRATCH if SCRATCH.is_dir() else None))
        self.client = ClientDir.create(self.folder / "client", None, NOW, bounds=BOUNDS)
        self.ledgers = [Ledger() for _ in range(LABELS)]
        self.now = NOW
        self.epochs = [0] * LABELS
        self.left: dict[tuple[bytes, bytes, int], bytes] = {}  # every message that was sent, by its place
        self.waiting: list[list[Pending]] = [[] for _ in range(LABELS)]
        self.rungs = [self.client.identity.first_rk(ledger.label) for ledger in self.ledgers]
        self.stale: list[WriterKey] = []
        self.dead: set[tuple[bytes, bytes]] = set()  # (client_id, label) with an abandoned place

    def teardown(self) -> None:
        self.client.close()
        shutil.rmtree(self.folder)

    def writer(self, number: int) -> WriterKey:
        ledger = self.ledgers[number]
        wanted = WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, self.now, self.epochs[number])
        return self.client.writer(wanted)

    @initialize()
    def start(self) -> None:
        assert self.client.outbox.places() == ()

    @rule(number=st.integers(0, LABELS - 1), count=st.integers(1, 8))
    def put(self, number: int, count: int) -> None:
        writer = self.writer(number)
        batch = messages(writer, min(count, writer.room))
        self.client.outbox.put(writer, batch)
        self.stale.append(writer)
        self.waiting[number] += batch
        for each in batch:
            place = (each.msg.label, each.msg.client_id, each.msg.client_seq)
            assert place not in self.left
            self.left[place] = each.encoded

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def put_where_someone_was(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(self.stale))
        try:
            self.client.outbox.put(writer, messages(writer, 1))
        except StateConflict:
            return
        raise AssertionError("a place was given twice")

    @rule(number=st.integers(0, LABELS - 1), count=st.integers(1, 8))
    def answer(self, number: int, count: int) -> None:
        ledger = self.ledgers[number]
        batch = self.waiting[number][:count]
        if not batch:
            return
        del self.waiting[number][:count]
        for receipt in ledger.answer(self.client.state, batch):
            self.rungs[number] = client_state.step(self.rungs[number], receipt.stream_seq)

    @rule(number=st.integers(0, LABELS - 1), place=st.integers(0, 9))
    def give_up(self, number: int, place: int) -> None:
        if place >= len(self.waiting[number]):
            return
        ledger, refused = self.ledgers[number], self.waiting[number][place].msg
        gone = self.client.outbox.abandon(ledger.hub_id, ledger.label, refused.client_id, refused.client_seq)
        kept = [
            each
            for each in self.waiting[number]
            if each.msg.client_id != refused.client_id or each.msg.client_seq < refused.client_seq
        ]
        assert [each for each in self.waiting[number] if each not in kept] == list(gone)
        self.waiting[number] = kept
        self.dead.add((refused.client_id, refused.label))

    @rule(seconds=st.integers(0, 60))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(number=st.integers(0, LABELS - 1))
    def next_epoch(self, number: int) -> None:
        self.epochs[number] += 1

    @rule()
    def retire(self) -> None:
        self.client.writers.retire(self.client.writers.current().generation)

    @rule()
    def reopen(self) -> None:
        self.client.close()
        self.client = ClientDir.open(self.folder / "client", bounds=BOUNDS)

    @rule()
    def crash_within_a_transaction(self) -> None:
        try:
            with self.client.state.tables.write() as rows:
                for table in ("outbox", "writers", "generations", "labels", "receipts"):
                    for key, _ in tuple(rows.scan(table)):
                        rows.delete(key, db=rows.db[table])
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

    @invariant()
    def what_waits_is_what_left_and_was_not_answered(self) -> None:
        for ledger, waiting in zip(self.ledgers, self.waiting, strict=True):
            assert self.client.outbox.pending(ledger.hub_id, ledger.label) == tuple(waiting)
        expected = sorted(
            (ledger.hub_id, ledger.label) for ledger, waiting in zip(self.ledgers, self.waiting, strict=True) if waiting
        )
        assert self.client.outbox.places() == tuple(expected)

    @invariant()
    def heads_are_where_the_hubs_are(self) -> None:
        for ledger, rung in zip(self.ledgers, self.rungs, strict=True):
            known = self.client.state.label(ledger.hub_id, ledger.label)
            assert known == (ledger.state() if ledger.receipts else None)
            assert self.client.state.rk(ledger.hub_id, ledger.label) == rung
            for receipt in ledger.receipts:
                kept = self.client.state.receipt(ledger.hub_id, ledger.label, receipt.stream_seq)
                assert kept == receipt.encode()

    @invariant()
    def every_key_is_used_within_its_bounds(self) -> None:
        history = self.client.writers.history()
        assert [use.generation for use in history] == list(range(len(history)))
        assert len({use.client_id for use in history}) == len(history)
        for label, client_id, client_seq in self.left:
            assert client_seq <= BOUNDS.max_msgs_per_client_id_per_label
            assert client_seq == 1 or (label, client_id, client_seq - 1) in self.left

    @invariant()
    def the_next_place_was_never_used(self) -> None:
        for number, ledger in enumerate(self.ledgers):
            writer = self.writer(number)
            assert (writer.client_id, writer.label) not in self.dead
            assert (ledger.label, writer.client_id, writer.next_client_seq) not in self.left
            assert writer.room >= 1
            created = {use.generation: use.created_at for use in self.client.writers.history()}
            assert self.now - created[writer.generation] < BOUNDS.max_client_id_lifetime_sec


TestClient = Client.TestCase
TestClient.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
