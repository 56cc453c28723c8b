"""A stream with epochs is one state over all of its labels; what can still be preceded is never kept as settled."""

import asyncio
from pathlib import Path

import pytest

from tests.client.pair import STREAM, Pair
from tests.hub.client import START, Clock, Hub
from tests.state.hubs import at_a_hub, say
from tests.state.test_event_sender import few
from veen.client.evidence import verify
from veen.core import Limits, Profile, naming
from veen.overlays import Applied, At
from veen.overlays.kv import KV, Write
from veen.state import DirectorySource, StateSnapshot, StateView, compare, make, prove, verify_state, watch

MINUTE = 60
PROFILE = Profile(epoch_sec=MINUTE)
FIRST = PROFILE.epoch(START)


def kept(view: StateView[object, object]) -> At | None:
    with view.kept() as timeline:
        return timeline.upto()


def test_a_late_entry_is_folded_before_the_next_epoch(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        await asyncio.to_thread(hub.register, naming.stream_id(STREAM))
        async with people.writer() as slow, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            await say(slow, Write(b"k", 0, b"first"), Write(b"old", 0, b"1"))
            clock.now += MINUTE
            await reader.status()
            await say(reader, Write(b"k", 0, b"third"))
            async with view.reading() as reading:
                assert reading.upto == At(FIRST + 1, 1)
                assert reading.state(b"k").value == b"third"
            # The slow writer does not know yet that it is a minute later, and the hub bears with that.
            await say(slow, Write(b"k", 0, b"second"), Write(b"old", 0, b"2"))
            async with view.reading() as reading:
                assert [step.at for step in reading.history(b"k")] == [
                    At(FIRST, 1),
                    At(FIRST, 3),
                    At(FIRST + 1, 1),
                ]
                assert (reading.state(b"k").value, reading.state(b"old").value) == (b"third", b"2")
            async with view.reading(At(FIRST, 3)) as reading:
                assert reading.state(b"k").value == b"second"
            assert kept(view) == At(FIRST, 4)  # type: ignore[arg-type]
            clock.now += 2 * MINUTE
            await reader.status()
            await view.sync()
            assert kept(view) == At(FIRST + 1, 1)  # type: ignore[arg-type]

    at_a_hub(place, work, profile=PROFILE, clock=clock)


def test_hub_and_directory_give_the_same_state_over_all_epochs(place: Path) -> None:
    clock, told = Clock(), []

    async def work(hub: Hub, people: Pair) -> None:
        await asyncio.to_thread(hub.register, naming.stream_id(STREAM))
        async with people.writer() as writer, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            for number in range(4):
                await say(
                    writer, Write(b"k%d" % (number % 2), 0, b"%d" % number), Write(b"all", number, b"%d" % number)
                )
                clock.now += MINUTE * (number + 1)
                await writer.status()
            await reader.status()
            async with view.reading() as reading:
                file = await prove(view, reading, b"k0", b"all")
                snapshot = await make(view, reading)
                told.append((reading.upto, reading.state_hash(), reading.state_hash(b"k0", b"all")))
            assert (await compare(view, StateSnapshot.decode(snapshot.encode()))).parts == 3
            hub_id = reader.hub_id
            assert verify(file.encode(), hub_id).contradictions == ()
            found = verify_state(file.encode(), KV, STREAM, b"k0", b"all", pin=hub_id)
            assert found.state_hash == told[0][2]
            source = DirectorySource(hub.data_dir, people.reader_dir, hub_id)
            for cached in (False, True):
                async with StateView(source, STREAM, KV, cached=cached) as copy, copy.reading() as reading:
                    assert (reading.upto, reading.state_hash()) == told[0][:2]
                    shown = await prove(copy, reading, b"k0", b"all")
                    assert verify_state(shown.encode(), KV, STREAM, b"k0", b"all", pin=hub_id).state_hash == told[0][2]
                    assert (await compare(copy, snapshot)).at == told[0][0]

    at_a_hub(place, work, profile=PROFILE, clock=clock)


@pytest.mark.parametrize("skew", [0, MINUTE])
def test_a_watch_continues_into_the_next_epoch(place: Path, skew: int) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        await asyncio.to_thread(hub.register, naming.stream_id(STREAM))
        async with people.writer() as writer, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            await say(writer, Write(b"k", 0, b"1"))
            coming = asyncio.create_task(few(watch(view, after=At(FIRST, 0)), 2))
            clock.now += MINUTE
            await writer.status()
            await reader.status()
            await say(writer, Write(b"k", 0, b"2"))
            first, second = await coming
            assert (first.entry.at, second.entry.at) == (At(FIRST, 1), At(FIRST + 1, 1))
            (outcome,) = second.outcomes
            assert isinstance(outcome, Applied)
            assert (outcome.before.value, outcome.after.value) == (b"1", b"2")

    at_a_hub(place, work, profile=PROFILE, clock=clock, limits=Limits(max_epoch_skew_sec=skew))


def test_a_watch_from_the_end_yields_no_earlier_entries(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        await asyncio.to_thread(hub.register, naming.stream_id(STREAM))
        async with people.writer() as writer, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            await say(writer, Write(b"k", 0, b"1"), Write(b"k", 0, b"2"))
            await view.sync()
            assert kept(view) is None  # type: ignore[arg-type]  # of this epoch something may still be preceded
            listening = watch(view)
            coming = asyncio.create_task(few(listening, 1))
            for _ in range(50):
                await reader.status()
            await say(writer, Write(b"k", 0, b"3"))
            (seen,) = await coming
            assert seen.entry.at == At(FIRST, 3)
            (outcome,) = seen.outcomes
            assert isinstance(outcome, Applied)
            assert outcome.before.value == b"2"

    at_a_hub(place, work, profile=PROFILE, clock=clock)


def test_a_late_entry_has_the_outcome_of_its_own_place_and_affects_later_ones(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        await asyncio.to_thread(hub.register, naming.stream_id(STREAM))
        async with people.writer() as slow, people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            await say(slow, Write(b"k", 0, b"1"))
            coming = watch(view, after=At(FIRST, 0))
            (first,) = [await anext(coming)]
            clock.now += MINUTE
            await reader.status()
            await say(reader, Write(b"k", 0, b"3"))
            second = await anext(coming)
            await say(slow, Write(b"k", 0, b"2"))
            late = await anext(coming)
            await say(reader, Write(b"k", 0, b"4"))
            last = await anext(coming)
            await coming.aclose()
            places = [seen.entry.at for seen in (first, second, late, last)]
            assert places == [At(FIRST, 1), At(FIRST + 1, 1), At(FIRST, 2), At(FIRST + 1, 2)]
            met = [outcome for seen in (late, last) for outcome in seen.outcomes if isinstance(outcome, Applied)]
            assert [(one.before.value, one.after.value) for one in met] == [(b"1", b"2"), (b"3", b"4")]

    at_a_hub(place, work, profile=PROFILE, clock=clock)
