"""Replay: by range and by time, in order, with proofs; from a hub and from a data directory alike."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.client import Clock
from tests.recorder.recorder_fixture import LOGIN, WEB, RecorderSetup, recorder_setup
from tests.recorder.test_checkpoints import ship
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import proof
from veen.recorder import ReplayedEvent, Replayer, ReplaySpan
from veen.state import DirectorySource, EntrySource, HubSource
from veen.state.entry_source import NoEntry

START = 1_800_000_000
COUNT = 37


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecorderSetup]:
    """37 events; hub time advances by a second after every third."""
    clock = Clock(START)
    with recorder_setup(tmp_path_factory.mktemp("replay"), clock=clock) as made:
        for number in range(COUNT):
            clock.now = START + number // 3
            ship(made, number)
        yield made


def spans(recorded: RecorderSetup, start: int, end: int) -> list[ReplaySpan]:
    return recorded.does("admin", lambda client: Replayer(HubSource(client), WEB).window(start, end))


async def replayed(source: EntrySource, span: ReplaySpan) -> list[ReplayedEvent]:
    return [one async for one in Replayer(source, WEB).replay(span)]


def numbers(entries: list[ReplayedEvent]) -> list[object]:
    return [one.event.value()["n"] for one in entries if one.event]  # type: ignore[call-overload, index]


@pytest.mark.parametrize("first", [1, 2, 8, COUNT])
@pytest.mark.parametrize("last", [1, 7, 8, COUNT - 1, COUNT])
def test_i1_a_range_includes_both_ends_and_all_between_in_order(recorded: RecorderSetup, first: int, last: int) -> None:
    if last < first:
        with pytest.raises(ValueError, match="not a range"):
            recorded.does("admin", lambda client: replayed(HubSource(client), ReplaySpan(0, first, last)))
        return
    found = recorded.does("admin", lambda client: replayed(HubSource(client), ReplaySpan(0, first, last)))
    assert numbers(found) == list(range(first - 1, last))
    for one in found:
        proof.verify_in_receipt(one.proof, one.receipt)
    with ClientDir.open(recorded.root / "admin") as folder:
        assert asyncio.run(replayed(DirectorySource(recorded.data_dir, folder), ReplaySpan(0, first, last))) == found


@pytest.mark.parametrize("start", [0, START - 1, START, START + 1, START + 12, START + 13])
@pytest.mark.parametrize("length", [0, 1, 5, 10**9])
def test_a_window_includes_both_seconds_and_all_between(recorded: RecorderSetup, start: int, length: int) -> None:
    found = spans(recorded, start, start + length)
    wanted = [number for number in range(COUNT) if start <= START + number // 3 <= start + length]
    if not wanted:
        assert found == []
    else:
        assert found == [ReplaySpan(0, wanted[0] + 1, wanted[-1] + 1)]


def test_a_window_is_found_by_binary_search(recorded: RecorderSetup) -> None:
    async def work(client: Client) -> int:
        asked = 0
        source = HubSource(client)
        receipt = source.receipt

        async def counted(*given: object) -> object:
            nonlocal asked
            asked += 1
            return await receipt(*given)  # type: ignore[arg-type]

        source.receipt = counted  # type: ignore[method-assign, assignment]
        await Replayer(source, WEB).window(START + 3, START + 5)
        return asked

    assert recorded.does("admin", work) <= 4 * math.ceil(math.log2(COUNT) + 1)


def test_a_window_that_ends_before_it_begins_is_rejected(recorded: RecorderSetup) -> None:
    with pytest.raises(ValueError, match="before it begins"):
        spans(recorded, 5, 4)


@pytest.mark.parametrize(
    "span", [ReplaySpan(0, 1, COUNT + 1), ReplaySpan(0, COUNT + 1, COUNT + 1), ReplaySpan(0, COUNT + 5, COUNT + 9)]
)
def test_a_range_beyond_the_log_is_reported(recorded: RecorderSetup, span: ReplaySpan) -> None:
    with pytest.raises(NoEntry):
        recorded.does("admin", lambda client: replayed(HubSource(client), span))
    with ClientDir.open(recorded.root / "admin") as folder, pytest.raises(NoEntry):
        asyncio.run(replayed(DirectorySource(recorded.data_dir, folder), span))


def test_the_end_of_a_stream_is_found_also_if_it_is_empty(recorded: RecorderSetup) -> None:
    for stream, last in ((WEB, COUNT), (LOGIN, 0)):

        async def work(client: Client, stream: str = stream) -> int:
            return await Replayer(HubSource(client), stream).last_seq(0)

        assert recorded.does("admin", work) == last
        with ClientDir.open(recorded.root / "admin") as folder:
            source = DirectorySource(recorded.data_dir, folder)
            assert asyncio.run(Replayer(source, stream).last_seq(0)) == last


def test_an_entry_that_is_not_an_event_has_a_flaw(place: Path) -> None:
    with recorder_setup(place) as recorder:
        recorder.does("shop", lambda client: client.send(WEB, b"not an event"))
        (one,) = recorder.entries(WEB)
    assert (one.event, one.flaw) == (None, "it is not a recorder event")
