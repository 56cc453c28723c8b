"""The spool stores each event once, survives kills, and respects its limit."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full_disk import no_file_longer_than
from tests.recorder.recorder_fixture import event
from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import SpoolFeed, SpoolWriter, spool
from veen.recorder.feed import FeedItem

DIGEST = h(b"batch")


def taken(feed: SpoolFeed, most: int = 1_000) -> list[FeedItem]:
    return list(asyncio.run(feed.take(most)))


def read(folder: Path) -> list[RecordEvent]:
    return [one for path in spool.segments(folder) for batch in spool.batches(path) for one in batch.events]


def test_appended_events_are_read_in_order(place: Path) -> None:
    writer = SpoolWriter(place / "s", segment_bytes=300)
    for number in range(20):
        assert writer.append([event(number)])
    writer.close()
    assert read(place / "s") == [event(number) for number in range(20)]
    assert len(spool.segments(place / "s")) > 1


def test_a_truncated_frame_ends_its_segment_without_affecting_earlier_ones(place: Path) -> None:
    writer = SpoolWriter(place)
    writer.append([event(1)])
    writer.append([event(2)])
    writer.close()
    (path,) = spool.segments(place)
    whole = path.read_bytes()
    first = next(spool.batches(path)).end
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        assert read(place) == [event(1)]
    for at in range(first, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read(place) == [event(1)]


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 512])
def test_zeros_that_a_power_cut_left_end_a_segment(place: Path, zeros: int) -> None:
    writer = SpoolWriter(place)
    writer.append([event(1)])
    writer.close()
    (path,) = spool.segments(place)
    path.write_bytes(path.read_bytes() + bytes(zeros))
    assert read(place) == [event(1)]


def test_a_batch_that_is_in_two_segments_is_returned_once(place: Path) -> None:
    """A failed sync may leave the frame of a batch that the writer then stores again."""
    writer = SpoolWriter(place / "s", segment_bytes=1)
    for number in range(3):
        writer.append([event(number)], h(b"%d" % number))
    writer.close()
    first, second, _ = spool.segments(place / "s")
    second.write_bytes(second.read_bytes() + first.read_bytes())
    for _ in range(2):  # also after a restart between the two copies
        feed = SpoolFeed(place / "s", "n", follow=False)
        items = taken(feed, 1)
        feed.settle(items)
    assert [item.event for item in taken(SpoolFeed(place / "s", "n", follow=False))] == [event(2)]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("fits", [0, 1, 20])
def test_events_stored_after_a_short_write_are_returned(place: Path, sync: bool, fits: int) -> None:
    writer = SpoolWriter(place, sync=sync)
    assert writer.append([event(1)])
    (path,) = spool.segments(place)
    whole = path.stat().st_size
    with no_file_longer_than(whole + fits), pytest.raises(Unavailable):
        writer.append([event(2)], again=True)
    assert path.stat().st_size == whole
    for number in range(3, 8):
        assert writer.append([event(number)])
    writer.close()
    feed = SpoolFeed(place, "n", follow=False)
    items = taken(feed)
    assert [item.event for item in items] == [event(1), *(event(number) for number in range(3, 8))]
    feed.settle(items)
    assert (taken(feed), spool.segments(place)) == ([], [])


def test_nothing_is_appended_after_a_partial_frame_that_cannot_be_truncated(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    writer = SpoolWriter(place)
    writer.append([event(1)])
    (path,) = spool.segments(place)
    with monkeypatch.context() as broken, no_file_longer_than(path.stat().st_size + 20):
        broken.setattr(os, "ftruncate", refuse)
        with pytest.raises(Unavailable):
            writer.append([event(2)], again=True)
    assert writer.append([event(3)])
    assert read(place) == [event(1), event(3)]


def test_a_batch_the_disk_rejects_counts_as_dropped_unless_retried(place: Path) -> None:
    writer = SpoolWriter(place)
    with no_file_longer_than(0):
        for again in (True, False, False):
            with pytest.raises(Unavailable):
                writer.append([event(1)], again=again)
    assert writer.dropped == 2
    assert writer.append([event(2)])
    lost, found = read(place)
    assert (lost.event_type, lost.value(), found) == (spool.DROPPED, {"dropped": 2}, event(2))


def test_a_batch_the_disk_rejected_is_not_recognized_when_repeated(place: Path) -> None:
    writer = SpoolWriter(place)
    with no_file_longer_than(0), pytest.raises(Unavailable):
        writer.append([event(1)], DIGEST, again=True)
    assert writer.append([event(1)], DIGEST, again=True)
    assert read(place) == [event(1)]


def test_settled_events_are_not_returned_again_and_the_rest_is(place: Path) -> None:
    writer = SpoolWriter(place)
    writer.append([event(number) for number in range(5)])
    writer.append([event(5)])
    feed = SpoolFeed(place, "n", follow=False)
    first = taken(feed, 3)
    assert [item.position for item in first] == [1, 2, 3]
    assert [item.position for item in taken(feed, 3)] == [4, 5, 6]
    feed.settle(first)  # killed here
    again = SpoolFeed(place, "n", follow=False)
    assert [item.event for item in taken(again)] == [event(3), event(4), event(5)]
    assert {item.source for item in first} == {f"n/{spool.segments(place)[0].stem}"}


def test_a_segment_is_removed_once_its_writer_ended_and_it_is_settled(place: Path) -> None:
    writer = SpoolWriter(place)
    writer.append([event(1)])
    feed = SpoolFeed(place, "n", follow=False)
    feed.settle(taken(feed))
    assert taken(feed) == []
    assert len(spool.segments(place)) == 1  # its writer is still open
    writer.append([event(2)])
    writer.close()
    items = taken(feed)
    assert [item.event for item in items] == [event(2)]
    assert taken(feed) == []
    assert len(spool.segments(place)) == 1  # not settled
    feed.settle(items)
    assert taken(feed) == []
    assert spool.segments(place) == []


def test_a_repeated_batch_is_recognized_after_a_restart_and_after_its_segment_is_removed(place: Path) -> None:
    for _ in range(2):
        writer = SpoolWriter(place)
        assert writer.append([event(1), event(2)], DIGEST)
        assert writer.append([event(1), event(2)], DIGEST)
        writer.close()
    assert read(place) == [event(1), event(2)]
    feed = SpoolFeed(place, "n", follow=False)
    feed.settle(taken(feed))
    assert taken(feed) == []
    assert spool.segments(place) == []
    writer = SpoolWriter(place)
    assert writer.append([event(1), event(2)], DIGEST)
    assert writer.append([event(1)], h(b"another"))
    assert read(place) == [event(1)]


def test_a_full_spool_records_how_many_events_it_dropped(place: Path) -> None:
    room = len(spool.frame_of([event(1)], None))
    writer = SpoolWriter(place, max_bytes=3 * room)
    assert [writer.append([event(1)]) for _ in range(5)] == [True, True, True, False, False]
    assert writer.dropped == 2
    assert not writer.append([event(1)], again=True)
    assert writer.dropped == 2
    for path in spool.segments(place):
        path.unlink()
    writer.close()
    assert writer.append([event(2)])
    lost, found = read(place)
    assert (lost.event_type, lost.value(), found) == (spool.DROPPED, {"dropped": 2}, event(2))
    assert writer.dropped == 0


def test_two_processes_write_separate_segments(place: Path) -> None:
    writer = SpoolWriter(place)
    writer.append([event(1)])
    child = os.fork()
    if not child:
        writer.append([event(2)])
        os._exit(0)
    os.waitpid(child, 0)
    writer.append([event(3)])
    found = [[one for batch in spool.batches(path) for one in batch.events] for path in spool.segments(place)]
    assert found == [[event(1), event(3)], [event(2)]]


def test_events_of_a_killed_process_are_stored(place: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.recorder.recorder_fixture import event
from veen.recorder import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]))
for number in range(10**6):
    writer.append([event(number)])
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(place)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(100):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    written = 100 + len([line for line in process.stdout if line.endswith(b"\n")])
    process.wait()
    process.stdout.close()
    assert read(place)[:written] == [event(number) for number in range(written)]
    assert len(read(place)) <= written + 1


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80", b"\xa1\x61a\x01"])
def test_a_damaged_places_file_is_rejected(place: Path, data: bytes) -> None:
    (place / "places").write_bytes(data)
    with pytest.raises(Malformed):
        SpoolFeed(place, "n")
