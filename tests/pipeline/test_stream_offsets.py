"""Offsets of a stream: the entries between two are fixed and bounded, and every label gets a share."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from bench.big_log import BigLog
from tests.pipeline.conftest import SMALL
from veen.core import Malformed, Unverified
from veen.pipeline import select
from veen.pipeline.datasource import GrowingSources, Offset


def grown(place: Path, entries: int = 30) -> tuple[BigLog, GrowingSources]:
    made = BigLog(place / "hub", streams=3, clients=2, limits=SMALL)
    made.grow(entries)
    return made, GrowingSources(select(made.folders.root))


def count(offset: Offset) -> int:
    return sum(last for labels in offset.values() for last in labels.values())


@pytest.mark.parametrize("most", [1, 2, 7, 29, 30, 1000])
def test_batches_are_bounded_and_contain_every_entry_once(place: Path, most: int) -> None:
    _, tail = grown(place)
    start, end, seen = tail.beginning(), tail.end(), []
    while start != end:
        upto = tail.admitted(start, end, most)
        found = [(one.chunk.label, seq) for one in tail.pieces(start, upto) for seq in range(one.first, one.last + 1)]
        assert 1 <= len(found) <= most
        seen += found
        start = upto
    assert len(seen) == len(set(seen)) == 30


def test_a_repeated_batch_is_the_same_after_the_log_has_grown(place: Path) -> None:
    made, tail = grown(place)
    start = tail.admitted(tail.beginning(), tail.end(), 7)
    upto = tail.admitted(start, tail.end(), 11)
    ranges = [(one.chunk.label, one.first, one.last) for one in tail.pieces(start, upto)]
    made.grow(40)
    again = [
        (one.chunk.label, one.first, one.last) for one in GrowingSources(select(made.folders.root)).pieces(start, upto)
    ]
    assert {seq for one in ranges for seq in [(one[0], at) for at in range(one[1], one[2] + 1)]} == {
        seq for one in again for seq in [(one[0], at) for at in range(one[1], one[2] + 1)]
    }


def test_no_label_waits_for_a_long_one(place: Path) -> None:
    _, tail = grown(place, 300)
    (labels,) = tail.admitted(tail.beginning(), tail.end(), 9).values()
    assert sorted(labels.values()) == [3, 3, 3]


def test_a_label_that_comes_later_begins_at_its_beginning(place: Path) -> None:
    made = BigLog(place / "hub", streams=2, clients=1, limits=SMALL)
    made.grow(1)
    tail = GrowingSources(select(made.folders.root))
    start = tail.end()
    made.grow(9)
    assert sorted(one.first for one in tail.pieces(start, tail.end())) == [1, 2]


def test_a_log_that_lost_entries_already_seen_ends_the_stream(place: Path) -> None:
    made, tail = grown(place)
    end = tail.end()
    for path in made.folders.log.glob("*-open.log"):
        path.unlink()
    with pytest.raises(Unverified, match="entries 8 to 10 are missing at the end"):
        GrowingSources(select(made.folders.root)).pieces(tail.beginning(), end)
    shutil.rmtree(made.folders.index)
    with pytest.raises(Malformed, match="now has fewer"):
        GrowingSources(select(made.folders.root)).pieces(tail.beginning(), end)


def test_a_stream_ends_at_a_gap_ahead_and_ignores_one_behind(place: Path) -> None:
    made, tail = grown(place, 90)
    end, label = tail.end(), made.labels[0].hex()
    next(made.folders.log.glob(f"chunk-{label}-{8:020d}-{14:020d}.log")).unlink()
    tail = GrowingSources(select(made.folders.root))
    for start in (tail.beginning(), tail.admitted(tail.beginning(), end, 9)):
        with pytest.raises(Unverified, match="entries 8 to 14 are missing"):
            tail.check_whole(start)
        with pytest.raises(Unverified, match="entries 8 to 14 are missing"):
            tail.pieces(start, end)
    after = tail.admitted(tail.beginning(), end, 14 * 3)
    tail.check_whole(after)
    assert sum(piece.entries for piece in tail.pieces(after, end)) == 90 - 14 * 3
    entries = GrowingSources(select(made.folders.root, verify="entry"))
    (gap,) = [piece for piece in entries.pieces(entries.beginning(), end) if piece.failure]
    assert (gap.first, gap.last, gap.chunk.label.hex()) == (8, 14, label)


def test_a_stream_notices_a_lost_end_and_a_lost_label(place: Path) -> None:
    made, tail = grown(place)
    end, label = tail.end(), made.labels[0].hex()
    for path in made.folders.log.glob(f"*{label}*"):
        path.unlink()
    with pytest.raises(Unverified, match="entries 1 to 10 are missing at the end"):
        tail.check_whole(tail.beginning())
    entries = GrowingSources(select(made.folders.root, verify="entry"))
    assert entries.end() == end
    assert [piece.last for piece in entries.pieces(entries.beginning(), end) if piece.failure] == [10]


def test_a_stream_may_be_followed_before_its_first_entry(place: Path) -> None:
    made, _ = grown(place)
    tail = GrowingSources(select(made.folders.root, stream="to come"))
    assert tail.pieces(tail.beginning(), tail.end()) == []


def test_seq_min_and_seq_max_bound_a_stream(place: Path) -> None:
    made, _ = grown(place)
    tail = GrowingSources(select(made.folders.root, label=made.labels[0], seq_min=4, seq_max=9))
    found = tail.pieces(tail.beginning(), tail.end())
    assert [seq for one in found for seq in range(one.first, one.last + 1)] == list(range(4, 10))
