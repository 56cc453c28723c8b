"""A start checks few labels, however many a hub has; the rest is checked while it runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.client import START, Clock, make_dir, running, until
from tests.hub.client import Hub as ServedHub
from tests.storage.hubs import NOW, Client, Hub, create, index_rows, label_of, receipts
from veen.core import Malformed
from veen.core.receipt import Receipt
from veen.hub.admission_rules import Admission
from veen.storage import store
from veen.storage.index import IndexRows
from veen.storage.log_writer import OpenChunks

LABELS = 40


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = create(tmp_path_factory.mktemp("labels") / "hub")
    hub = Hub(root)
    client = Client("ann", hub.rules)
    receipts(hub.submit([client.message(label_of(hub.rules, f"stream {number}")) for number in range(LABELS)]))
    hub.catch_up()
    hub.close()
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "hub")


@pytest.fixture
def heads_read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Counts the labels whose heads were scanned."""
    labels: list[bytes] = []
    real = IndexRows.labels

    def counted(rows: IndexRows, after: bytes = b"") -> Iterator[tuple[bytes, object]]:
        for label, head in real(rows, after):
            labels.append(label)
            yield label, head

    monkeypatch.setattr(IndexRows, "labels", counted)
    return labels


def last_open_chunk(root: Path) -> Path:
    return max((root / "log").glob("chunk-*-open.log"))


def label_in(path: Path) -> bytes:
    return bytes.fromhex(path.name.split("-")[1])


def test_a_start_goes_through_no_more_heads_than_it_may(
    root: Path, heads_read: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LABELS_CHECKED_AT_START", 4)
    hub = Hub(root)
    assert len(heads_read) == 4
    hub.close()


def test_a_running_hub_looks_at_every_head_once(root: Path, heads_read: list[bytes]) -> None:
    with running(root, Clock(NOW)) as hub:
        until(lambda: hub.status()["labels"] == len(heads_read) == LABELS)
    assert len(set(heads_read)) == LABELS


def test_every_open_chunk_is_looked_at_once_and_so_many_at_a_time(root: Path, heads_read: list[bytes]) -> None:
    hub = Hub(root)
    heads_read.clear()
    looks = OpenChunks(hub.folders, hub.store.index)
    sizes: list[int] = []
    while looks.check(16):
        sizes.append(len(heads_read) - sum(sizes))
    assert sizes == [16, 16]
    assert len(set(heads_read)) == len(heads_read) == LABELS
    assert not looks.check(16)
    assert len(heads_read) == LABELS
    hub.close()


@pytest.mark.parametrize("cut", [0, 1])
def test_nothing_is_accepted_for_a_label_whose_open_chunk_is_incomplete(
    root: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LABELS_CHECKED_AT_START", 1)
    path = last_open_chunk(root)
    path.write_bytes(path.read_bytes()[:-1] if cut else b"")
    hub = Hub(root)
    client = Client("ben", hub.rules)
    with pytest.raises(Malformed, match="does not hold the 1 entries that the index lists"):
        hub.submit([client.message(label_in(path))])
    assert not hub.state.open.outcomes
    hub.close()


def test_an_open_chunk_that_is_gone_ends_a_hub_that_has_started(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LABELS_CHECKED_AT_START", 1)
    last_open_chunk(root).unlink()
    served = ServedHub(root, Clock(NOW), settings={"admission": Admission.OPEN}).start()
    broken = served.service.broken
    assert broken is not None
    assert isinstance(served.do(broken), Malformed)
    served.abandon()


def test_the_label_that_was_written_to_last_is_the_same_however_the_log_caught_up(tmp_path: Path) -> None:
    hub = Hub(create(tmp_path / "hub"))
    client = Client("ann", hub.rules)
    for number, passed in enumerate((0, 1, 0, 0, 2, 0)):
        hub.clock.now += passed
        receipts(hub.submit([client.message(label_of(hub.rules, f"stream {number % 5}"))]))
        hub.catch_up()
        with hub.store.index.read() as rows:
            assert rows.newest() == max((head.hub_ts, label) for label, head in rows.labels())[1]
            assert (rows.label_count(), rows.entry_count()) == (min(number + 1, 5), number + 1)
    rows_before = index_rows(hub)
    hub.close()
    shutil.rmtree(hub.folders.index)
    again = Hub(hub.folders.root)
    assert index_rows(again) == rows_before
    again.close()


def test_a_start_knows_how_much_there_is_and_what_came_last(tmp_path: Path) -> None:
    clock, data_dir = Clock(), make_dir(tmp_path)
    last: Receipt | None = None
    with running(data_dir, clock) as hub:
        for number in (3, 1, 2):
            clock.now += 1
            last = hub.writer(f"stream {number}").send_many(number)[-1]
    assert last is not None
    with running(data_dir, Clock(START)) as hub:
        assert (hub.status()["labels"], hub.status()["entries"]) == (3, 6)
        shown = hub.get("/healthz").json()
        assert (shown["last_stream_seq"], shown["last_mmr_root"]) == (2, last.mmr_root.hex())
