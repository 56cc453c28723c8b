"""Lost answers: a message is in the log once, whatever is lost, and its sender learns its place."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import QUICK, STREAM, Pair, bodies, pair, read_all, send_all
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.sender import Draft, Undecided
from veen.client.trust import Pin
from veen.core import Msg, Profile, Refused, Unavailable
from veen.core.admission import BY_DETAIL

SUBMITS = ("/v1/submit", "/tooling/submit-batch")


def losing(count: int, paths: tuple[str, ...] = SUBMITS) -> Callable[[str], bool]:
    """Loses the answers to the first `count` requests to these paths."""
    left = [count]

    def mute(path: str) -> bool:
        left[0] -= path in paths
        return path in paths and left[0] >= 0

    return mute


def meet(people: Pair, hub: HostileHub) -> None:
    people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)


@pytest.mark.parametrize("count", [1, 5])
def test_after_a_lost_reply_the_receipt_is_fetched(place: Path, count: int) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                hub.mute = losing(1)
                sent = await send_all(writer, *(b"%d" % number for number in range(count)))
                assert [one.stream_seq for one in sent] == list(range(1, count + 1))
                assert "/v1/receipt" in hub.asked
                assert len(hub.submitted) == 2 * count
                assert len(set(hub.submitted)) == count
            async with people.reader() as reader:
                assert bodies(await read_all(reader)) == [b"%d" % number for number in range(count)]

    with pair(place) as people:
        asyncio.run(run())


def test_the_receipt_that_a_duplicate_names_is_verified_too(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                await writer.send(STREAM, b"1")
                hub.mute, hub.lying = losing(1), True
                hub.on_receipt = lambda found: hub.log(found.label).entries[0][1]
                with pytest.raises(Contradiction) as caught:
                    await writer.send(STREAM, b"2")
                assert caught.value.lie is Lie.REPLAYED_RECEIPT

    with pair(place) as people:
        asyncio.run(run())


def test_a_duplicate_that_points_at_another_message_is_caught(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                await writer.send(STREAM, b"1")
                hub.lying = True
                hub.on_submit = lambda message: BY_DETAIL["DUPLICATE"].refused("it was accepted", stream_seq=1)
                with pytest.raises(Contradiction) as caught:
                    await writer.send(STREAM, b"2")
                assert caught.value.lie is Lie.REPLAYED_RECEIPT

    with pair(place) as people:
        asyncio.run(run())


def test_a_message_without_an_answer_stays_in_the_outbox_and_is_sent_first(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                hub.mute = losing(QUICK.attempts)
                with pytest.raises(Undecided) as caught:
                    await writer.send(STREAM, b"1")
                assert caught.value.msg_id == Msg.decode(hub.submitted[0]).leaf_hash()
                assert people.writer_dir.outbox.places() == ((writer.hub_id, writer.label(STREAM)),)
                sent = await writer.send(STREAM, b"2")
                assert sent.stream_seq == 2
                assert people.writer_dir.outbox.places() == ()
            async with people.reader() as reader:
                assert bodies(await read_all(reader)) == [b"1", b"2"]

    with pair(place) as people:
        asyncio.run(run())


def test_a_message_whose_epoch_ends_without_an_answer_is_placed_in_the_next(place: Path) -> None:
    """It stays first in the outbox, but its place is gone by then."""

    async def run() -> None:
        async with HostileHub(Profile(epoch_sec=60)) as hub:
            meet(people, hub)
            async with people.writer() as writer:
                hub.lying, hub.on_submit = True, lambda message: Refused("E.UNAVAILABLE", "not now")
                with pytest.raises(Undecided):
                    await writer.send(STREAM, b"1")
                hub.hub_ts += 600
                now = hub.label(STREAM, hub.profile.epoch(hub.hub_ts))
                hub.on_submit = lambda message: BY_DETAIL["EPOCH"].refused("past") if message.label != now else None
                assert (await writer.send(STREAM, b"2")).stream_seq == 2
                assert people.writer_dir.outbox.places() == ()
            async with people.reader() as reader:
                assert bodies(await read_all(reader)) == [b"1", b"2"]

    with pair(place) as people:
        asyncio.run(run())


def test_a_closed_sender_says_so(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                sender = writer.sender(STREAM)
                await sender.put(Draft(b"1"))
            with pytest.raises(Unavailable, match="closed"):
                sender.put(Draft(b"2"))

    with pair(place) as people:
        asyncio.run(run())


@pytest.mark.parametrize("arrived", [True, False])
def test_what_a_run_left_behind_the_next_one_sends_byte_for_byte(place: Path, arrived: bool) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            hub.mute = losing(QUICK.attempts)
            hub.lying = not arrived
            hub.on_submit = lambda message: Refused("E.UNAVAILABLE", "not now")
            async with people.writer() as writer:
                with pytest.raises(Undecided):
                    await writer.send(STREAM, b"1")
            first = set(hub.submitted)
            hub.lying = False
            async with people.writer() as writer:
                (settled,) = await writer.recover()
                assert settled.outcome == hub.log(writer.label(STREAM)).entries[0][1]
                assert set(hub.submitted) == first
                assert await writer.recover() == [settled]
                assert (await writer.send(STREAM, b"2")).stream_seq == 2
            async with people.reader() as reader:
                assert bodies(await read_all(reader)) == [b"1", b"2"]

    with pair(place) as people:
        asyncio.run(run())


def test_a_rejection_after_a_lost_reply_is_checked_against_the_log(place: Path) -> None:
    """The capability expired between two attempts, the first of which was accepted."""

    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                await send_all(writer, b"1", b"2")
                hub.mute = losing(1)
                seen: list[Msg] = []

                def refuse_again(message: Msg) -> Refused | None:
                    seen.append(message)
                    return BY_DETAIL["CAP_TTL"].refused("expired") if len(seen) > 1 else None

                hub.lying, hub.on_submit = True, refuse_again
                assert (await writer.send(STREAM, b"3")).stream_seq == 3
                assert len(seen) == 2

    with pair(place) as people:
        asyncio.run(run())


def test_a_permanent_rejection_affects_no_other_message(place: Path) -> None:
    """The hub rejects one message of a batch, and with it all later messages of the same key."""

    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer, people.reader() as reader:
                hub.lying = True
                hub.on_submit = lambda message: (
                    BY_DETAIL["AUTH_REF"].refused("not this one") if message.client_seq == 3 and not refused else None
                )
                refused: list[bytes] = []
                sender = writer.sender(STREAM)
                futures = [sender.put(Draft(b"%d" % number)) for number in range(1, 6)]
                await asyncio.wait(futures)
                with pytest.raises(Refused, match="AUTH_REF"):
                    futures[2].result()
                refused.append(b"3")
                done = [future for future in futures if not future.exception()]
                assert [future.result().stream_seq for future in done] == [1, 2, 3, 4]
                entries = await read_all(reader)
                assert bodies(entries) == [b"1", b"2", b"4", b"5"]
                # No place is used for two messages: the messages after the rejected one get another key.
                assert len({entry.client_id for entry in entries}) == 2
        places: dict[tuple[bytes, int], set[bytes]] = {}
        for encoded in hub.submitted:
            message = Msg.decode(encoded)
            places.setdefault((message.client_id, message.client_seq), set()).add(encoded)
        assert {len(found) for found in places.values()} == {1}

    with pair(place) as people:
        asyncio.run(run())


def test_a_hub_without_batches_is_sent_one_by_one(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            hub.has_batches = False
            meet(people, hub)
            async with people.writer() as writer:
                sent = await send_all(writer, b"1", b"2", b"3")
                assert [one.stream_seq for one in sent] == [1, 2, 3]
            assert hub.asked.count("/tooling/submit-batch") == 1

    with pair(place) as people:
        asyncio.run(run())


def test_a_state_that_was_put_back_gets_a_new_key(place: Path) -> None:
    """Another copy of the directory has sent meanwhile: the hub has seen these client_seqs from our key."""

    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                await writer.send(STREAM, b"1")
                first = Msg.decode(hub.submitted[0]).client_id
                hub.lying = True
                hub.on_submit = lambda message: (
                    BY_DETAIL["DUPLICATE"].refused("client_seq was accepted", expected=9)
                    if message.client_id == first
                    else None
                )
                sent = await writer.send(STREAM, b"2")
                assert sent.stream_seq == 2
                assert Msg.decode(hub.submitted[-1]).client_id != first

    with pair(place) as people:
        asyncio.run(run())


def test_a_hub_that_does_not_run_is_unavailable(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
        with pytest.raises(Unavailable):
            async with people.writer():
                pass

    with pair(place) as people:
        asyncio.run(run())


@pytest.mark.parametrize("path", ["/tooling/status", "/v1/stream", "/v1/receipt"])
def test_reads_are_retried(place: Path, path: str) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            async with people.writer() as writer:
                await send_all(writer, b"1", b"2")
            hub.mute = losing(QUICK.attempts - 1, (path,))
            async with people.reader() as reader:
                assert bodies(await read_all(reader, from_seq=2)) == [b"2"]

    with pair(place) as people:
        asyncio.run(run())


def test_closing_in_the_middle_leaves_the_rest_in_the_outbox(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            meet(people, hub)
            hub.mute = losing(100)
            async with Client(hub.url, people.writer_dir, pin=people.pin) as writer:
                future = writer.sender(STREAM).put(Draft(b"1"))
                while not hub.submitted:
                    await asyncio.sleep(0)
            with pytest.raises(Undecided):
                future.result()
            hub.mute = losing(0)
            async with people.writer() as writer:
                assert (await writer.send(STREAM, b"2")).stream_seq == 2
            async with people.reader() as reader:
                assert bodies(await read_all(reader)) == [b"1", b"2"]

    with pair(place) as people:
        asyncio.run(run())
