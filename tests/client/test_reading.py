"""Reading from a real hub: ranges, proofs, following, and entries that do not open."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.client.hostile import HostileHub
from tests.client.pair import QUICK, STREAM, Pair, bodies, pair, read_all, send_all
from tests.client.test_sending import PATIENT, _start, at_a_hub, meet
from tests.hub.client import START, Clock, Hub, make_dir, own_port, running
from tests.hub.subscriber import Subscriber
from tests.selftest.broken_hub import proxied
from veen.client import ClientDir
from veen.client.blocking_client import BlockingClient
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.reader import Entry
from veen.client.sender import Draft
from veen.client.trust import Pin
from veen.core import Limits, Profile, Refused, Unavailable, naming, proof
from veen.hub.config import HTTP
from veen.storage import rotation
from veen.storage.paths import Folders


async def take(entries: AsyncGenerator[Entry, None], count: int) -> list[bytes | None]:
    """The bodies of the next `count` entries."""
    return [(await anext(entries)).body for _ in range(count)]


@asynccontextmanager
async def following(people: Pair, **options: Any) -> AsyncIterator[tuple[Client, Client, AsyncGenerator[Entry, None]]]:
    """The writer, the reader, and the entries that the reader follows."""
    async with (
        people.writer(**options) as writer,
        people.reader(**options) as reader,
        aclosing(reader.read(STREAM, follow=True)) as entries,
    ):
        yield writer, reader, entries


# Ranges.


@pytest.mark.parametrize(
    ("from_seq", "to_seq", "found"),
    [
        (1, None, range(1, 13)),
        (5, None, range(5, 13)),
        (5, 8, range(5, 9)),
        (12, 12, [12]),
        (1, 99, range(1, 13)),
        (13, None, []),
        (7, 7, [7]),
    ],
)
@pytest.mark.parametrize("known", [0, 4, 12])
def test_a_range_is_read(place: Path, from_seq: int, to_seq: int | None, found: list[int], known: int) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, *(b"%d" % number for number in range(1, 13)))
            if known:
                await read_all(reader, to_seq=known)
            entries = await read_all(reader, from_seq=from_seq, to_seq=to_seq)
            assert bodies(entries) == [b"%d" % number for number in found]
            assert [entry.stream_seq for entry in entries] == list(found)

    at_a_hub(place, work)


def test_earlier_entries_are_read_without_moving_the_tree_back(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            await send_all(writer, *(b"%d" % number for number in range(1, 9)))
        async with people.reader() as reader:
            await read_all(reader)
            size, root = reader.follower(STREAM).tree.size, reader.follower(STREAM).tree.root()
            await read_all(reader, from_seq=3, to_seq=5)
            assert (reader.follower(STREAM).tree.size, reader.follower(STREAM).tree.root()) == (size, root)
        async with people.reader() as reader:  # a new process verifies by proofs
            assert bodies(await read_all(reader, from_seq=3, to_seq=5)) == [b"3", b"4", b"5"]
            assert reader.follower(STREAM).tree.size == size

    at_a_hub(place, work)


@pytest.mark.parametrize(("from_seq", "to_seq"), [(0, None), (-1, None), (3, 2)])
def test_an_invalid_range_is_an_error(place: Path, from_seq: int, to_seq: int | None) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.reader() as reader:
            with pytest.raises(ValueError, match="range"):
                await read_all(reader, from_seq=from_seq, to_seq=to_seq)
            with pytest.raises(ValueError, match="exclude each other"):
                await read_all(reader, to_seq=5, follow=True)

    at_a_hub(place, work)


def test_an_empty_stream_has_no_entries(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.reader() as reader:
            assert await read_all(reader) == []
            with pytest.raises(Refused) as caught:
                await read_all(reader, from_seq=5)
            assert caught.value.code == "E.NOT_FOUND"
            with pytest.raises(Unavailable, match="empty"):
                await reader.checkpoint(STREAM)

    at_a_hub(place, work)


def test_each_entry_comes_with_a_proof_that_holds(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, *(b"%d" % number for number in range(20)))
            entries = await read_all(reader, with_proof=True)
            for entry in entries:
                assert entry.proof
                proof.verify_in_receipt(entry.proof, entry.receipt)
                assert entry.proof == await reader.follower(STREAM).proof(entry.stream_seq)
            assert [entry.proof for entry in await read_all(reader)] == [None] * 20

    at_a_hub(place, work)


def test_a_proof_is_given_at_its_own_size_and_later(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, *(b"%d" % number for number in range(20)))
            own, later = await reader.proof(STREAM, 7), await reader.proof(STREAM, 7, 19)
            assert own.head == own.receipt == await reader.receipt(STREAM, 7)
            assert later.head == await reader.receipt(STREAM, 19)
            assert own.mmr_proof != later.mmr_proof

    at_a_hub(place, work)


# Entries that do not open.


def test_without_a_reader_key_entries_are_returned_unopened(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with people.writer() as writer, Client(people.url, folder, pin=people.pin) as auditor:
                await writer.send(STREAM, b"1")
                (entry,) = await read_all(auditor)
        assert (entry.body, entry.header, entry.schema) == (None, None, None)
        assert entry.fault == "no reader key for this stream"

    at_a_hub(place, work)


def test_a_message_that_does_not_open_does_not_stop_readers(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with people.writer() as writer, people.reader() as reader:
                await writer.send(STREAM, b"1")
                log = hub.log(hub.label(STREAM))
                log.append(hub.key, hub.forged(log.label), hub.hub_ts)
                await writer.send(STREAM, b"3")
                entries = await read_all(reader)
        assert bodies(entries) == [b"1", None, b"3"]
        assert [entry.fault is None for entry in entries] == [True, False, True]
        assert "decryption failed" in str(entries[1].fault)

    with pair(place) as people:
        asyncio.run(run())


def test_entries_stay_readable_after_limits_are_lowered(place: Path) -> None:
    """Lower limits apply to new messages only."""

    async def run() -> None:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with people.writer() as writer:
                await writer.send(STREAM, bytes(5000))
            hub.limits = Limits(max_msg_bytes=1024, max_body_bytes=512)
            async with people.reader() as reader:
                assert bodies(await read_all(reader)) == [bytes(5000)]

    with pair(place) as people:
        asyncio.run(run())


# Following.


def test_new_entries_come_as_they_are_committed(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, b"1", b"2")
            async with aclosing(reader.read(STREAM, follow=True)) as entries:
                assert await take(entries, 2) == [b"1", b"2"]
                await writer.send(STREAM, b"3")
                assert await take(entries, 1) == [b"3"]
                await send_all(writer, *(b"%d" % number for number in range(4, 300)))
                assert await take(entries, 296) == [b"%d" % number for number in range(4, 300)]
                assert reader.follower(STREAM).tree.size >= 299

    at_a_hub(place, work)


def test_a_follower_reads_pages_while_the_hub_has_enough_subscribers(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        with ExitStack() as stack:
            for _ in range(24):
                stack.enter_context(Subscriber(hub, f"label={hub.label('another').hex()}&from=1"))
            async with following(people, retry_policy=replace(QUICK, attempts=1)) as (writer, _, entries):
                for number in range(9):
                    await writer.send(STREAM, b"%d" % number)
                    assert await take(entries, 1) == [b"%d" % number]

    at_a_hub(place, work, http=replace(HTTP, max_connections=32))


def test_a_follower_asks_again_for_a_subscription_only_when_a_full_hub_wants_it(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        with ExitStack() as stack:
            for _ in range(24):
                stack.enter_context(Subscriber(hub, f"label={hub.label('another').hex()}&from=1"))
            proxy, rejections = stack.enter_context(proxied(hub)), list[bytes]()

            def later(data: bytes) -> bytes:
                rejections.append(data)
                assert b"retry-after: 10\r\n" in data
                return data.replace(b"retry-after: 10", b"retry-after: 3600")

            proxy.alter, people.url = later, proxy.url
            async with following(people, retry_policy=replace(QUICK, attempts=1)) as (writer, _, entries):
                for number in range(9):
                    await writer.send(STREAM, b"%d" % number)
                    assert await take(entries, 1) == [b"%d" % number]
        assert len(rejections) == 1

    at_a_hub(place, work, http=replace(HTTP, max_connections=32))


def test_a_follower_may_start_before_the_first_entry(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with following(people) as (writer, _, entries):
            first = asyncio.create_task(take(entries, 1))
            await writer.send(STREAM, b"1")
            assert await first == [b"1"]

    at_a_hub(place, work)


def test_a_writer_may_follow_what_it_writes(place: Path) -> None:
    """Both advance the same tree: the receipt of a send may arrive after the entry was read."""

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, aclosing(writer.read(STREAM, follow=True)) as entries:
            reading = asyncio.create_task(take(entries, 200))
            for number in range(200):
                assert (await writer.send(STREAM, b"%d" % number)).stream_seq == number + 1
            assert await reading == [b"%d" % number for number in range(200)]

    at_a_hub(place, work)


def test_a_follower_outlives_the_hub(place: Path) -> None:
    """The hub restarts with a new key while a reader follows."""
    clock, data_dir = Clock(), make_dir(place)

    async def work() -> None:
        hub = await asyncio.to_thread(_start, data_dir, clock, port)
        meet(people, hub)
        async with following(people, retry_policy=PATIENT) as (writer, _, entries):
            await writer.send(STREAM, b"1")
            assert await take(entries, 1) == [b"1"]
            await asyncio.to_thread(hub.stop)
            rotation.rotate_key(Disk(), Folders(data_dir), START + 5, 0)
            clock.now = START + 10
            again = await asyncio.to_thread(_start, data_dir, clock, port)
            try:
                await writer.send(STREAM, b"2")
                assert await take(entries, 1) == [b"2"]
            finally:
                await asyncio.to_thread(again.stop)

    with pair(place) as people, own_port() as port:
        asyncio.run(work())


def test_a_hub_that_stays_away_ends_a_follower(place: Path) -> None:
    clock, data_dir = Clock(), make_dir(place)

    async def work() -> None:
        hub = await asyncio.to_thread(_start, data_dir, clock, 0)
        meet(people, hub)
        async with people.reader() as reader, aclosing(reader.read(STREAM, follow=True)) as entries:
            waiting = asyncio.create_task(take(entries, 1))
            await asyncio.sleep(0)
            await asyncio.to_thread(hub.stop)
            with pytest.raises(Unavailable):
                await waiting

    with pair(place) as people:
        asyncio.run(work())


def test_a_hub_without_subscriptions_is_asked_again_and_again(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with following(people) as (writer, _, entries):
                await writer.send(STREAM, b"1")
                assert await take(entries, 1) == [b"1"]
                await writer.send(STREAM, b"2")
                assert await take(entries, 1) == [b"2"]
                hub.fork(hub.label(STREAM), 0)
                with pytest.raises(Contradiction) as caught:
                    await take(entries, 1)
                assert caught.value.lie is Lie.FORKED_HISTORY

    with pair(place) as people:
        asyncio.run(run())


def test_a_follower_goes_on_into_the_next_epoch(place: Path) -> None:
    clock, profile = Clock(), Profile(epoch_sec=60)

    async def work() -> None:
        async with following(people) as (writer, reader, entries):
            await writer.send(STREAM, b"1")
            assert await take(entries, 1) == [b"1"]
            clock.now = START + 60
            await writer.status()
            sent = await writer.send(STREAM, b"2")
            assert sent.epoch == profile.epoch(START) + 1
            reading = asyncio.create_task(take(entries, 1))
            await asyncio.sleep(0)
            await reader.status()  # the reader learns the new time from the status
            assert await reading == [b"2"]

    with pair(place) as people, running(make_dir(place, profile), clock=clock) as hub:
        meet(people, hub)
        hub.register(naming.stream_id(STREAM))
        asyncio.run(work())


# The blocking client.


def test_the_blocking_client_does_the_same(place: Path) -> None:
    with pair(place) as people, running(make_dir(place)) as hub:
        meet(people, hub)
        with (
            BlockingClient(people.url, people.writer_dir, pin=people.pin, retry_policy=QUICK) as writer,
            BlockingClient(people.url, people.reader_dir, pin=people.pin, retry_policy=QUICK) as reader,
        ):
            assert writer.status().admission == "open"
            first = writer.send(STREAM, b"0")
            sent = writer.send_many(STREAM, (Draft(b"%d" % number) for number in range(1, 600)))
            assert [one.stream_seq for one in [first, *sent]] == list(range(1, 601))
            assert bodies(list(reader.read(STREAM))) == [b"%d" % number for number in range(600)]
            following = reader.read(STREAM, from_seq=600, follow=True)
            assert next(following).body == b"599"
            writer.send(STREAM, b"600")
            assert next(following).body == b"600"
            following.close()
            assert reader.receipt(STREAM, 3).stream_seq == 3
            assert reader.proof(STREAM, 3, 9).receipt.stream_seq == 3
            assert reader.checkpoint(STREAM).upto_seq == 601
            assert reader.resync(STREAM).size == 601
            assert reader.evidence(STREAM, [2], claim="x").claim == "x"
            assert writer.recover() == []
            with pytest.raises(Refused):
                reader.receipt(STREAM, 999)
            reader.forget(STREAM)
            assert reader.client.follower(STREAM).tree.size == 0


def test_a_blocking_client_that_cannot_start_leaves_no_thread(place: Path) -> None:
    before = set(threading.enumerate())  # some of them may be ending
    with pair(place) as people:
        client = BlockingClient("http://127.0.0.1:1", people.writer_dir, pin=Pin(key=bytes(32)), retry_policy=QUICK)
        with pytest.raises(Unavailable), client:
            pass
    assert set(threading.enumerate()) <= before
