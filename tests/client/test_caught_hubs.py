"""A hub that was proven to contradict itself is rejected by every process of the client until the user starts over."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.client.hostile import START, HostileHub
from tests.client.pair import NOW, STREAM, Pair, bodies, pair, read_all, send_all
from tests.client.test_hostile_sending import (
    Arrange,
    _duplicate_seq,
    _earlier_time,
    _on_receipts,
    _root,
    _seq_gap,
    _taken_seq,
)
from veen.client import evidence
from veen.client.client import Client
from veen.client.contradiction import Caught, Contradiction, Lie
from veen.client.portable import export_identity, import_identity
from veen.client.trust import Pin
from veen.core import Receipt, SigningKey
from veen.core import hub_identity as identities

Then = Callable[[HostileHub, Pair], Awaitable[None]]
ONCE: list[tuple[str, Arrange, Lie]] = [
    ("a root of nothing", _on_receipts(_root), Lie.ROOT),
    ("numbers left out", _on_receipts(_seq_gap), Lie.SEQ_GAP),
    ("one number for two messages", _on_receipts(_duplicate_seq), Lie.DUPLICATE_SEQ),
    ("a number that is taken", _on_receipts(_taken_seq), Lie.DUPLICATE_SEQ),
    ("a time that goes back", _on_receipts(_earlier_time), Lie.TIME),
]


def _with_history(place: Path, then: Then) -> None:
    """Five entries, which the writer knows and the reader does not."""

    async def work() -> None:
        with pair(place) as people:
            async with HostileHub() as hub:
                people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
                async with people.writer() as writer:
                    await send_all(writer, *(b"%d" % number for number in range(5)))
                await then(hub, people)

    asyncio.run(work())


async def _catch(hub: HostileHub, people: Pair, arrange: Arrange) -> Contradiction:
    """Let the hub lie once to the writer, and be honest afterwards."""
    hub.lying = True
    arrange(hub)
    async with people.writer() as writer:
        with pytest.raises(Contradiction) as caught:
            await send_all(writer, b"a", b"b", b"c")
    hub.lying = False
    return caught.value


@pytest.mark.parametrize(("arrange", "lie"), [case[1:] for case in ONCE], ids=[case[0] for case in ONCE])
def test_a_lie_told_once_stays_with_the_hub_until_the_client_starts_over(
    place: Path, arrange: Arrange, lie: Lie
) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        first = await _catch(hub, people, arrange)
        before = len(hub.submitted)
        for _ in range(2):
            with pytest.raises(Caught) as caught:
                async with people.writer():
                    pytest.fail("a caught hub is met as if nothing had happened")
            assert (caught.value.lie, caught.value.evidence) == (lie, first.evidence)
            assert str(caught.value).startswith("this hub contradicted itself on 20")
        assert len(hub.submitted) == before
        async with people.writer(allow_caught=True) as writer:
            await writer.forget(STREAM)
            await writer.resync(STREAM)
        async with people.writer() as writer:
            await send_all(writer, b"d")
        assert first.evidence is not None
        assert evidence.verify(first.evidence.read_bytes(), hub.identity.hub_id).contradictions

    _with_history(place, then)


def test_the_client_that_caught_the_hub_accepts_nothing_more(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            hub.lying = True
            _on_receipts(_root)(hub)
            with pytest.raises(Contradiction):
                await send_all(writer, b"a")
            hub.lying = False
            before = len(hub.submitted)
            with pytest.raises(Contradiction):
                await writer.send(STREAM, b"b")
            for work in (writer.resync(STREAM), writer.receipt(STREAM, 2), read_all(writer)):
                with pytest.raises(Caught):
                    await work
            assert len(hub.submitted) == before

    _with_history(place, then)


def test_another_process_of_the_client_stops_following_a_caught_hub(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as running:
            known = running.follower(STREAM).tree.size
            await _catch(hub, people, _on_receipts(_root))
            with pytest.raises(Caught):
                await running.resync(STREAM)
            assert running.follower(STREAM).tree.size == known

    _with_history(place, then)


def test_an_unproven_contradiction_does_not_outlast_the_lie(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        log = hub.log(hub.label(STREAM))
        hub.logs[log.label] = log.cut(2)
        async with people.writer() as writer:
            with pytest.raises(Contradiction) as caught:
                await writer.resync(STREAM)
        assert (caught.value.lie, caught.value.evidence) == (Lie.TRUNCATED_STREAM, None)
        hub.logs[log.label] = log
        async with people.writer() as writer:
            await send_all(writer, b"a")

    _with_history(place, then)


# Times.


def test_a_time_far_ahead_is_caught_by_the_next_entry_in_another_process(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        hub.hub_ts = 1 << 62
        async with people.writer() as writer:
            await send_all(writer, b"ahead")
        hub.hub_ts = START + 1
        async with people.writer() as writer:
            with pytest.raises(Contradiction, match=f"hub_ts goes back from {1 << 62} to {START + 1}") as caught:
                await send_all(writer, b"back")
        assert caught.value.lie is Lie.TIME
        assert caught.value.evidence is not None
        with pytest.raises(Caught):
            async with people.writer():
                pytest.fail("a caught hub is met as if nothing had happened")

    _with_history(place, then)


async def _read_on(reader: Client) -> None:
    await read_all(reader, from_seq=6)


async def _skip(reader: Client) -> None:
    await reader.follower(STREAM).follow([await reader.follower(STREAM).receipt(8)])


async def _look(reader: Client) -> None:
    await reader.receipt(STREAM, 8)


@pytest.mark.parametrize("work", [_read_on, _skip, _look])
def test_times_are_compared_with_the_stored_state(place: Path, work: Callable[[Client], Awaitable[None]]) -> None:
    """The reader knows entry 5, and skips entries 6 and 7 or reads them."""

    async def then(hub: HostileHub, people: Pair) -> None:
        async with people.reader() as reader:
            await read_all(reader)
        log = hub.log(hub.label(STREAM))
        for _ in range(3):
            log.append(hub.key, hub.forged(log.label), START - 1)
        async with people.reader() as reader:
            with pytest.raises(Contradiction) as caught:
                await work(reader)
        assert caught.value.lie is Lie.TIME
        assert caught.value.proven

    _with_history(place, then)


def test_an_earlier_entry_with_a_later_time_is_caught(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        async with people.reader() as reader:
            await read_all(reader)
        hub.lying = True
        hub.on_receipt = lambda honest: hub.signed(honest, hub_ts=START + 1)
        async with people.reader() as reader:
            with pytest.raises(Contradiction) as caught:
                await reader.receipt(STREAM, 3)
        assert caught.value.lie is Lie.TIME
        assert caught.value.proven

    _with_history(place, then)


# A client that has not read the latest entries.


@pytest.mark.parametrize("again", [False, True], ids=["told once", "told again"])
def test_a_wrong_root_is_proven_to_a_client_that_is_behind(place: Path, again: bool) -> None:
    """The receipt is not the next one, so the client requests the signed tree before it from the hub."""

    async def then(hub: HostileHub, people: Pair) -> None:
        log = hub.log(hub.label(STREAM))
        for _ in range(3):
            log.append(hub.key, hub.forged(log.label), START)
        hub.lying = True
        wrong: list[Receipt] = []

        def lie(said: list[Receipt]) -> list[Receipt]:
            wrong[:] = [hub.signed(one, mmr_root=bytes(32)) for one in said]
            return wrong

        hub.on_receipts = lambda messages, said: lie(said)
        hub.on_receipt = lambda honest: wrong[0] if again and honest.stream_seq == 9 else honest
        async with people.writer() as writer:
            with pytest.raises(Contradiction) as caught:
                await send_all(writer, b"a")
        assert caught.value.lie is (Lie.ROOT if again else Lie.FORKED_HISTORY)
        assert caught.value.proven
        hub.lying = False
        with pytest.raises(Caught):
            async with people.writer():
                pytest.fail("a caught hub is met as if nothing had happened")

    _with_history(place, then)


def test_a_checkpoint_with_a_wrong_root_is_proven_to_a_client_that_is_behind(place: Path) -> None:
    """The checkpoint is of a longer log than the client knows. The receipt at its end has another root."""

    async def then(hub: HostileHub, people: Pair) -> None:
        log = hub.log(hub.label(STREAM))
        for _ in range(3):
            log.append(hub.key, hub.forged(log.label), START)
        hub.lying = True
        hub.on_checkpoint = lambda honest: hub.checkpoint_of(log, mmr_root=bytes(32))
        async with people.writer() as writer:
            with pytest.raises(Contradiction) as caught:
                await writer.checkpoint(STREAM)
        assert caught.value.lie is Lie.FORKED_HISTORY
        assert caught.value.proven

    _with_history(place, then)


@pytest.mark.parametrize("knows_all", [True, False])
def test_a_reader_shows_a_hub_that_went_back_what_it_lost(place: Path, knows_all: bool) -> None:
    """The hub stops to sign on the label then, so that no place gets a second receipt."""

    async def then(hub: HostileHub, people: Pair) -> None:
        log = hub.log(hub.label(STREAM))
        async with people.reader() as reader:
            if knows_all:
                await read_all(reader)
            else:
                await reader.follower(STREAM).follow([await reader.follower(STREAM).receipt(5)])
        hub.logs[log.label] = log.cut(3)
        async with people.reader() as reader:
            with pytest.raises(Contradiction) as caught:
                await read_all(reader)
        assert caught.value.lie is Lie.TRUNCATED_STREAM
        assert "/tooling/receipt-check" in hub.asked

    _with_history(place, then)


# The hub's keys.


def test_two_histories_of_the_hubs_keys_are_proven_and_stay_with_the_hub(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        first, key = hub.identity, hub.key

        def rotated(at: int) -> None:
            hub.key = SigningKey.generate()
            hub.identity = identities.rotate(first, key, hub.key, START + at)

        rotated(10)
        honest = hub.identity, hub.key
        async with people.reader() as reader:
            await reader.status()
        rotated(20)
        with pytest.raises(Contradiction) as caught:
            async with people.reader():
                pytest.fail("another history of the keys was accepted")
        assert caught.value.lie is Lie.WRONG_KEY
        assert caught.value.evidence is not None
        assert evidence.verify(caught.value.evidence.read_bytes(), first.hub_id).contradictions
        hub.identity, hub.key = honest
        with pytest.raises(Caught):
            async with people.reader():
                pytest.fail("a caught hub is met as if nothing had happened")

    _with_history(place, then)


# A client that moves to another directory.


def test_proven_contradictions_are_exported_with_the_client(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        first = await _catch(hub, people, _on_receipts(_root))
        export_identity(people.writer_dir, place / "set", NOW)
        with import_identity(place / "set", place / "moved", None, NOW) as moved:
            with pytest.raises(Caught) as caught:
                async with Client(people.url, moved):
                    pytest.fail("a caught hub is met as if nothing had happened")
            there = caught.value.evidence
            assert there is not None
            assert there.parent == moved.evidence
            assert first.evidence is not None
            assert there.read_bytes() == first.evidence.read_bytes()

    _with_history(place, then)


def test_a_hub_that_was_never_caught_is_accepted(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair) -> None:
        hub.hub_ts += 7
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, b"a", b"b")
            assert bodies(await read_all(reader))[-2:] == [b"a", b"b"]
            assert writer.session.contradictions() == reader.session.contradictions() == ()

    _with_history(place, then)
