"""What strangers can make a hub do and hold: reads that pile up, subscribers that do not read, bodies without end."""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.hub.client import PATIENCE_S, Hub, Reply, Writer, make_dir, running, until
from tests.hub.disks import QuickDisk
from tests.hub.subscriber import Subscriber
from veen.core.envelopes import ReceiptRequest, StreamRequest, StreamResponse
from veen.hub import batch, later, pageroom, subscriptions

BODY = bytes(100_000)  # a page with it is long enough to be counted


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path), disk=QuickDisk()) as found:
        yield found


# Reads.


@contextmanager
def pages_held(hub: Hub) -> Iterator[None]:
    """Meanwhile no page that is begun comes to its end."""
    with hub.service.app.pages._lock:
        yield


def page_request(writer: Writer) -> bytes:
    body = StreamRequest(writer.label, 1).encode()
    return f"POST /v1/stream HTTP/1.1\r\nhost: hub\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def asking(hub: Hub, request: bytes) -> socket.socket:
    """A connection that has asked and waits."""
    connection = socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S)
    connection.sendall(request)
    return connection


def leave(connection: socket.socket) -> None:
    """With a reset, which the hub cannot take for a client that still listens."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def waiting(hub: Hub) -> int:
    return hub.service.app._later.long.waiting


def check_told_to_come_again(reply: Reply) -> None:
    assert (reply.status, reply.error().code, reply.headers["retry-after"]) == (503, "E.UNAVAILABLE", "1")


def test_pages_that_take_long_do_not_hold_up_what_is_short(hub: Hub) -> None:
    writer = hub.writer()
    writer.send(BODY)
    with ExitStack() as stack, pages_held(hub):
        for _ in range(6):
            stack.enter_context(asking(hub, page_request(writer)))
        until(lambda: waiting(hub) == 4)
        assert hub.post("/v1/receipt", ReceiptRequest(writer.label, 1)).status == 200
        assert hub.post_json("/v1/receipt", ReceiptRequest(writer.label, 1)).status == 200
        with Subscriber(hub, f"label={writer.label.hex()}") as subscriber:
            assert subscriber.item().stream_seq == 1
        assert writer.send().stream_seq == 2


def test_pages_beyond_the_queue_are_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "MOST_LONG", 3)
    with running(make_dir(tmp_path), disk=QuickDisk()) as hub, ThreadPoolExecutor(1) as pool:
        writer = hub.writer()
        writer.send(BODY)
        asked = StreamRequest(writer.label, 1)
        connections = []
        with pages_held(hub):
            for number in range(5):
                connections.append(asking(hub, page_request(writer)))
                until(lambda: waiting(hub) == max(0, number - 1))  # noqa: B023  looked at before the next
            check_told_to_come_again(hub.post("/v1/stream", asked))
            check_told_to_come_again(hub.post_json("/v1/stream", asked))
            check_told_to_come_again(hub.get(f"/tooling/checkpoints?label={writer.label.hex()}"))
            # Those who wait leave: nothing is read for them, and others take their places.
            for connection in connections[2:]:
                leave(connection)
            until(lambda: hub.service.server.connections <= 2)
            reply = pool.submit(hub.post, "/v1/stream", asked)
            until(lambda: waiting(hub) == 1)
        assert len(reply.result(PATIENCE_S).read(StreamResponse).items) == 1
        for connection in connections[:2]:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()


def test_one_connection_takes_its_share_of_the_queue_and_no_more(hub: Hub) -> None:
    writer = hub.writer()
    writer.send(BODY)
    begun = 2
    with pages_held(hub):
        connection = asking(hub, page_request(writer) * (begun + later.LONG_SHARE + 3))
        until(lambda: waiting(hub) == later.LONG_SHARE)
        other = asking(hub, page_request(writer))
        until(lambda: waiting(hub) == later.LONG_SHARE + 1)
    assert statuses(connection, begun + later.LONG_SHARE + 3) == [200] * (begun + later.LONG_SHARE) + [503] * 3
    assert statuses(other, 1) == [200]


def statuses(connection: socket.socket, count: int) -> list[int]:
    """Those of the answers to come."""
    found = []
    with connection, connection.makefile("rb") as answers:
        for _ in range(count):
            found.append(int(answers.readline().split()[1]))
            fields = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
            answers.read(int(fields[b"content-length"]))
    return found


# Subscribers that do not read.


def test_what_waits_for_a_subscriber_is_little_and_counted(hub: Hub) -> None:
    writer = hub.writer()
    for _ in range(12):
        writer.send(bytes(10 * len(BODY)))
    room = hub.service._subscriptions.room
    with Subscriber(hub, f"label={writer.label.hex()}", receive_bytes=4096) as subscriber:
        until(lambda: room.held > 0 and hub.get("/healthz").status == 200)
        assert room.held < subscriptions.PAGE_BYTES + 11 * len(BODY)
        assert [item.stream_seq for item in subscriber.items(12)] == list(range(1, 13))
        until(lambda: room.held == 0)
    with Subscriber(hub, f"label={writer.label.hex()}", receive_bytes=4096):
        until(lambda: room.held > 0)
    until(lambda: room.held == 0)


def test_short_entries_go_to_a_subscriber_many_at_a_time(hub: Hub) -> None:
    writer = hub.writer()
    hub.batch(*writer.next_messages(200))
    with Subscriber(hub, f"label={writer.label.hex()}") as subscriber:
        assert [item.stream_seq for item in subscriber.items(200)] == list(range(1, 201))


def test_a_subscriber_waits_while_others_hold_too_much_and_misses_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_RETRY_S", 0.01)
    writer, short = hub.writer("long"), hub.writer("short")
    for _ in range(12):
        writer.send(bytes(10 * len(BODY)))
    room = hub.service._subscriptions.room
    with Subscriber(hub, f"label={short.label.hex()}") as patient:
        with Subscriber(hub, f"label={writer.label.hex()}", receive_bytes=4096):
            until(lambda: room.held > 0)
            monkeypatch.setattr(pageroom, "MOST_BYTES", 0)
            short.send_many(3)
            reading = next(iter(hub.service._subscriptions._by_label[short.label]))
            until(lambda: reading._reading and hub.get("/healthz").status == 200)
            # Pages have a room of their own.
            assert hub.post("/v1/stream", StreamRequest(short.label, 1)).status == 200
        assert [item.stream_seq for item in patient.items(3)] == [1, 2, 3]


# Bodies that are no message.


@pytest.mark.parametrize("count", [1, batch._MOST_HEADS - 1])
def test_behind_a_short_value_that_is_no_message_the_next_is_found(hub: Hub, count: int) -> None:
    first, second = hub.writer().next_messages(2)
    junk = b"\x98" + bytes([count]) + bytes(count) if count > 23 else b"\x80" + b"\x00" * (count - 1)
    assert len(hub.batch(first, junk, second)) == 3


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("too many values", b"\x98" + bytes([batch._MOST_HEADS]) + bytes(batch._MOST_HEADS)),
        ("too many levels", b"\x81" * batch._MOST_HEADS + b"\x00"),
        ("too many names", b"\xb8\x64" + b"\x61a\x00" * 100),
        ("an array longer than the body", b"\x9a\x00\xff\xff\xff"),
        ("a map longer than the body", b"\xba\xff\xff\xff\xff"),
        ("a string longer than the body", b"\x5a\xff\xff\xff\xff"),
        ("a text longer than the body", b"\x7b\x00\x00\xff\xff\xff\xff\xff\xff"),
        ("a tag", b"\xc1\x00"),
        ("a float", b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a"),
        ("undefined", b"\xf7"),
        ("an indefinite array", b"\x9f\x00\xff"),
    ],
)
def test_behind_a_value_without_an_end_in_sight_nothing_is_found(hub: Hub, name: str, junk: bytes) -> None:
    first, second = hub.writer().next_messages(2)
    found = hub.batch(first, junk, second)
    assert len(found) == 2, name
    assert hub.batch(second)


@pytest.mark.parametrize(
    "junk",
    [
        b"\x18\x64",
        b"\x39\x01\x00",
        b"\x58\x20" + bytes(32),
        b"\x62\xff\xff",
        b"\xf5",
        b"\xa2\x01\x80\x02\xa1\x61a\x41b",
        b"\x83\x81\x80\xa0\xf6",
    ],
    ids=["number", "negative", "string", "no text", "constant", "map", "array"],
)
def test_the_end_of_a_value_is_behind_all_that_is_in_it(junk: bytes) -> None:
    assert batch.split(junk + b"\x00") == [junk, b"\x00"]
    for cut in range(1, len(junk)):
        assert batch.split(junk[:cut])[-1] != junk


@pytest.mark.parametrize("body", [b'{"ver":1,"msg":[%s0]}' % (b"0," * 1000), b"," * 11, b"[" + b"[]," * 20])
def test_json_with_more_fields_than_a_message_has_is_not_parsed(hub: Hub, body: bytes) -> None:
    reply = hub.post_json("/v1/submit", body)
    assert reply.refusal() == (400, "E.FORMAT", "structural", "CBOR_INVALID")
    assert reply.error().message == "more fields than a message has"


def test_json_with_as_many_commas_as_a_message_is_parsed(hub: Hub) -> None:
    reply = hub.post_json("/v1/submit", b"," * 10)
    assert "not JSON text" in reply.error().message
