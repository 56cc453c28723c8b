"""Sending events after a check of the state, and watching a stream."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, Pair
from tests.hub.client import START, make_dir
from tests.state.hubs import at_a_liar, say, say_bytes
from veen.client import ClientDir
from veen.core import Refused
from veen.overlays import Applied, At, EventFault
from veen.overlays.kv import KV, Write
from veen.overlays.queue import QUEUE, Ack, Put, TaskClaim
from veen.state import DirectorySource, EventRefused, EventSender, KvStore, StateView, WatchedEntry, watch

T = TypeVar("T")


async def few(coming: AsyncGenerator[T, None], number: int) -> list[T]:
    found = []
    async with aclosing(coming):
        async for one in coming:
            found.append(one)
            if len(found) == number:
                return found
    raise AssertionError("it ended")


def test_an_event_that_the_state_refuses_is_not_sent(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, StateView.of(writer, STREAM, QUEUE) as view:
            channel = EventSender(view)
            task = (await channel.send(Put(b"x"))).msg_id
            before = len(hub.submitted)
            with pytest.raises(EventRefused, match="the task is not held by this claim") as refused:
                await channel.send(Ack(task, bytes(32)))
            assert isinstance(refused.value, Refused)
            assert [fault.part for fault in refused.value.faults] == [task]
            with pytest.raises(EventRefused, match="no such task"):
                await channel.send(TaskClaim(bytes(32), 60))
            assert len(hub.submitted) == before

    at_a_liar(place, work)


def test_an_overtaken_event_is_logged_and_reported_as_not_applied(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as other, StateView.of(writer, STREAM, QUEUE) as view:
            task = (await EventSender(view).send(Put(b"x"))).msg_id
            async with view.reading() as early:
                await say(other, TaskClaim(task, 60))
                said = await EventSender(view).send(TaskClaim(task, 60), reading=early)
            assert not said.applied
            assert [fault.reason for fault in said.faults] == ["the task is claimed"]
            assert said.at == At(0, 3)

    at_a_liar(place, work)


def test_an_event_cannot_be_sent_to_a_directory(place: Path) -> None:
    with ClientDir.create(place / "client", None, START) as folder:
        folder.stream_keys.create(STREAM)
        view = StateView(DirectorySource(make_dir(place), folder), STREAM, KV)
        with pytest.raises(ValueError, match="only to a hub"):
            EventSender(view)
        view.close()


def test_a_watch_yields_the_outcome_of_each_entry(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            await say(writer, Write(b"old", 0, b"1"))
            await view.sync()
            coming = asyncio.create_task(few(watch(view, after=At(0, 1)), 3))
            await say(writer, Write(b"old", 0, b"2"))
            await say_bytes(writer, b"no map", schema=Write.SCHEMA)
            await say(writer, Write(b"new", 0, b"3"))
            seen: list[WatchedEntry[object]] = await coming  # type: ignore[assignment]
            assert [one.entry.stream_seq for one in seen] == [2, 3, 4]
            first, second, third = (one.outcomes[0] for one in seen)
            assert isinstance(first, Applied)
            assert isinstance(second, EventFault)
            assert isinstance(third, Applied)
            assert getattr(first.before, "value", None) == b"1"

    at_a_liar(place, work)


def test_a_long_watch_moves_entries_to_the_cache_and_continues(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            coming = asyncio.create_task(few(watch(view, after=At(0, 0)), 700))
            for number in range(7):
                await say(
                    writer,
                    *(Write(b"k%d" % (one % 5), 0, b"%d" % one) for one in range(100 * number, 100 * number + 100)),
                )
            seen = await coming
            for number, one in enumerate(seen):
                (outcome,) = one.outcomes
                assert isinstance(outcome, Applied)
                assert outcome.before.value == (b"%d" % (number - 5) if number >= 5 else None)
            with view.kept() as timeline:
                upto = timeline.upto()
            assert upto is not None
            assert upto.stream_seq >= 512

    at_a_liar(place, work)


def test_a_directory_cannot_be_watched(place: Path) -> None:
    with ClientDir.create(place / "client", None, START) as folder:
        folder.stream_keys.create(STREAM)
        view = StateView(DirectorySource(make_dir(place), folder), STREAM, KV)
        with pytest.raises(ValueError, match="only a hub can be followed"):
            asyncio.run(few(watch(view), 1))
        view.close()


def test_a_store_is_a_map_with_a_history(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, KvStore.of(writer, STREAM) as store:
            assert await store.get(b"door") is None
            assert (await store.put(b"door", b"open")).applied
            await store.put(b"door", b"shut")
            await store.put(b"window", b"open")
            await store.delete(b"window")
            assert await store.get(b"door") == b"shut"
            assert await store.get(b"door", At(0, 1)) == b"open"
            assert await store.keys() == [b"door"]
            assert await store.keys(at=At(0, 3)) == [b"door", b"window"]
            assert await store.keys(b"win", At(0, 3)) == [b"window"]
            assert [step.at.stream_seq for step in await store.history(b"window")] == [3, 4]
            assert len((await store.prove(b"door")).exhibits) == 1

    at_a_liar(place, work)


def test_a_write_wins_over_an_earlier_one_with_a_later_time(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as other, KvStore.of(writer, STREAM) as store:
            await say(other, Write(b"k", 1 << 40, b"from the future"))
            await store.put(b"k", b"now")
            assert await store.get(b"k") == b"now"
            await store.delete(b"k")
            assert await store.get(b"k") is None

    at_a_liar(place, work)


def test_a_watcher_of_keys_receives_only_changes(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader, KvStore.of(reader, STREAM) as store:
            await say(writer, Write(b"a/k", 5, b"1"))
            await store.view.sync()
            coming = asyncio.create_task(few(store.watch(b"a/"), 2))
            while "/v1/stream" not in hub.asked[-1:]:
                await asyncio.sleep(0)
            await say(writer, Write(b"a/k", 4, b"late"), Write(b"b/k", 5, b"x"), Write(b"a/k", 6, b"2"))
            await say(writer, Write(b"a/l", 0, b"3"))
            changes = await coming
            assert [(one.key, one.before, one.after) for one in changes] == [(b"a/k", b"1", b"2"), (b"a/l", None, b"3")]

    at_a_liar(place, work)
