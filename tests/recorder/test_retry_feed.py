"""Set-aside events are returned unchanged or with a flaw, and none is lost."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from tests.recorder.recorder_fixture import event
from veen.recorder import SetAside
from veen.recorder.feed import FeedItem
from veen.recorder.normalize import Defaults
from veen.recorder.shipper import REFUSED, RETRYING, RetryFeed, retried_item

DEFAULTS = Defaults("x", "y")
ITEMS = [
    FeedItem("otlp/1", 7, event(1)),
    FeedItem("otlp/1", 8, event(2, "login")),
    FeedItem("jsonl:app#1", 40, None, "line 2: not JSON text", b"not json"),
    FeedItem("jsonl:app#1", 49, None, "line 3: not JSON text", b"\xff\xfe"),
]


def put_aside(place: Path, *items: FeedItem) -> None:
    for item in items:
        assert SetAside(place / REFUSED).add(item, item.flaw or "not mapped to a stream")


def rest(retry: RetryFeed) -> list[FeedItem]:
    with closing(retry.feed) as feed:
        return list(asyncio.run(feed.take(100)))


def test_set_aside_events_are_read_back_unchanged(place: Path) -> None:
    put_aside(place, *ITEMS)
    assert rest(RetryFeed(place)) == ITEMS
    assert not (place / REFUSED).exists()


def test_an_interrupted_retry_is_finished_before_newer_events(place: Path) -> None:
    put_aside(place, *ITEMS)
    begun = RetryFeed(place)
    with closing(begun.feed) as feed:
        feed.settle(asyncio.run(feed.take(1)))
    put_aside(place, ITEMS[0])
    again = RetryFeed(place)
    assert rest(again) == ITEMS[1:]
    again.finish()
    assert rest(RetryFeed(place)) == ITEMS[:1]


def test_a_stale_state_file_does_not_apply_to_the_next_file(place: Path) -> None:
    put_aside(place, *ITEMS[2:])
    begun = RetryFeed(place)
    with closing(begun.feed) as feed:
        feed.settle(asyncio.run(feed.take(100)))
    (place / RETRYING).rename(place / REFUSED)  # the same inode and first line, as after a crash in finish()
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
def test_a_foreign_line_is_a_flaw_with_all_its_bytes(line: bytes) -> None:
    found = retried_item("here", 5, line, DEFAULTS)
    assert (found.source, found.position, found.event, found.raw, bool(found.flaw)) == ("here", 5, None, line, True)
