"""Following a label: several clients of one directory, a stalled sender, message order, a lying subscription."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.events import Request as Upgrade

from tests.client.hostile import START, HostileHub
from tests.client.pair import QUICK, STREAM, Pair, bodies, pair, read_all, send_all
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.hub_session import HubClock
from veen.client.reader import ClientOrder, EntrySubscription, LabelReader, Opener, ReadRange
from veen.client.sender import STALLED
from veen.client.transport import HubLink, RetryPolicy
from veen.client.trust import Pin
from veen.core import Malformed, Msg, Profile, Receipt, Refused, SigningKey, Unavailable, msg, receipt
from veen.core.envelopes import StreamItem


def at_a_hub(place: Path, work: Callable[[HostileHub, Pair], Awaitable[None]]) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            await work(hub, people)

    with pair(place) as people:
        asyncio.run(run())


# Several clients of one directory.


def test_two_clients_of_one_directory_see_each_others_progress(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.writer() as other:
            await send_all(writer, b"1", b"2")
            assert len(await read_all(other)) == 2
            await send_all(writer, b"3", b"4", b"5")
            # It is behind the stored state, and loads that state instead of going back.
            assert len(await read_all(other, to_seq=3)) == 3
            await send_all(writer, b"6")
            await other.resync(STREAM)
            await send_all(writer, b"7")
            state = people.writer_dir.state.label(writer.hub_id, writer.label(STREAM))
            assert state
            assert state.size == writer.follower(STREAM).tree.size == 7

    at_a_hub(place, work)


# A stalled sender.


def test_a_stalled_sender_reconnects(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        patient = RetryPolicy(attempts=STALLED + 2, first_wait_s=0.001, longest_wait_s=0.002)
        async with people.writer(retry_policy=patient) as writer:
            await writer.send(STREAM, b"1")
            left = [STALLED]

            def mute(path: str) -> bool:
                left[0] -= path == "/v1/submit"
                return path == "/v1/submit" and left[0] >= 0

            hub.mute = mute
            hub.asked.clear()
            assert (await writer.send(STREAM, b"2")).stream_seq == 2
            submits = [number for number, path in enumerate(hub.asked) if path == "/v1/submit"]
            assert len(submits) == STALLED + 1
            assert "/tooling/status" in hub.asked[submits[-2] : submits[-1]]
            assert "/tooling/status" not in hub.asked[: submits[-2]]

    at_a_hub(place, work)


# The order of each client's messages.


def entry(key: SigningKey, client_seq: int, stream_seq: int, prev_ack: int = 0) -> tuple[Msg, Receipt]:
    message = msg.sign(
        key,
        profile_id=bytes(32),
        label=bytes(32),
        client_seq=client_seq,
        prev_ack=prev_ack,
        auth_ref=None,
        ciphertext=bytes(64),
    )
    signed = receipt.sign(
        key, label=bytes(32), stream_seq=stream_seq, leaf_hash=message.leaf_hash(), mmr_root=bytes(32), hub_ts=START
    )
    return message, signed


def test_each_client_has_an_order_of_its_own() -> None:
    order, one, other = ClientOrder(), SigningKey.generate(), SigningKey.generate()
    for key, client_seq, stream_seq in [(one, 5, 10), (other, 1, 11), (one, 6, 12), (other, 2, 13), (one, 7, 14)]:
        order.check(*entry(key, client_seq, stream_seq))


@pytest.mark.parametrize(
    ("client_seq", "lie"), [(5, Lie.REPEATED_MESSAGE), (4, Lie.REPEATED_MESSAGE), (7, Lie.SEQ_GAP)]
)
def test_a_client_does_not_go_back_or_skip(client_seq: int, lie: Lie) -> None:
    order, key = ClientOrder(), SigningKey.generate()
    order.check(*entry(key, 5, 10))
    with pytest.raises(Contradiction) as caught:
        order.check(*entry(key, client_seq, 11))
    assert caught.value.lie is lie
    assert len(caught.value.statements) == len(caught.value.messages) == 2


@pytest.mark.parametrize(("prev_ack", "holds"), [(9, True), (10, False), (11, False)])
def test_a_message_acknowledges_only_what_was_there(prev_ack: int, holds: bool) -> None:
    found = entry(SigningKey.generate(), 1, 10, prev_ack)
    if holds:
        ClientOrder().check(*found)
        return
    with pytest.raises(Contradiction):
        ClientOrder().check(*found)


# The hub's time.


def test_the_hubs_clock_runs_on_from_what_it_said() -> None:
    now = [100.0]
    clock = HubClock(lambda: now[0])
    clock.set(START)
    now[0] += 7.5
    assert clock.now() == START + 7
    clock.note(START + 3)  # an older time changes nothing
    assert clock.now() == START + 7
    clock.note(START + 20)
    assert clock.now() == START + 20
    clock.set(START)
    assert clock.now() == START


@pytest.mark.parametrize(("epoch_sec", "epoch", "ends"), [(0, 0, None), (60, 5, 360), (3600, 0, 3600)])
def test_an_epoch_has_an_end_where_there_are_epochs(epoch_sec: int, epoch: int, ends: int | None) -> None:
    assert Profile(epoch_sec).epoch_end(epoch) == ends


# A subscription that lies.


@asynccontextmanager
async def feeding(*events: Event | bytes) -> AsyncIterator[HubLink]:
    """A server that accepts a subscription and sends these events at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = WSConnection(ConnectionType.SERVER)
        frames.receive_data(await reader.readuntil(b"\r\n\r\n"))
        assert isinstance(next(frames.events()), Upgrade)
        said = frames.send(AcceptConnection())
        for event in events:
            said += event if isinstance(event, bytes) else frames.send(event)
        writer.write(said)
        try:
            await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    link = HubLink(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", retry_policy=QUICK)
    try:
        yield link
    finally:
        await link.close()
        server.close()
        await asyncio.sleep(0)


def heard(*events: Event | bytes) -> list[StreamItem]:
    async def run() -> list[StreamItem]:
        async with feeding(*events) as link:
            feed = await EntrySubscription.open(link, bytes(32), 1)
            try:
                return await anext(feed.items())
            finally:
                feed.close()

    return asyncio.run(run())


def items(count: int) -> list[StreamItem]:
    hub = HostileHub()
    log = hub.log(bytes(32))
    for _ in range(count):
        log.append(hub.key, hub.forged(bytes(32)), START)
    return [StreamItem(seq, *found) for seq, found in enumerate(log.entries, 1)]


def test_entries_that_arrive_with_the_handshake_are_received() -> None:
    first, second = items(2)
    assert heard(BytesMessage(first.encode()), Ping(b"?"), BytesMessage(second.encode())) == [first, second]


def test_an_entry_in_pieces_is_put_together() -> None:
    (item,) = items(1)
    data = item.encode()
    assert heard(BytesMessage(data[:100], message_finished=False), BytesMessage(data[100:])) == [item]


@pytest.mark.parametrize(
    "event",
    [
        TextMessage("hello"),
        BytesMessage(b"\x80"),
        BytesMessage(b""),
        BytesMessage(bytes(2 << 20)),
    ],
    ids=["text", "not an entry", "nothing", "too long"],
)
def test_a_message_that_is_not_an_entry_is_rejected(event: Event | bytes) -> None:
    with pytest.raises(Malformed):
        heard(event)


@pytest.mark.parametrize(("event", "code"), [(CloseConnection(1013), "1013"), (b"\xff\xff\xff\xff", "1002")])
def test_a_subscription_that_ends_is_unavailable(event: Event | bytes, code: str) -> None:
    with pytest.raises(Unavailable, match=code):
        heard(event)


def test_entries_of_a_subscription_are_verified_like_a_page(place: Path) -> None:
    """A reader with a real subscription receives entries of another history."""

    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, b"1", b"2")
            assert bodies(await read_all(reader)) == [b"1", b"2"]
            hub.fork(hub.label(STREAM), 0)
            forged = [StreamItem(seq, *found) for seq, found in enumerate(hub.log(hub.label(STREAM)).entries, 1)]
            with pytest.raises(Contradiction) as caught:
                await _taken(reader, forged[2:])
            assert caught.value.lie is Lie.FORKED_HISTORY
            assert caught.value.evidence is not None

    async def _taken(reader: Client, some: list[StreamItem]) -> None:
        label = LabelReader(reader.session, reader.follower(STREAM), 0, Opener(None), ReadRange(3))
        await label.begin()
        await label.take(some)

    at_a_hub(place, work)


def test_a_hub_that_offers_no_subscriptions_says_so(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        link = HubLink(hub.url, retry_policy=QUICK)
        with pytest.raises(Refused):
            await EntrySubscription.open(link, bytes(32), 1)
        await link.close()

    at_a_hub(place, work)
