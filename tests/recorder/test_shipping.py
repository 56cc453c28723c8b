"""From a spool to the log."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.full_disk import no_file_longer_than
from tests.recorder.recorder_fixture import LOGIN, WEB, RecorderSetup, event
from veen.core import Unavailable
from veen.recorder import SetAside, Shipper, SpoolFeed, SpoolWriter
from veen.recorder.feed import FeedItem


def test_spooled_events_are_in_the_log_once_and_in_order(recorder: RecorderSetup) -> None:
    folder = recorder.root / "spool"
    writer = SpoolWriter(folder)
    writer.append([event(number, "login" if number % 3 == 0 else "http.request") for number in range(20)])
    writer.append([event(20)])
    writer.close()
    count = recorder.ship("shop", SpoolFeed(folder, "shop", follow=False))
    assert (count.sent, count.refused) == (21, 0)
    assert recorder.numbers(WEB) == [number for number in range(21) if number % 3 or number == 20]
    assert recorder.numbers(LOGIN) == [number for number in range(20) if number % 3 == 0]


def flawed(number: int) -> FeedItem:
    return FeedItem("source", number, None, "no JSON", f"line {number}".encode())


def test_events_are_set_aside_up_to_the_limit_and_then_refused(place: Path) -> None:
    aside = SetAside(place / "refused.jsonl", max_bytes=100)
    kept = [aside.add(flawed(number), "why") for number in range(5)]
    found = [json.loads(line)["position"] for line in aside.path.read_text().splitlines()]
    assert (kept, found) == ([True, True, False, False, False], [0, 1])


def test_a_full_disk_leaves_no_partial_line(place: Path) -> None:
    aside = SetAside(place / "refused.jsonl")
    aside.add(flawed(1), "why")
    whole = aside.path.read_bytes()
    with no_file_longer_than(len(whole) + 10), pytest.raises(Unavailable):
        aside.add(flawed(2), "why")
    assert aside.path.read_bytes() == whole


def test_the_operator_is_notified_of_lost_events(recorder: RecorderSetup) -> None:
    folder = recorder.root / "spool"
    writer = SpoolWriter(folder)
    writer.append([event(number, "unheard of") for number in range(3)] + [event(3)])
    writer.close()
    notices: list[str] = []
    aside = SetAside(recorder.root / "refused.jsonl", max_bytes=1)
    feed = SpoolFeed(folder, "shop", follow=False)
    count = asyncio.run(Shipper(lambda: recorder.client("shop"), feed, aside, notices.append).run())
    assert (count.sent, count.refused, count.lost) == (1, 3, 2)
    assert ["set aside" in text for text in notices] == [True, False, False]
    assert all("is lost" in text and str(aside.path) in text for text in notices[1:])
