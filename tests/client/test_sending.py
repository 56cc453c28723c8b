"""Sending to a real hub: order, batches, several writers, limits, capabilities, key rotation and epochs."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.client.pair import NOW, QUICK, STREAM, Pair, bodies, pair, read_all, send_all
from tests.hub.client import FAR, ISSUER, START, Clock, Hub, make_dir, own_port, presented, running
from veen.client import Busy, ClientDir, KeyBounds
from veen.client.client import Client
from veen.client.sender import Draft, Undecided
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin
from veen.core import CapPresentation, Limits, Profile, Rate, Refused, Unavailable, cap_token, naming
from veen.hub.admission_rules import Admission
from veen.storage import rotation
from veen.storage.paths import Folders

PATIENT = RetryPolicy(attempts=1_000, first_wait_s=0.01, longest_wait_s=0.2)


def meet(people: Pair, hub: Hub) -> Pair:
    """Configure both clients for the hub."""
    people.url = f"http://127.0.0.1:{hub.port}"
    people.pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
    return people


def at_a_hub(place: Path, work: Callable[[Hub, Pair], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run `work` with a hub, which by default admits anyone."""
    now = int(settings["clock"]()) if "clock" in settings else NOW
    with pair(place, now=now) as people, running(make_dir(place, now=now), **settings) as hub:
        asyncio.run(work(hub, meet(people, hub)))


# Order.


def test_what_one_sends_the_other_reads(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            first = await writer.send(STREAM, b"hello", schema="greeting.v1")
            second = await writer.send(STREAM, b"again", parent_id=first.msg_id, expires_at=77)
            entries = await read_all(reader)
        assert bodies(entries) == [b"hello", b"again"]
        assert [entry.msg_id for entry in entries] == [first.msg_id, second.msg_id]
        assert entries[0].schema == naming.schema_id("greeting.v1")
        header = entries[1].header
        assert header
        assert (header.parent_id, header.expires_at, header.cap_ref) == (first.msg_id, 77, None)
        assert entries[1].hub_ts == START

    at_a_hub(place, work)


def test_messages_are_in_the_order_in_which_they_were_put(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        sent = [b"%d" % number for number in range(700)]
        async with people.writer() as writer, people.reader() as reader:
            receipts = await send_all(writer, *sent)
            assert [one.stream_seq for one in receipts] == list(range(1, 701))
            entries = await read_all(reader)
        assert bodies(entries) == sent
        assert [entry.msg.client_seq for entry in entries] == list(range(1, 701))
        assert all(entry.msg.prev_ack < entry.stream_seq for entry in entries)
        assert entries[-1].msg.prev_ack > 0

    at_a_hub(place, work)


def test_success_means_that_receipt_and_tree_are_on_disk(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            sent = await writer.send(STREAM, b"1")
            state = people.writer_dir.state
            assert state.receipt(writer.hub_id, sent.label, 1) == sent.receipt.encode()
            kept = state.label(writer.hub_id, sent.label)
            assert kept
            assert (kept.size, kept.root, kept.head) == (1, sent.receipt.mmr_root, sent.receipt.encode())
            assert people.writer_dir.outbox.places() == ()

    at_a_hub(place, work)


@pytest.mark.parametrize("count", [40])
def test_several_writers_share_a_label(place: Path, count: int) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        people.reader_dir.stream_keys.public(naming.stream_id(STREAM))

        async def write(client: Client, name: bytes) -> None:
            for number in range(count):
                await client.send(STREAM, b"%s %d" % (name, number))
                if number % 10 == 9:
                    await send_all(client, *(b"%s batch %d %d" % (name, number, part) for part in range(5)))

        async with people.writer() as one, people.reader() as other:
            await asyncio.gather(write(one, b"a"), write(other, b"b"))
            total = 2 * (count + count // 10 * 5)
            assert (await one.resync(STREAM)).size == total
            assert (await other.resync(STREAM)).size == total
            assert one.follower(STREAM).tree.root() == other.follower(STREAM).tree.root()
            entries = await read_all(other)
        found = bodies(entries)
        assert len(found) == len(set(found)) == total
        for name in (b"a", b"b"):
            mine = [body for body in found if body and body.startswith(name + b" ") and b"batch" not in body]
            assert mine == [b"%s %d" % (name, number) for number in range(count)]

    at_a_hub(place, work)


def test_one_directory_sends_from_one_place_at_a_time(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.writer() as second:
            await writer.send(STREAM, b"1")
            with pytest.raises(Busy):
                await second.send(STREAM, b"2")
        async with people.writer() as third:
            assert (await third.send(STREAM, b"3")).stream_seq == 2

    at_a_hub(place, work)


def test_a_stream_without_a_reader_key_is_not_written(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            with pytest.raises(Unavailable, match="create or import it first"):
                await writer.send("unknown", b"1")
            assert (await writer.status()).entries == 0

    at_a_hub(place, work)


def test_client_ids_rotate_by_count_in_the_middle_of_a_batch(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.reader() as reader:
            with ClientDir.create(
                place / "rotating", None, NOW, bounds=KeyBounds(max_msgs_per_client_id_per_label=10)
            ) as folder:
                key = people.writer_dir.stream_keys.public(naming.stream_id(STREAM))
                assert key
                folder.stream_keys.add_public(STREAM, key)
                async with Client(people.url, folder, pin=people.pin, retry_policy=QUICK) as writer:
                    await send_all(writer, *(b"%d" % number for number in range(25)))
            entries = await read_all(reader)
        assert bodies(entries) == [b"%d" % number for number in range(25)]
        assert [len({entry.client_id for entry in entries[at : at + 10]}) for at in (0, 10, 20)] == [1, 1, 1]
        assert len({entry.client_id for entry in entries}) == 3
        assert [entry.msg.client_seq for entry in entries] == [*range(1, 11), *range(1, 11), *range(1, 6)]

    at_a_hub(place, work)


# Limits.


@pytest.mark.parametrize("what", ["body", "message", "attachment", "attachments"])
def test_what_the_hub_would_refuse_for_its_size_is_refused_here(place: Path, what: str) -> None:
    limits = Limits(
        max_msg_bytes=4096,
        max_body_bytes=2048,
        max_attachment_bytes=100,
        max_attachments_per_msg=2,
        max_chunk_bytes=8192,
    )
    file = place / "file"
    file.write_bytes(bytes(101 if what == "attachment" else 10))
    files = {"attachment": [file], "attachments": [file] * 3}.get(what, [])
    # The body fits, but the whole message is too long.
    limit = 4096 if what == "message" else limits.max_body_bytes
    limits = Limits(**{**_fields(limits), "max_body_bytes": limit})
    body = {"body": bytes(2048 - 15), "message": bytes(4096 - 400)}.get(what, b"")

    async def work() -> None:
        async with people.writer() as writer:
            with pytest.raises(Refused) as caught:
                await writer.send(STREAM, body, attachments=files)
            assert (caught.value.code, caught.value.detail_enum) == ("E.SIZE", "SIZE_PREFILTER")
            assert (await writer.send(STREAM, b"small")).stream_seq == 1

    with pair(place) as people, running(make_dir(place, limits=limits)) as hub:
        meet(people, hub)
        asyncio.run(work())
        assert hub.status()["entries"] == 1


def _fields(limits: Limits) -> dict[str, Any]:
    return {kind.name: getattr(limits, kind.name) for kind in Limits.LAYOUT.kinds}


def test_the_largest_body_that_fits_is_taken(place: Path) -> None:
    """The largest allowed body is accepted by the hub, so the check is not too strict."""

    async def work() -> None:
        async with people.writer() as writer:
            assert (await writer.send(STREAM, bytes(2048 - 16))).stream_seq == 1
            with pytest.raises(Refused):
                await writer.send(STREAM, bytes(2048 - 15))

    limits = Limits(max_msg_bytes=4096, max_body_bytes=2048, max_chunk_bytes=8192)
    with pair(place) as people, running(make_dir(place, limits=limits)) as hub:
        meet(people, hub)
        asyncio.run(work())


# Capabilities.


def granted(
    hub: Hub, people: Pair, ttl: int = 1000, rate: Rate | None = None, generation: int = 0, not_after: int = FAR
) -> CapPresentation:
    subject = people.writer_dir.identity.client_key(generation).public_key
    return hub.presented(cap_token.mint(ISSUER, subject, [naming.stream_id(STREAM)], ttl, rate), not_after)


def test_a_capability_is_shown_and_named_by_itself(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        cap = granted(hub, people)
        async with people.writer(caps=[cap]) as writer, people.reader() as reader:
            sent = await writer.send(STREAM, b"1")
            (entry,) = await read_all(reader)
            assert (sent.stream_seq, entry.msg.auth_ref) == (1, cap.auth_ref())
            assert entry.header
            assert entry.header.cap_ref == cap.auth_ref()
        assert people.writer_dir.caps.granted(writer.hub_id, cap.auth_ref()) == START + 1000

    at_a_hub(place, work, admission=Admission.CAPABILITY)


def test_a_capability_of_another_hub_is_not_shown(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        other = presented(granted(hub, people).token, b"\7" * 32)
        async with people.writer() as writer:
            with pytest.raises(Refused, match="for hub 0707") as caught:
                await writer.authorize(other)
            assert caught.value.detail_enum == "CAP_INVALID"
            with pytest.raises(Refused, match="for hub 0707"):
                await writer.send(STREAM, b"1")
            assert hub.status()["entries"] == 0
            await writer.authorize(granted(hub, people))
            assert (await writer.send(STREAM, b"1")).stream_seq == 1

    at_a_hub(place, work, admission=Admission.CAPABILITY)


def test_a_capability_is_not_shown_after_its_date(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        clock.now = START + 11
        late = granted(hub, people, not_after=START + 10)
        async with people.writer() as writer:
            with pytest.raises(Refused, match=f"expired at {START + 10}") as caught:
                await writer.authorize(late)
            assert caught.value.detail_enum == "CAP_TTL"
            with pytest.raises(Refused, match=f"expired at {START + 10}"):
                await writer.send(STREAM, b"1")
            assert hub.status()["entries"] == 0

    at_a_hub(place, work, admission=Admission.CAPABILITY, clock=clock)


def test_a_bare_token_is_not_shown_to_a_hub_that_requires_presentations(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        bare = granted(hub, people).token
        async with people.writer(caps=[bare]) as writer:
            with pytest.raises(Refused, match=f"veen cap issue --hub {writer.hub_id.hex()}") as caught:
                await writer.send(STREAM, b"1")
            assert caught.value.detail_enum == "CAP_INVALID"
            await writer.authorize(granted(hub, people))
            assert (await writer.send(STREAM, b"1")).stream_seq == 1

    at_a_hub(place, work, admission=Admission.CAPABILITY)


def test_a_bare_token_is_used_where_the_hub_accepts_it(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(caps=[granted(hub, people).token]) as writer:
            assert (await writer.send(STREAM, b"1")).stream_seq == 1

    at_a_hub(place, work, admission=Admission.CAPABILITY, accept_bare_tokens=True)


def test_an_authorized_capability_is_repeated_after_its_end(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        cap = granted(hub, people, not_after=START + 10)
        async with people.writer(caps=[cap]) as writer:
            first = await writer.authorize(cap)
            clock.now = START + 11
            await writer.status()
            assert await writer.authorize(cap) == first
            assert (await writer.authorize(hub.presented(cap.token))).expires_at == START + 10

    at_a_hub(place, work, admission=Admission.CAPABILITY, clock=clock)


def test_without_a_capability_nothing_is_sent(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            with pytest.raises(Refused) as caught:
                await writer.send(STREAM, b"1")
            assert caught.value.detail_enum == "CAP_MISSING"
            assert people.writer_dir.outbox.places() == ()

    at_a_hub(place, work, admission=Admission.CAPABILITY)


def test_an_expired_capability_is_not_tried(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(caps=[granted(hub, people, ttl=10)]) as writer:
            await writer.send(STREAM, b"1")
            clock.now = START + 11
            await writer.status()
            with pytest.raises(Refused) as caught:
                await writer.send(STREAM, b"2")
            assert caught.value.detail_enum == "CAP_TTL"
            assert people.writer_dir.outbox.places() == ()
            await writer.authorize(granted(hub, people, ttl=10_000))
            assert (await writer.send(STREAM, b"3")).stream_seq == 2

    at_a_hub(place, work, admission=Admission.CAPABILITY, clock=clock)


def test_a_capability_that_expires_on_the_way_is_refused_and_its_place_is_never_used_again(place: Path) -> None:
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(caps=[granted(hub, people, ttl=10)]) as writer:
            await writer.send(STREAM, b"1")
            clock.now = START + 11  # the client does not know
            with pytest.raises(Refused) as caught:
                await writer.send(STREAM, b"2")
            assert (caught.value.code, caught.value.detail_enum) == ("E.TIME", "CAP_TTL")
            assert people.writer_dir.outbox.places() == ()
            # The key is closed here. The next message uses another key, which needs its own token.
            await writer.authorize(granted(hub, people, ttl=10_000, generation=1))
            sent = await writer.send(STREAM, b"3")
        async with people.reader() as reader:
            entries = await read_all(reader)
        assert bodies(entries) == [b"1", b"3"]
        assert sent.stream_seq == 2
        assert len({entry.client_id for entry in entries}) == 2

    at_a_hub(place, work, admission=Admission.CAPABILITY, clock=clock)


def test_a_rate_limit_is_waited_for(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        cap = granted(hub, people, rate=Rate(2, 2))
        began = time.monotonic()
        async with people.writer(caps=[cap]) as writer, people.reader() as reader:
            sent = await send_all(writer, *(b"%d" % number for number in range(5)))
            assert [one.stream_seq for one in sent] == [1, 2, 3, 4, 5]
            assert bodies(await read_all(reader)) == [b"%d" % number for number in range(5)]
        assert time.monotonic() - began > 1

    at_a_hub(place, work, admission=Admission.CAPABILITY, clock=time.time)


def test_a_retry_after_above_the_limit_fails_at_once(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        cap = granted(hub, people, rate=Rate(1, 1))
        impatient = RetryPolicy(attempts=3, first_wait_s=0.001, longest_retry_after_s=0.5)
        async with people.writer(caps=[cap], retry_policy=impatient) as writer:
            await writer.send(STREAM, b"1")
            with pytest.raises(Undecided) as caught:
                await writer.send(STREAM, b"2")
            assert isinstance(caught.value.reason, Refused)
            assert (caught.value.reason.code, caught.value.reason.retry_after) == ("E.RATE", 1)
            assert people.writer_dir.outbox.places()

    at_a_hub(place, work, admission=Admission.CAPABILITY)


# Keys and epochs.


def test_a_hub_key_that_is_rotated_amid_sending_is_followed(place: Path) -> None:
    clock = Clock()
    data_dir = make_dir(place)
    with pair(place) as people, own_port() as port:
        with running(data_dir, clock=clock, port=port) as hub:
            meet(people, hub)
            first = hub.hub_pk
            people.pin = Pin.of_file(data_dir)
            asyncio.run(_send_some(people, b"1", b"2"))
        rotation.rotate_key(Disk(), Folders(data_dir), START + 5, 0)
        clock.now = START + 10
        with running(data_dir, clock=clock, port=port) as hub:
            assert hub.hub_pk != first
            asyncio.run(_send_some(people, b"3", b"4"))

            async def read() -> None:
                async with people.reader() as reader:
                    entries = await read_all(reader)
                    assert bodies(entries) == [b"1", b"2", b"3", b"4"]
                    assert len(reader.session.trust.known.identity.hub_keys) == 2
                async with people.reader(pin=None) as reader:
                    assert bodies(await read_all(reader, from_seq=3)) == [b"3", b"4"]

            asyncio.run(read())


async def _send_some(people: Pair, *sent: bytes) -> None:
    async with people.writer() as writer:
        await send_all(writer, *sent)


def test_a_key_that_a_hub_adds_while_the_client_is_connected_is_learned(place: Path) -> None:
    """The hub restarts with a new key while a client is connected."""
    clock = Clock()
    data_dir = make_dir(place)

    async def work() -> None:
        hub = await asyncio.to_thread(_start, data_dir, clock, port)
        meet(people, hub)
        async with people.writer(retry_policy=PATIENT) as writer:
            await writer.send(STREAM, b"1")
            await asyncio.to_thread(hub.stop)
            rotation.rotate_key(Disk(), Folders(data_dir), START + 5, 0)
            clock.now = START + 10
            again = await asyncio.to_thread(_start, data_dir, clock, port)
            try:
                assert (await writer.send(STREAM, b"2")).stream_seq == 2
                assert len(writer.session.trust.known.identity.hub_keys) == 2
            finally:
                await asyncio.to_thread(again.stop)

    with pair(place) as people, own_port() as port:
        asyncio.run(work())


def _start(data_dir: Path, clock: Clock, port: int) -> Hub:
    return Hub(data_dir, clock, None, {"admission": Admission.OPEN, "port": port}).start()


def test_a_hub_that_restarts_amid_sending_is_waited_for(place: Path) -> None:
    clock, data_dir = Clock(), make_dir(place)

    async def work() -> None:
        hub = await asyncio.to_thread(_start, data_dir, clock, port)
        meet(people, hub)
        async with people.writer(retry_policy=PATIENT) as writer:
            sender = writer.sender(STREAM)
            futures = [sender.put(Draft(b"%d" % number)) for number in range(1500)]
            await futures[100]
            await asyncio.to_thread(hub.stop)
            again = await asyncio.to_thread(_start, data_dir, clock, port)
            try:
                sent = await asyncio.gather(*futures)
                assert [one.stream_seq for one in sent] == list(range(1, 1501))
                async with people.reader() as reader:
                    assert bodies(await read_all(reader)) == [b"%d" % number for number in range(1500)]
            finally:
                await asyncio.to_thread(again.stop)

    with pair(place) as people, own_port() as port:
        asyncio.run(work())


def test_a_message_that_meets_the_end_of_its_epoch_is_placed_in_the_next(place: Path) -> None:
    clock = Clock()
    profile = Profile(epoch_sec=60)
    epoch = profile.epoch(START)

    async def work() -> None:
        async with people.writer() as writer, people.reader() as reader:
            first = await writer.send(STREAM, b"1")
            clock.now = START + 300  # several epochs later; the client does not know
            sent = await send_all(writer, b"2", b"3")
            later = profile.epoch(START + 300)
            assert (first.epoch, [one.epoch for one in sent]) == (epoch, [later, later])
            assert [one.stream_seq for one in sent] == [1, 2]
            await reader.status()
            assert bodies(await read_all(reader, epoch=epoch)) == [b"1"]
            entries = await read_all(reader)
            assert [(entry.epoch, entry.body) for entry in entries] == [(epoch, b"1"), (later, b"2"), (later, b"3")]
            checkpoint = await reader.checkpoint(STREAM)
            assert checkpoint.label_prev == reader.label(STREAM, later - 1)
        # KEX0.2: a client_id is not used in two epochs.
        assert len(people.writer_dir.writers.history()) >= 2

    with pair(place) as people, running(make_dir(place, profile), clock=clock) as hub:
        meet(people, hub)
        hub.register(naming.stream_id(STREAM))
        asyncio.run(work())


def test_a_stream_unknown_to_the_hub_is_rejected_permanently(place: Path) -> None:
    """No epoch has a valid place for it, so it must not be retried forever."""

    async def work() -> None:
        async with people.writer() as writer:
            with pytest.raises(Refused) as caught:
                await writer.send(STREAM, b"1")
            assert caught.value.detail_enum == "EPOCH"

    with pair(place) as people, running(make_dir(place, Profile(epoch_sec=60))) as hub:
        meet(people, hub)
        asyncio.run(work())


def test_what_is_being_given_a_place_while_the_sender_is_closed_is_undecided_and_in_the_outbox(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    putting, go = Event(), Event()

    async def work(hub: Hub, people: Pair) -> None:
        outbox, writers = people.writer_dir.outbox, people.writer_dir.writers
        choose = writers.writer

        def slow(*given: Any) -> Any:
            putting.set()
            go.wait()
            return choose(*given)

        async with people.writer() as writer:
            monkeypatch.setattr(writers, "writer", slow)
            sender = writer.sender(STREAM)
            future = sender.put(Draft(b"x"))
            await asyncio.to_thread(putting.wait)
            closing = asyncio.create_task(sender.close())
            await asyncio.sleep(0)
            go.set()
            await closing
            assert isinstance(future.exception(), Undecided)
            assert [len(outbox.pending(*where)) for where in outbox.places()] == [1]

    at_a_hub(place, work)


def test_what_leaves_the_outbox_while_the_sender_is_closed_has_its_receipt(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing, go = Event(), Event()

    async def work(hub: Hub, people: Pair) -> None:
        outbox, state = people.writer_dir.outbox, people.writer_dir.state
        advance = state.advance

        def slow(*given: Any, **named: Any) -> Any:
            storing.set()
            go.wait()
            return advance(*given, **named)

        async with people.writer() as writer:
            monkeypatch.setattr(state, "advance", slow)
            sender = writer.sender(STREAM)
            future = sender.put(Draft(b"x"))
            await asyncio.to_thread(storing.wait)
            closing = asyncio.create_task(sender.close())
            await asyncio.sleep(0)
            go.set()
            await closing
            assert future.exception() is None
            assert future.result().stream_seq == 1
            assert outbox.places() == ()

    at_a_hub(place, work)
