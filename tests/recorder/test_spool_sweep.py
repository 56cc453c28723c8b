"""A recorder that fails or dies at any call records every event once: spool, places, set-aside events and outbox."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lab.sweep import Extent, StoreCase, sweep
from tests.client.ledger import NOW, Ledger, message
from tests.recorder.recorder_fixture import event
from veen.client import ClientDir
from veen.client.writer_keys import WriterRequest
from veen.core import Unavailable
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import SpoolFeed, SpoolWriter
from veen.recorder.feed import FeedItem, source_mark
from veen.recorder.shipper import REFUSED, RetryFeed, SetAside

BATCHES, PER_BATCH, SEGMENT_BYTES, AT_ONCE = 3, 2, 300, 3


def batch(number: int) -> list[RecordEvent]:
    return [event(PER_BATCH * number + place) for place in range(PER_BATCH)]


def is_refused(found: RecordEvent) -> bool:
    return found.event_time % 4 == 3


class Recording(StoreCase):
    """An input spools batches and repeats one that failed. A shipper puts events into the outbox or sets them aside."""

    errors = (Unavailable,)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.ledger = Ledger()
        self.spool, self.recorder = root / "recorder" / "spool", root / "recorder"
        self.confirmed: set[int] = set()  # batches

    def prepare(self) -> None:
        ClientDir.create(self.root / "producer", None, NOW).close()

    def operate(self) -> None:
        writer = self._writer()
        try:
            for number in range(BATCHES):
                self._append(writer, number)
                if number % 2:
                    self._ship()
        finally:
            writer.close()
        self._ship()

    def check(self) -> None:
        writer = self._writer()
        for number in range(BATCHES):
            self._append(writer, number)  # the producer repeats a batch unless it knows that it was stored
        writer.close()
        self._ship()
        with ClientDir.open(self.root / "producer") as client:
            pending = client.outbox.pending(self.ledger.hub_id, self.ledger.label)
        recorded = Counter(RecordEvent.decode(one.msg.ciphertext) for one in pending)
        every = [one for number in range(BATCHES) for one in batch(number)]
        expected = Counter(one for one in every if not is_refused(one))
        assert not expected - recorded, f"{(expected - recorded).total()} events are lost"
        assert not recorded - expected, f"{(recorded - expected).total()} events are recorded twice"
        again = RetryFeed(self.recorder).feed
        items = asyncio.run(again.take(100))
        again.close()
        assert {item.event for item in items if item.event} == {one for one in every if is_refused(one)}

    def _writer(self) -> SpoolWriter:
        return SpoolWriter(self.spool, segment_bytes=SEGMENT_BYTES, sync=True)

    def _append(self, writer: SpoolWriter, number: int) -> None:
        if number in self.confirmed:
            return
        digest = h(b"batch %d" % number)
        try:
            stored = writer.append(batch(number), digest, again=True)
        except Unavailable:
            stored = writer.append(batch(number), digest, again=True)
        assert stored
        self.confirmed.add(number)

    def _ship(self) -> None:
        """As `Shipper` does, with the outbox in place of a hub."""
        feed = SpoolFeed(self.spool, "spool", follow=False)
        with ClientDir.open(self.root / "producer") as client:
            while items := list(asyncio.run(feed.take(AT_ONCE))):
                for item in items:
                    self._put(client, item)
                feed.settle(items)
                client.outbox.forget_marks([item.mark for item in items])

    def _put(self, client: ClientDir, item: FeedItem) -> None:
        assert item.event is not None
        if item.mark in client.outbox.marks(source_mark(item.source)):
            return
        if is_refused(item.event):
            assert SetAside(self.recorder / REFUSED).add(item, "not in the map")
            return
        ledger = self.ledger
        writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, NOW))
        made = message(writer, body=item.event.encode())
        client.outbox.put(writer, [replace(made, mark=item.mark)])


@pytest.mark.parametrize("extent", [Extent.SAMPLE, pytest.param(Extent.ALL, marks=pytest.mark.slow)])
def test_every_event_is_recorded_once_after_a_fault_at_any_call(extent: Extent, tmp_path: Path) -> None:
    report = sweep(Recording, tmp_path, extent)
    assert report.points >= report.calls > 0
