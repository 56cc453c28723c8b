"""What was set aside: read back as it was, or named, and never less than there was."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.recorder.recorder_fixture import event
from veen.recorder import SetAside
from veen.recorder.feed import FeedItem
from veen.recorder.normalize import Defaults
from veen.recorder.retry_feed import REFUSED, RETRYING, RetryFeed, item_of

DEFAULTS = Defaults("x", "y")
ITEMS = [
    FeedItem("otlp/1", 7, event(1)),
    FeedItem("otlp/1", 8, event(2, "login")),
    FeedItem("jsonl:app#1", 40, None, "line 2: not JSON text", b"not json"),
    FeedItem("jsonl:app#1", 49, None, "line 3: not JSON text", b"\xff\xfe"),
]


def put_aside(place: Path, *items: FeedItem) -> None:
    for item in items:
        assert SetAside(place / REFUSED).add(item, item.flaw or "mapped to no stream")


def rest(retry: RetryFeed) -> list[FeedItem]:
    with closing(retry.feed) as feed:
        return feed._next(100, last=True)


def test_what_was_set_aside_is_read_back_as_it_was(place: Path) -> None:
    put_aside(place, *ITEMS)
    assert rest(RetryFeed(place)) == ITEMS
    assert not (place / REFUSED).exists()


def test_what_a_retry_left_is_finished_before_what_came_since(place: Path) -> None:
    put_aside(place, *ITEMS)
    begun = RetryFeed(place)
    with closing(begun.feed) as feed:
        feed.settle(feed._next(1, last=True))
    put_aside(place, ITEMS[0])
    again = RetryFeed(place)
    assert rest(again) == ITEMS[1:]
    again.finish()
    assert rest(RetryFeed(place)) == ITEMS[:1]


def test_a_place_that_outlived_its_file_is_none_in_the_next(place: Path) -> None:
    put_aside(place, *ITEMS[2:])
    begun = RetryFeed(place)
    with closing(begun.feed) as feed:
        feed.settle(feed._next(100, last=True))
    (place / RETRYING).rename(
        place / REFUSED
    )  # the same inode and the same first line, as after a crash amid finishing
    assert rest(RetryFeed(place)) == ITEMS[2:]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"source":"a","position":-1,"reason":"x","raw":"y"}',
        b'{"source":"a","position":1,"reason":"x"}',
        b'{"source":"a","position":1,"reason":"x","raw_hex":"zz"}',
        b'{"content":"{","event_time":1,"event_type":"t","origin":"o","position":1,"reason":"r","source":"a","subject_id":"s"}',
        b'{"content":"{}","event_time":-1,"event_type":"t","origin":"o","position":1,"reason":"r","source":"a","subject_id":"s"}',
        b'{"content":"{}","event_time":1,"event_type":"","origin":"o","position":1,"reason":"r","source":"a","subject_id":"s"}',
    ],
)
def test_a_line_that_nobody_set_aside_is_a_flaw_with_all_its_bytes(line: bytes) -> None:
    found = item_of("here", 5, line, DEFAULTS)
    assert (found.source, found.position, found.event, found.raw, bool(found.flaw)) == ("here", 5, None, line, True)
