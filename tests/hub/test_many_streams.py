"""No start, new epoch, message or checkpoint waits for all streams, however many a hub has."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.client import START, Clock, Writer, make_dir, running, until
from tests.storage.disks import RefusingDisk
from tests.storage.hubs import NOW, Client, Hub, create, label_of, receipts
from veen.core import Checkpoint, Malformed, Profile, Refused, SigningKey, naming
from veen.core.envelopes import CheckpointRequest, CheckpointResponse
from veen.hub import admission_state
from veen.hub.admission_state import StreamRegistry
from veen.hub.service import LabelRotation
from veen.storage import label_map
from veen.storage.index import IndexRows

HOUR = 3600
MANY = 300
EPOCHAL = Profile(epoch_sec=HOUR)


def named(number: int) -> str:
    return f"stream {number}"


def registered(root: Path, profile: Profile = EPOCHAL) -> Path:
    """A data directory of a hub with many streams, one of which has entries."""
    hub = Hub(create(root, profile=profile))
    receipts(hub.submit([naming.stream_id(named(number)) for number in range(MANY)]))
    receipts(hub.submit([Client("ann", hub.rules).message(label_of(hub.rules, named(7), profile.epoch(NOW)))]))
    hub.catch_up()
    hub.close()
    return root


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return registered(tmp_path_factory.mktemp("streams") / "hub")


@pytest.fixture
def hub(template: Path, tmp_path: Path) -> Iterator[Hub]:
    opened = Hub(shutil.copytree(template, tmp_path / "hub"))
    yield opened
    opened.close()


def book_of(hub: Hub) -> StreamRegistry:
    return hub.state.streams


def refusal(hub: Hub, label: bytes) -> str | None:
    (outcome,) = hub.submit([Client("ben", hub.rules).message(label)])
    return outcome.detail_enum if isinstance(outcome, Refused) else None


def prepare(hub: Hub) -> None:
    while hub.state.streams.prepare(hub.sequencer.hub_ts):
        pass


@pytest.fixture
def streams_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the streams that were read from an index, each time."""
    counts: list[int] = []
    real = IndexRows.streams

    def counted(rows: IndexRows, after: bytes = b"") -> Iterator[bytes]:
        counts.append(0)
        for stream in real(rows, after):
            counts[-1] += 1
            yield stream

    monkeypatch.setattr(IndexRows, "streams", counted)
    return counts


def test_a_start_reads_no_streams_and_derives_no_labels(
    template: Path, tmp_path: Path, streams_read: list[int]
) -> None:
    hub = Hub(shutil.copytree(template, tmp_path / "hub"))
    assert streams_read == []
    assert book_of(hub).derived == 0
    hub.close()


def test_a_label_that_was_written_to_is_known_before_any_is_derived(hub: Hub, streams_read: list[int]) -> None:
    assert refusal(hub, label_of(hub.rules, named(7), EPOCHAL.epoch(NOW))) is None
    assert streams_read == []
    assert book_of(hub).derived == 1  # to check the index


def test_a_replay_of_labels_that_were_written_to_derives_no_others(
    template: Path, tmp_path: Path, streams_read: list[int]
) -> None:
    root = shutil.copytree(template, tmp_path / "hub")
    hub = Hub(root)
    receipts(hub.submit([Client("ben", hub.rules).message(label_of(hub.rules, named(7), EPOCHAL.epoch(NOW)))]))
    hub.abandon()
    again = Hub(root)
    assert again.replayed == 1
    assert streams_read == []
    assert book_of(again).derived == 1
    again.close()


def test_slices_read_and_derive_no_more_than_they_may(
    hub: Hub, streams_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, sizes = book_of(hub), []
    more = True
    while more:
        before = book.derived
        more = book.prepare(NOW, 64)
        sizes.append(book.derived - before)
    assert max(sizes) == max(streams_read) == 64
    assert sum(sizes) == 2 * (MANY + 1)  # and the control stream, in this epoch and the next


def test_a_new_epoch_costs_a_message_nothing(hub: Hub) -> None:
    prepare(hub)
    before = book_of(hub).derived
    hub.clock.now += HOUR
    assert refusal(hub, label_of(hub.rules, named(250), EPOCHAL.epoch(hub.clock.now))) is None
    assert refusal(hub, label_of(hub.rules, "unregistered", EPOCHAL.epoch(hub.clock.now))) == "EPOCH"
    assert refusal(hub, label_of(hub.rules, named(250), EPOCHAL.epoch(NOW))) == "EPOCH"
    assert book_of(hub).derived == before
    prepare(hub)
    assert book_of(hub).derived == before + MANY + 1


def test_a_message_that_comes_before_its_label_is_derived_is_judged_all_the_same(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_state, "LABELS_PER_TURN", 16)
    epoch = EPOCHAL.epoch(NOW)
    last = max(map(named, range(MANY)), key=naming.stream_id)
    first = min(map(named, range(MANY)), key=naming.stream_id)
    assert refusal(hub, label_of(hub.rules, first, epoch)) is None
    assert book_of(hub).derived <= 1 + 16
    assert refusal(hub, label_of(hub.rules, last, epoch)) is None
    assert refusal(hub, label_of(hub.rules, "unregistered", epoch)) == "EPOCH"
    assert book_of(hub).derived == MANY + 1


def test_a_stream_that_was_not_read_yet_is_registered_only_once(hub: Hub, streams_read: list[int]) -> None:
    control = naming.label(hub.rules.routing_key, hub.rules.control_stream, EPOCHAL.epoch(NOW))
    size = hub.lookup.size(control)
    known, token = naming.stream_id(named(3)), Client("ann", hub.rules).cap([naming.stream_id(named(4))])
    receipts(hub.submit([known, token]))
    assert hub.lookup.size(control) == size + 1  # the capability
    assert streams_read == []
    hub.catch_up()
    with hub.store.index.read() as rows:
        assert sum(1 for _ in rows.all_rows("streams")) == MANY


def test_a_stream_is_read_once_though_it_was_registered_meanwhile(hub: Hub) -> None:
    book = book_of(hub)
    book.prepare(NOW, 64)
    new = b"\xff" * 32  # the last one read
    receipts(hub.submit([new]))
    hub.catch_up()
    prepare(hub)
    assert book.derived == 1 + 2 * (MANY + 2)  # one for the control stream, whose label is in the index
    assert refusal(hub, naming.label(hub.rules.routing_key, new, EPOCHAL.epoch(NOW))) is None


def test_what_was_refused_is_taken_once_its_stream_is_registered_or_its_epoch_comes(hub: Hub) -> None:
    epoch = EPOCHAL.epoch(NOW)
    new, early = label_of(hub.rules, "new", epoch), label_of(hub.rules, named(5), epoch + 1)
    assert refusal(hub, new) == refusal(hub, new) == "EPOCH"
    receipts(hub.submit([naming.stream_id("new")]))
    assert refusal(hub, new) is None
    assert refusal(hub, early) == refusal(hub, early) == "EPOCH"
    hub.clock.now += HOUR
    assert refusal(hub, early) is None


def test_the_memory_for_unknown_labels_is_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_map, "MAX_UNKNOWN_LABELS", 4)
    for number in range(20):
        assert refusal(hub, label_of(hub.rules, f"unregistered {number}", 0)) == "EPOCH"
        assert len(book_of(hub)._labels.unknown_labels) <= 4


def test_a_stream_whose_registration_was_undone_has_no_labels(template: Path, tmp_path: Path) -> None:
    disk = RefusingDisk()
    hub = Hub(shutil.copytree(template, tmp_path / "hub"), disk)
    label = label_of(hub.rules, "new", EPOCHAL.epoch(NOW))
    disk.fail("write_at")
    outcomes = hub.submit([naming.stream_id("new"), Client("ann", hub.rules).message(label)])
    assert {type(outcome) for outcome in outcomes} == {Refused}
    disk.heal()
    assert refusal(hub, label) == "EPOCH"
    receipts(hub.submit([naming.stream_id("new")]))
    assert refusal(hub, label) is None
    hub.close()


# Checkpoints.


def test_a_checkpoint_of_any_label_goes_through_no_streams(hub: Hub, streams_read: list[int]) -> None:
    old, epoch = label_of(hub.rules, named(7), EPOCHAL.epoch(NOW)), EPOCHAL.epoch(NOW)
    book = LabelRotation(hub.rules, hub.store)
    assert book.rotation(old, NOW) == (epoch, label_of(hub.rules, named(7), epoch - 1))
    hub.clock.now += 9 * HOUR
    young = label_of(hub.rules, named(8), epoch + 9)
    assert refusal(hub, young) is None
    streams_read.clear()
    assert book.rotation(young, hub.clock.now) == (epoch + 9, label_of(hub.rules, named(8), epoch + 8))
    hub.catch_up()
    assert book.rotation(young, hub.clock.now) == (epoch + 9, label_of(hub.rules, named(8), epoch + 8))
    assert book.rotation(old, NOW) == (epoch, label_of(hub.rules, named(7), epoch - 1))
    assert streams_read == []


def test_a_row_that_names_another_stream_is_damage(hub: Hub) -> None:
    label = label_of(hub.rules, named(7), EPOCHAL.epoch(NOW))
    with hub.store.index.write() as rows:
        rows.put_label(label, naming.stream_id(named(8)), EPOCHAL.epoch(NOW))
        rows.commit()
    with pytest.raises(Malformed):
        LabelRotation(hub.rules, hub.store).rotation(label, NOW)
    assert refusal(hub, label) is None  # derived instead


def test_without_epochs_no_label_has_a_row(tmp_path: Path) -> None:
    hub = Hub(registered(tmp_path / "hub", Profile()))
    label = label_of(hub.rules, named(7))
    assert LabelRotation(hub.rules, hub.store).rotation(label, NOW) == (0, label)
    with hub.store.index.read() as rows:
        assert list(rows.all_rows("labels")) == []
    hub.close()


# A running hub.


def test_a_running_hub_is_ready_for_the_next_epoch(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path, profile=EPOCHAL), clock) as hub:
        for number in range(3):
            hub.register(naming.stream_id(named(number)))
        book = hub.service.sequencer.state.streams
        until(lambda: hub.status()["labels"] and book.derived >= 2 * 4)
        ready = book.derived
        clock.now += HOUR
        writer = Writer(hub, hub.label(named(1)), SigningKey.generate())
        writer.send()
        made = hub.post("/v1/checkpoint", CheckpointRequest(writer.label, 1)).read(CheckpointResponse).checkpoint
        epoch = EPOCHAL.epoch(START) + 1
        assert isinstance(made, Checkpoint)
        assert (made.epoch, made.label_prev) == (epoch, hub.label(named(1), epoch - 1))
        assert book.derived in (ready, ready + 4)  # only those of the next epoch
