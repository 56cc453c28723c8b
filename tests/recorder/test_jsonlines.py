"""JSON lines: events of lines, and files that are followed, truncated, renamed and resumed."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from veen.core import Malformed
from veen.recorder.feed import FeedItem
from veen.recorder.json_lines import MAX_LINE_BYTES, JsonLines, event_of
from veen.recorder.normalize import Defaults

DEFAULTS = Defaults("shop", "json.line")
NOW = 1_750_000_000_000


@pytest.fixture
def file(place: Path) -> Path:
    return place / "app.jsonl"


def follow(file: Path, **options: object) -> JsonLines:
    return JsonLines(file, file.parent / "state", DEFAULTS, linger_s=0.0, **options)  # type: ignore[arg-type]


def write(file: Path, *numbers: int, end: str = "\n") -> None:
    with file.open("a") as lines:
        for number in numbers:
            lines.write(json.dumps({"n": number}) + end)


def some(feed: JsonLines, most: int = 1_000) -> list[FeedItem]:
    """The available items, without waiting."""
    return feed._next(most, last=False)


def said(items: list[FeedItem]) -> list[object]:
    return [item.event.value()["n"] if item.event else item.raw.decode() for item in items]  # type: ignore[call-overload, index]


def test_event_fields_in_a_line_are_used() -> None:
    line = b'{"subject_id":"alice","event_type":"login","event_time":"2030-01-31T12:00:00Z","origin":"x","payload":[1]}'
    event = event_of(line, DEFAULTS, NOW)
    assert (event.subject_id, event.event_type, event.origin) == ("alice", "login", "x")
    assert (event.event_time, event.content) == (1_896_091_200_000, "[1]")


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (b"{}", NOW),
        (b'{"time":1700000000}', 1_700_000_000_000),
        (b'{"ts":1700000000.5}', 1_700_000_000_500),
        (b'{"timestamp":1700000000123}', 1_700_000_000_123),
        (b'{"@timestamp":"2023-11-14T22:13:20.001+00:00"}', 1_700_000_000_001),
        (b'{"time":"yesterday"}', NOW),
        (b'{"time":true}', NOW),
        (b'{"time":-5}', NOW),
        (b'{"event_time":null,"time":1700000000}', 1_700_000_000_000),
    ],
)
def test_a_line_without_a_time_gets_the_time_of_reading(line: bytes, time: int) -> None:
    assert event_of(line, DEFAULTS, NOW).event_time == time


def test_the_whole_line_is_payload_unless_it_has_one() -> None:
    event = event_of(b'{"subject_id":7,"b":2,"a":12345678901234567890}', DEFAULTS, NOW)
    assert (event.subject_id, event.content) == ("7", '{"a":"12345678901234567890","b":2,"subject_id":7}')
    long = event_of(json.dumps({"subject_id": "ü" * 2_000}).encode(), DEFAULTS, NOW)
    assert len(long.subject_id.encode()) <= 1_024
    assert long.subject_id.endswith("…")


@pytest.mark.parametrize("line", [b"", b"[]", b"1", b"{", b"\xff", b'{"a":1,"a":2}', b"null"])
def test_a_line_that_is_not_an_object_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed):
        event_of(line, DEFAULTS, NOW)


def test_lines_have_offsets_and_incomplete_lines_are_awaited(file: Path) -> None:
    write(file, 1, 2)
    write(file, 3, end="")
    feed = follow(file)
    items = some(feed)
    assert [item.position for item in items] == [0, 9]
    write(file, end="")
    assert some(feed) == []
    with file.open("a") as lines:
        lines.write("\n")
    assert said(some(feed)) == [3]
    feed.close()


def test_a_feed_resumes_after_the_last_settled_line(file: Path) -> None:
    write(file, 1, 2, 3)
    feed = follow(file)
    feed.settle(some(feed, 2))
    some(feed)
    feed.close()  # the third line was returned but not settled
    feed = follow(file)
    assert said(some(feed)) == [3]
    feed.close()


def test_a_renamed_file_is_read_to_its_end_and_then_the_new_one(file: Path) -> None:
    write(file, 1, 2)
    feed = follow(file)
    assert said(some(feed)) == [1, 2]
    write(file, 3)
    file.rename(file.with_suffix(".jsonl.1"))
    write(file, 4)
    items = [*some(feed), *some(feed)]
    assert said(items) == [3, 4]
    assert len({item.source for item in items}) == 2
    feed.close()


def test_a_file_renamed_while_the_feed_was_stopped_is_found(file: Path) -> None:
    write(file, 1, 2)
    feed = follow(file)
    feed.settle(some(feed, 1))
    feed.close()
    file.rename(file.with_suffix(".jsonl.1"))
    write(file, 3)
    feed = follow(file)
    assert said([*some(feed), *some(feed)]) == [2, 3]
    feed.close()


def test_several_files_renamed_while_the_feed_was_stopped_are_all_read(file: Path) -> None:
    write(file, 1, 2)
    feed = follow(file)
    feed.settle(some(feed, 1))
    feed.close()
    for number in (1, 2, 3):
        file.rename(file.with_suffix(f".jsonl.{number}"))
        write(file, 2 + number)
        os.utime(file, ns=(2**61 + number, 2**61 + number))
    feed = follow(file)
    assert said([item for _ in range(5) for item in some(feed)]) == [2, 3, 4, 5]
    feed.close()


def test_a_file_renamed_before_any_line_was_settled_is_found(file: Path) -> None:
    write(file, 1, 2)
    feed = follow(file)
    some(feed)
    feed.close()  # killed before anything was settled
    file.rename(file.with_suffix(".jsonl.1"))
    write(file, 3)
    feed = follow(file)
    assert said([*some(feed), *some(feed)]) == [1, 2, 3]
    feed.close()


def test_lost_data_is_reported(file: Path) -> None:
    write(file, 1, 2)
    feed = follow(file)
    feed.settle(some(feed, 1))
    feed.close()
    file.rename(file.parent / "elsewhere")
    write(file, 3)
    notices: list[str] = []
    feed = follow(file, notify=notices.append)
    assert said(some(feed)) == [3]
    assert "is gone" in notices[0]
    feed.close()


def test_a_truncated_and_rewritten_file_is_another_source(file: Path) -> None:
    write(file, 1, 2)
    feed = follow(file)
    first = some(feed)
    inode = file.stat().st_ino
    os.truncate(file, 0)
    assert some(feed) == []
    write(file, 5)
    second = some(feed)
    assert file.stat().st_ino == inode
    assert said(second) == [5]
    assert first[0].source != second[0].source
    feed.close()


def test_an_invalid_or_overlong_line_is_returned_with_its_flaw(file: Path) -> None:
    file.write_bytes(b"not json\n\n  \n" + b"x" * (3 * MAX_LINE_BYTES) + b"\n" + b'{"n":1}\n')
    feed = follow(file)
    bad, long, good = some(feed)
    assert (bad.event, long.event) == (None, None)
    assert "not JSON text" in bad.flaw
    assert "longer than" in long.flaw
    assert said([good]) == [1]
    feed.close()


@pytest.mark.parametrize("end", ["", "\n"])
def test_once_reads_a_last_line_without_line_end(file: Path, end: str) -> None:
    write(file, 1, end=end)
    feed = JsonLines(file, file.parent / "state", DEFAULTS, follow=False)
    items = list(asyncio.run(feed.take(10)))
    assert said(items) == [1]
    feed.settle(items)
    assert list(asyncio.run(feed.take(10))) == []
    feed.close()
    write(file, 2)
    feed = JsonLines(file, file.parent / "state", DEFAULTS, follow=False)
    assert said(list(asyncio.run(feed.take(10)))) == [2]
    feed.close()


def test_a_file_that_does_not_exist_yet_is_awaited(file: Path) -> None:
    feed = follow(file)

    async def run() -> list[FeedItem]:
        waiting = asyncio.create_task(feed.take(5))
        await asyncio.sleep(0)
        assert not waiting.done()
        write(file, 1)
        return list(await waiting)

    assert said(asyncio.run(run())) == [1]
    feed.close()


def test_end_stops_a_feed(file: Path) -> None:
    write(file, 1)
    feed = follow(file)
    take: Callable[[], list[FeedItem]] = lambda: list(asyncio.run(feed.take(5)))  # noqa: E731
    take()
    feed.end()
    assert take() == []
    feed.close()


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80"])
def test_a_damaged_state_file_is_rejected(file: Path, data: bytes) -> None:
    (file.parent / "state").write_bytes(data)
    with pytest.raises(Malformed):
        follow(file)


def test_an_invalid_line_is_reported_with_its_number_also_after_a_restart(file: Path) -> None:
    file.write_text('{"n":1}\n\nbad\n{"n":2}\n')
    feed = follow(file)
    items = some(feed)
    assert [item.flaw[:7] for item in items] == ["", "line 3:", ""]
    feed.settle(items)
    feed.close()
    with file.open("ab") as lines:
        lines.write(b'{"n":3}\n\xff\n')
    feed = follow(file)
    good, bad = some(feed)
    feed.close()
    assert (good.flaw, bad.flaw[:7], bad.raw) == ("", "line 6:", b"\xff")
