"""Views of a live hub equal a fold of the log at every place, read entries once, and detect lies of the hub."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, Pair, read_all
from tests.state.hubs import at_a_liar, say, say_bytes
from veen.client.contradiction import Contradiction, Lie
from veen.core import Unavailable, Unverified, naming
from veen.core.envelopes import StreamItem
from veen.overlays import At, FaultKind, fold
from veen.overlays.kv import KV, Delete, Write
from veen.state import StateView, drop_cache
from veen.state.entry_source import folded
from veen.state.state_view import cache_folder


def writes(number: int, keys: int = 7) -> list[Write | Delete]:
    random = Random(number)
    made: list[Write | Delete] = []
    for at in range(number):
        key = b"key %d" % random.randrange(keys)
        made.append(Delete(key, 0) if random.random() < 0.2 else Write(key, 0, b"value %d" % at))
    return made


@pytest.mark.parametrize("cached", [True, False])
def test_a_view_equals_a_fold_of_the_log_at_every_place(place: Path, cached: bool) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *writes(40))
            await say_bytes(writer, b"no map", schema=Write.SCHEMA)
        async with people.reader() as reader, StateView.of(reader, STREAM, KV, cached=cached) as view:
            entries = [folded(entry) for entry in await read_all(reader)]
            for size in range(len(entries) + 1):
                expected = fold(KV, entries[:size])
                async with view.reading(At(0, size)) as reading:
                    assert dict(reading.states) == expected.states
                    assert list(reading.faults()) == expected.faults
                    assert reading.at == At(0, size)
            async with view.reading() as reading:
                assert reading.upto == At(0, 41)
                assert [fault.kind for fault in reading.faults()] == [FaultKind.MALFORMED]

    at_a_liar(place, work)


def test_one_key_at_any_entry_is_read_without_reading_the_stream_again(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *writes(250, keys=3))
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as first:
            assert first.upto == At(0, 250)
        hub.on_items = lambda items: pytest.fail("entries were asked for again") if items else items
        hub.lying = True
        for size in (1, 77, 249, 250):
            # A new process: nothing is known but what is on disk.
            written = [event for event in writes(250, keys=3)[:size] if event.key == b"key 1"]
            at = At(0, size)
            async with people.reader() as met, StateView.of(met, STREAM, KV) as view, view.reading(at) as reading:
                assert reading.state(b"key 1").value == (getattr(written[-1], "value", None) if written else None)

    at_a_liar(place, work)


def test_only_new_entries_are_read(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        seen: list[int] = []

        def noted(items: list[StreamItem]) -> list[StreamItem]:
            seen.extend(item.stream_seq for item in items)
            return items

        hub.on_items, hub.lying = noted, True
        async with people.writer() as writer, people.reader() as reader:
            for number in range(1, 5):
                await say(writer, *(Write(b"k", 0, b"%d" % number) for _ in range(number)))
                async with StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
                    assert reading.state(b"k").value == b"%d" % number
        assert seen == list(range(1, 11))

    at_a_liar(place, work)


def test_a_place_beyond_the_log_is_unavailable(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, Write(b"k", 0, b"v"))
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            with pytest.raises(Unavailable, match="ends with entry 1; there is no entry 2 yet"):
                async with view.reading(At(0, 2)):
                    pass

    at_a_liar(place, work)


def test_an_empty_stream_has_an_empty_state(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            assert dict(reading.states) == {}
            assert reading.at == At(0, 0)
            assert reading.ends() == ()

    at_a_liar(place, work)


def test_without_a_reader_key_there_is_no_state_and_no_cache(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.reader() as reader:
            with pytest.raises(Unavailable, match="no reader key"):
                StateView.of(reader, "another stream", KV)
        assert not (place / "reader" / "overlays").exists()

    at_a_liar(place, work)


# What is kept.


def test_two_views_of_one_stream_share_the_cache(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with (
            people.writer() as writer,
            people.reader() as reader,
            StateView.of(reader, STREAM, KV) as one,
            StateView.of(reader, STREAM, KV) as other,
        ):
            for number in range(6):
                await say(writer, *(Write(b"k", 0, b"%d" % number) for _ in range(3)))
                await asyncio.gather(one.sync(), other.sync())
                async with one.reading() as a, other.reading() as b:
                    assert a.upto == b.upto == At(0, 3 * number + 3)
                    assert a.state_hash() == b.state_hash()

    at_a_liar(place, work)


def test_a_view_that_is_closed_leaves_the_other_open(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, Write(b"k", 0, b"v"))
            async with StateView.of(reader, STREAM, KV) as one:
                async with StateView.of(reader, STREAM, KV) as other:
                    await other.sync()
                async with one.reading() as reading:
                    assert reading.state(b"k").value == b"v"

    at_a_liar(place, work)


def test_entries_cached_by_another_reader_are_checked_before_use(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, Write(b"k", 0, b"1"))
            async with StateView.of(reader, STREAM, KV) as view, StateView.of(reader, STREAM, KV) as other:
                await view.sync()
                await say(writer, Write(b"k", 0, b"2"))
                await other.sync()
                async with view.reading(fresh=False) as reading:
                    assert reading.state(b"k").value == b"2"

    at_a_liar(place, work)


def _cache(people: Pair, hub: HostileHub) -> Path:
    return cache_folder(people.reader_dir, hub.identity.hub_id, KV, naming.stream_id(STREAM))


def test_a_cache_of_another_log_is_rejected_until_it_is_dropped(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, Write(b"k", 0, b"1"), Write(b"k", 0, b"2"))
            async with StateView.of(reader, STREAM, KV) as view:
                await view.sync()
            label = reader.label(STREAM)
            hub.fork(label, 1)
            people.reader_dir.state.forget(hub.identity.hub_id, label)  # whoever starts over still has the cache
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            with pytest.raises(Unverified, match="than when this cache was built") as refused:
                await view.sync()
            assert refused.value.what == "cache"
        assert drop_cache(people.reader_dir, hub.identity.hub_id, KV, naming.stream_id(STREAM))
        assert not _cache(people, hub).exists()
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            assert reading.upto == At(0, 3)
            assert reading.state(b"k").value == b"1"

    at_a_liar(place, work)


def test_a_cache_in_use_cannot_be_dropped(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.reader() as reader, StateView.of(reader, STREAM, KV):
            with pytest.raises(ValueError, match="in use"):
                drop_cache(people.reader_dir, hub.identity.hub_id, KV, naming.stream_id(STREAM))

    at_a_liar(place, work)


# A hub that lies.


def test_a_hub_that_forks_before_the_cached_place_is_detected(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, Write(b"k", 0, b"1"), Write(b"k", 0, b"2"))
            async with StateView.of(reader, STREAM, KV) as view:
                await view.sync()
                hub.fork(reader.label(STREAM), 1)
                with pytest.raises(Contradiction) as caught:
                    await view.sync()
        assert caught.value.lie is Lie.FORKED_HISTORY

    at_a_liar(place, work)


def test_a_hub_that_lost_cached_entries_is_detected(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, Write(b"k", 0, b"1"), Write(b"k", 0, b"2"))
            async with StateView.of(reader, STREAM, KV) as view:
                await view.sync()
            label = reader.label(STREAM)
            hub.logs[label] = hub.log(label).cut(1)
            async with StateView.of(reader, STREAM, KV) as view:
                with pytest.raises(Contradiction) as caught:
                    await view.sync()
        assert caught.value.lie is Lie.TRUNCATED_STREAM

    at_a_liar(place, work)


def test_a_swapped_entry_is_detected_before_it_is_folded(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, *(Write(b"k", 0, b"%d" % number) for number in range(4)))

            def swapped(items: list[StreamItem]) -> list[StreamItem]:
                return [items[0], replace(items[1], msg=items[2].msg), *items[2:]]

            hub.on_items, hub.lying = swapped, True
            async with StateView.of(reader, STREAM, KV) as view:
                with pytest.raises(Contradiction) as caught:
                    await view.sync()
                assert caught.value.lie is Lie.SWAPPED_MESSAGE
                hub.lying = False
                async with view.reading() as reading:
                    assert reading.state(b"k").value == b"3"

    at_a_liar(place, work)
