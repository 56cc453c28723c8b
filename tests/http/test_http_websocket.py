"""WebSocket over real sockets: handshake, frames, and a peer that does not keep up."""

import asyncio

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from plumbing.http import HttpSettings, Response
from tests.http.loopback import PATIENCE_S, Client, House, Recorder, get, house, run

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # with its answer, from RFC 6455 1.3
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
OFFER = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13", f"sec-websocket-key: {KEY}")


class Peer:
    """The client's side of a WebSocket."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.frames = Connection(ConnectionType.CLIENT)
        self.waiting: list[Event] = []

    def send(self, event: Event) -> None:
        self.client.send(self.frames.send(event))

    async def event(self) -> Event:
        while not self.waiting:
            data = await self.client.reader.read(1 << 16)
            assert data, "the server closed without a word"
            self.frames.receive_data(data)
            self.waiting = list(self.frames.events())
        return self.waiting.pop(0)


async def opened(home: House) -> tuple[Peer, Recorder]:
    client = await home.connect()
    answer = await client.ask(get("/ws", *OFFER))
    assert answer.status == 101
    assert answer.headers["sec-websocket-accept"] == ACCEPT
    recorder = await home.app.sockets.get()
    await recorder.opened.wait()
    return Peer(client), recorder


def test_binary_messages_go_both_ways() -> None:
    async def test() -> None:
        async with house() as home:
            peer, recorder = await opened(home)
            peer.send(BytesMessage(b"to the hub"))
            assert await recorder.messages.get() == b"to the hub"
            assert recorder.send(b"from the hub")
            assert await peer.event() == BytesMessage(bytearray(b"from the hub"))
            await peer.client.close()
            await recorder.closed.wait()
            assert not recorder.send(b"not delivered")

    run(test)


def test_frames_sent_with_the_handshake_are_not_lost() -> None:
    async def test() -> None:
        async with house() as home:
            peer = Peer(await home.connect())
            frames = [peer.frames.send(BytesMessage(b"%d" % n + b"x" * 3000)) for n in range(3)]
            answer = await peer.client.ask(get("/ws", *OFFER) + b"".join(frames))
            assert answer.status == 101
            recorder = await home.app.sockets.get()
            assert [(await recorder.messages.get())[:1] for _ in range(3)] == [b"0", b"1", b"2"]

    run(test)


def test_a_message_in_fragments_is_one_message() -> None:
    async def test() -> None:
        async with house() as home:
            peer, recorder = await opened(home)
            peer.send(BytesMessage(b"one ", message_finished=False))
            peer.send(Ping(b"between"))
            peer.send(BytesMessage(b"message"))
            assert await peer.event() == Pong(b"between")
            assert await recorder.messages.get() == b"one message"

    run(test)


def test_a_close_of_the_peer_is_answered() -> None:
    async def test() -> None:
        async with house() as home:
            peer, recorder = await opened(home)
            peer.send(CloseConnection(1000, "done"))
            event = await peer.event()
            assert isinstance(event, CloseConnection)
            assert event.code == 1000
            assert await peer.client.ended() == b""
            await recorder.closed.wait()
            await peer.client.close()
            assert recorder.closings == 1

    run(test)


def test_a_close_of_the_hub_waits_for_the_peer() -> None:
    async def test() -> None:
        async with house() as home:
            peer, recorder = await opened(home)
            recorder.close(1008)
            assert recorder.closings == 1
            assert not recorder.send(b"after the close")
            event = await peer.event()
            assert isinstance(event, CloseConnection)
            assert event.code == 1008
            peer.send(event.response())
            assert await peer.client.ended() == b""
            await peer.client.close()
            assert recorder.closings == 1

    run(test)


LIMIT = HttpSettings(max_ws_message_bytes=1000)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([BytesMessage(b"x" * 1001)], 1009),
        ([BytesMessage(b"x" * 600, message_finished=False), BytesMessage(b"x" * 600)], 1009),
        ([TextMessage("text")], 1003),
        ([BytesMessage(b"raise")], 1011),
    ],
)
def test_a_message_that_cannot_be_taken_closes_the_socket(events: list[Event], code: int) -> None:
    async def test() -> None:
        async with house(LIMIT) as home:
            peer, recorder = await opened(home)
            for event in events:
                peer.send(event)
            closing = await peer.event()
            assert isinstance(closing, CloseConnection)
            assert closing.code == code
            await recorder.closed.wait()
            assert recorder.messages.empty()
            assert len(home.faults) == (code == 1011)

    run(test)


def test_a_message_of_the_largest_size_is_taken() -> None:
    async def test() -> None:
        async with house(LIMIT) as home:
            peer, recorder = await opened(home)
            peer.send(BytesMessage(b"x" * 1000))
            assert await recorder.messages.get() == b"x" * 1000

    run(test)


@pytest.mark.parametrize("frame", [b"\x82\x04abcd", b"\xf2\x80\0\0\0\0", b"\x83\x80\0\0\0\0", b"\x89\xfe\0\x7f"])
def test_a_frame_that_breaks_the_protocol_closes_the_socket(frame: bytes) -> None:
    async def test() -> None:
        async with house() as home:
            peer, recorder = await opened(home)
            peer.client.send(frame)
            closing = await peer.event()
            assert isinstance(closing, CloseConnection)
            assert closing.code == 1002
            await recorder.closed.wait()

    run(test)


def test_send_says_when_the_peer_does_not_keep_up() -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=10_000)) as home:
            peer, recorder = await opened(home)
            sent = 0
            while recorder.send(b"x" * 50_000):
                sent += 1
                assert sent < 10_000
            assert not recorder.send(b"y")
            assert recorder.full.is_set()
            assert not recorder.drained.is_set()
            size = 0
            while size < sent * 50_000:
                event = await peer.event()
                assert isinstance(event, BytesMessage)
                size += len(event.data)
            await recorder.drained.wait()
            assert recorder.send(b"caught up")
            assert await peer.event() == BytesMessage(bytearray(b"caught up"))

    run(test)


def test_the_app_is_notified_of_a_full_and_of_a_drained_buffer() -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=10_000)) as home:
            peer, recorder = await opened(home)
            size = 16 << 20
            assert recorder.send(bytes(size))
            assert recorder.full.is_set()
            assert not recorder.drained.is_set()
            while size:
                event = await peer.event()
                assert isinstance(event, BytesMessage)
                size -= len(event.data)
            await recorder.drained.wait()

    run(test)


def test_a_silent_peer_is_asked_and_then_dropped() -> None:
    async def test() -> None:
        async with house(HttpSettings(idle_timeout_s=0.05)) as home:
            peer, recorder = await opened(home)
            assert await peer.event() == Ping(b"")
            peer.send(Pong())
            assert await peer.event() == Ping(b"")
            assert not recorder.closed.is_set()
            await recorder.closed.wait()

    run(test)


def test_stop_says_goodbye_to_subscribers() -> None:
    async def test() -> None:
        async with house() as home:
            peer, recorder = await opened(home)
            stopping = asyncio.create_task(home.server.stop(PATIENCE_S))
            event = await peer.event()
            assert isinstance(event, CloseConnection)
            assert event.code == 1001
            peer.send(event.response())
            await stopping
            assert recorder.closings == 1

    run(test)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/elsewhere", *OFFER), 403),
        (get("/ws", *OFFER[:2], "sec-websocket-version: 8", OFFER[3]), 400),
        (get("/ws", *OFFER[:3]), 400),
        (get("/ws", *OFFER[:3], "sec-websocket-key: c2hvcnQ="), 400),
        (get("/ws", *OFFER[:3], "sec-websocket-key: not base64!"), 400),
        (get("/ws", *OFFER, "content-length: 5") + b"hello", 400),
        (get("/ws", *OFFER).replace(b"GET", b"POST"), 400),
    ],
)
def test_an_upgrade_that_is_not_one_is_refused(request_bytes: bytes, status: int) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(request_bytes)
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert home.app.sockets.empty()

    run(test)


def test_an_upgrade_does_not_overtake_the_answers_before_it() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later") + get("/ws", *OFFER))
            await home.app.waits(1)
            home.app.later[0][1](Response(200, b"first"))
            assert (await client.answer()).body == b"first"
            assert (await client.answer()).status == 400

    run(test)
