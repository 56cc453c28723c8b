"""What a hub says about a stream as a whole: its epochs, the registered streams, and places in time."""

import random
from pathlib import Path

import pytest

from tests.hub.client import START, TOKEN, Clock, make_dir, running
from veen.core import Limits, Profile, naming
from veen.core.envelopes import CheckpointResponse, EpochList, StreamList, TimePlace
from veen.storage.index import SECONDS_PER_DAY

EPOCH_SEC = 1000
DAILY = Profile(epoch_sec=EPOCH_SEC)
STREAM = naming.stream_id("s")


def test_the_epochs_of_a_stream_are_listed_within_bounds_and_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, Limits(max_epoch_skew_sec=0)), Clock()
    first = DAILY.epoch(START)
    with running(data_dir, clock) as hub:
        hub.register(STREAM)
        for number in (0, 1, 4, 6):
            clock.now = START + number * EPOCH_SEC
            hub.writer().send()

        def listed(query: str = "") -> EpochList:
            return hub.get(f"/tooling/epochs?stream={STREAM.hex()}{query}").read(EpochList)

        def epochs(query: str = "") -> list[int]:
            return [one.epoch - first for one in listed(query).epochs]

        assert epochs() == [0, 1, 4, 6]
        assert epochs(f"&epoch_min={first + 1}&epoch_max={first + 4}") == [1, 4]
        assert epochs(f"&epoch_min={first + 7}") == []
        assert [one.label for one in listed().epochs] == [hub.label("s", first + one) for one in (0, 1, 4, 6)]
        assert listed().next_epoch is None
        assert hub.get(f"/tooling/epochs?stream={bytes(32).hex()}").read(EpochList).epochs == ()
        monkeypatch.setattr("veen.hub.epochs.MAX_EPOCHS_PER_ANSWER", 2)
        found, query = [], ""
        while True:
            page = listed(query)
            found += [one.epoch - first for one in page.epochs]
            if page.next_epoch is None:
                break
            query = f"&epoch_min={page.next_epoch}"
        assert found == [0, 1, 4, 6]
        for wrong in ("", "stream=x", f"stream={STREAM.hex()}&epoch_min=-1", f"stream={STREAM.hex()}&epoch=1"):
            assert hub.get(f"/tooling/epochs?{wrong}").status == 400


def test_the_newest_checkpoint_of_a_label_covers_all_entries(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        writer = hub.writer()
        path = f"/tooling/checkpoint?label={writer.label.hex()}"
        assert hub.get(path).error().code == "E.NOT_FOUND"
        last = [writer.send() for _ in range(3)][-1]
        made = hub.get(path).read(CheckpointResponse).checkpoint
        assert (made.upto_seq, made.mmr_root) == (3, last.mmr_root)
        made.verify_signature(hub.hub_pk)


def test_streams_are_listed_to_the_operator_only(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, DAILY)) as hub:
        hub.register(STREAM)
        assert hub.get("/tooling/streams").status == 401
        found = hub.get("/tooling/streams", authorization=f"Bearer {TOKEN}").read(StreamList)
        assert found == StreamList((STREAM,))
        assert hub.get("/tooling/streams?from=0", authorization=f"Bearer {TOKEN}").status == 400


@pytest.mark.parametrize("interval", [3, 65_536])
def test_the_first_entry_at_a_time_is_found_in_log_and_journal(tmp_path: Path, interval: int) -> None:
    """Compared with a search through all receipts, over several days and within one second."""
    dice, clock = random.Random(5), Clock()
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=interval))
    with running(data_dir, clock) as hub:
        writer, receipts = hub.writer(), []
        for _ in range(40):
            clock.now += dice.choice([0, 0, 1, 7, SECONDS_PER_DAY // 2, 3 * SECONDS_PER_DAY])
            receipts.append(writer.send())
        times = {0, START, receipts[-1].hub_ts + 1, 1 << 63}
        times |= {one.hub_ts + away for one in receipts for away in (-1, 0, 1)}
        for hub_ts in times:
            found = hub.get(f"/tooling/time?label={writer.label.hex()}&hub_ts={hub_ts}").read(TimePlace)
            seq = next((one.stream_seq for one in receipts if one.hub_ts >= hub_ts), len(receipts) + 1)
            assert found.stream_seq == seq
            assert found.before == (receipts[seq - 2] if seq > 1 else None)
            assert found.at == (receipts[seq - 1] if seq <= len(receipts) else None)
        assert hub.get(f"/tooling/time?label={writer.label.hex()}").status == 400
