"""Resources that strangers can use: queued reads, subscribers that do not read, endless bodies."""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.http.http1 import Http1
from plumbing.http.message import Request
from tests.hub.client import PATIENCE_S, Hub, Reply, Writer, make_dir, running, until
from tests.hub.disks import QuickDisk
from tests.hub.subscriber import Subscriber
from veen.core import Receipt, Refused
from veen.core.envelopes import ErrorEnvelope, ReceiptRequest, StreamRequest, StreamResponse
from veen.hub import read_api, read_executor, submit, submit_api
from veen.hub.config import HubConfig
from veen.hub.verifier import Answer, Signed, Verifier

BODY = bytes(100_000)  # makes a page large enough to be counted


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path), disk=QuickDisk()) as found:
        yield found


# Reads.


@contextmanager
def pages_held(hub: Hub) -> Iterator[None]:
    """Block all pages that are being built."""
    with hub.service.app.pages._lock:
        yield


def page_request(writer: Writer) -> bytes:
    body = StreamRequest(writer.label, 1).encode()
    return f"POST /v1/stream HTTP/1.1\r\nhost: hub\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def asking(hub: Hub, request: bytes, source: str = "") -> socket.socket:
    """A connection with an unanswered request, from this address of the machine."""
    connection = socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S, (source, 0))
    connection.sendall(request)
    return connection


def leave(connection: socket.socket) -> None:
    """Close with a reset, so that the hub knows the client is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def waiting(hub: Hub) -> int:
    return hub.service.app.executor.long.waiting


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


def test_pages_beyond_the_queue_are_rejected_with_a_retry_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_executor, "MAX_LONG_QUEUED", 3)
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
            # The waiting clients leave: nothing is read for them, and others take their places.
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
        connection = asking(hub, page_request(writer) * (begun + read_executor.MAX_LONG_PER_CONNECTION + 3))
        until(lambda: waiting(hub) == read_executor.MAX_LONG_PER_CONNECTION)
        other = asking(hub, page_request(writer))
        until(lambda: waiting(hub) == read_executor.MAX_LONG_PER_CONNECTION + 1)
    assert (
        statuses(connection, begun + read_executor.MAX_LONG_PER_CONNECTION + 3)
        == [200] * (begun + read_executor.MAX_LONG_PER_CONNECTION) + [503] * 3
    )
    assert statuses(other, 1) == [200]


def statuses(connection: socket.socket, count: int) -> list[int]:
    """The bytes of outstanding responses."""
    found = []
    with connection, connection.makefile("rb") as answers:
        for _ in range(count):
            found.append(int(answers.readline().split()[1]))
            fields = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
            answers.read(int(fields[b"content-length"]))
    return found


# Connections that last.


def test_subscriptions_and_uploads_of_this_machine_leave_places_for_short_requests(tmp_path: Path) -> None:
    settings = replace(HubConfig(tmp_path).http, max_connections=16)
    with running(make_dir(tmp_path), disk=QuickDisk(), http=settings) as hub, ExitStack() as stack:
        query = f"label={hub.label('s').hex()}&from=1"
        for _ in range(12):
            stack.enter_context(Subscriber(hub, query))
        upload = f"PUT /tooling/attachments/{bytes(32).hex()} HTTP/1.1\r\nhost: hub\r\ncontent-length: 9\r\n\r\n1"
        for source in ("127.0.0.1", "127.0.0.2"):
            stack.enter_context(asking(hub, upload.encode(), source))
        until(lambda: hub.service.uploads.running == 2)
        status, body = Subscriber(hub, query).refusal()
        refused = ErrorEnvelope.decode(body)
        assert (status, refused.code) == (503, "E.UNAVAILABLE")
        assert "at most 12 subscriptions" in refused.message
        with asking(hub, upload.encode(), "127.0.0.3") as third:
            assert third.recv(12) == b"HTTP/1.1 503"
        for _ in range(8):
            assert hub.get("/healthz").status == 200
            hub.writer().send()
        stack.close()
        until(lambda: hub.service.uploads.running == 0)
        with Subscriber(hub, query) as subscriber:
            assert subscriber.item().stream_seq == 1


# Subscribers that do not read.


def test_what_waits_for_a_subscriber_is_little_and_counted(hub: Hub) -> None:
    writer = hub.writer()
    for _ in range(12):
        writer.send(bytes(10 * len(BODY)))
    page_memory = hub.service._subscriptions.page_memory
    with Subscriber(hub, f"label={writer.label.hex()}", receive_bytes=4096) as subscriber:
        until(lambda: page_memory.held > 0 and hub.get("/healthz").status == 200)
        assert page_memory.held < read_api.PAGE_BYTES + 11 * len(BODY)
        assert [item.stream_seq for item in subscriber.items(12)] == list(range(1, 13))
        until(lambda: page_memory.held == 0)
    with Subscriber(hub, f"label={writer.label.hex()}", receive_bytes=4096):
        until(lambda: page_memory.held > 0)
    until(lambda: page_memory.held == 0)


def test_short_entries_go_to_a_subscriber_many_at_a_time(hub: Hub) -> None:
    writer = hub.writer()
    hub.batch(*writer.next_messages(200))
    with Subscriber(hub, f"label={writer.label.hex()}") as subscriber:
        assert [item.stream_seq for item in subscriber.items(200)] == list(range(1, 201))


def test_a_subscriber_waits_while_others_hold_too_much_and_misses_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_api, "_RETRY_S", 0.01)
    writer, short = hub.writer("long"), hub.writer("short")
    for _ in range(12):
        writer.send(bytes(10 * len(BODY)))
    page_memory = hub.service._subscriptions.page_memory
    with Subscriber(hub, f"label={short.label.hex()}") as patient:
        with Subscriber(hub, f"label={writer.label.hex()}", receive_bytes=4096):
            until(lambda: page_memory.held > 0)
            monkeypatch.setattr(read_api, "MAX_PAGE_MEMORY_BYTES", 0)
            short.send_many(3)
            reading = next(iter(hub.service._subscriptions.by_label[short.label]))
            until(lambda: reading._reading and hub.get("/healthz").status == 200)
            # Pages have a separate limit.
            assert hub.post("/v1/stream", StreamRequest(short.label, 1)).status == 200
        assert [item.stream_seq for item in patient.items(3)] == [1, 2, 3]


# Bodies that are not messages.


@pytest.mark.parametrize("count", [1, submit_api._MAX_HEADS - 1])
def test_behind_a_short_value_that_is_no_message_the_next_is_found(hub: Hub, count: int) -> None:
    first, second = hub.writer().next_messages(2)
    junk = b"\x98" + bytes([count]) + bytes(count) if count > 23 else b"\x80" + b"\x00" * (count - 1)
    assert len(hub.batch(first, junk, second)) == 3


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("too many values", b"\x98" + bytes([submit_api._MAX_HEADS]) + bytes(submit_api._MAX_HEADS)),
        ("too many levels", b"\x81" * submit_api._MAX_HEADS + b"\x00"),
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
    assert submit_api.split(junk + b"\x00") == [junk, b"\x00"]
    for cut in range(1, len(junk)):
        assert submit_api.split(junk[:cut])[-1] != junk


@pytest.mark.parametrize("body", [b'{"ver":1,"msg":[%s0]}' % (b"0," * 1000), b"," * 11, b"[" + b"[]," * 20])
def test_json_with_more_fields_than_a_message_has_is_not_parsed(hub: Hub, body: bytes) -> None:
    reply = hub.post_json("/v1/submit", body)
    assert reply.refusal() == (400, "E.FORMAT", "structural", "CBOR_INVALID")
    assert reply.error().message == "more fields than a message has"


def test_json_with_as_many_commas_as_a_message_is_parsed(hub: Hub) -> None:
    reply = hub.post_json("/v1/submit", b"," * 10)
    assert "not JSON text" in reply.error().message


# Pages that are not read.


def test_a_client_that_does_not_read_its_pages_is_rejected_and_others_are_served(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_api, "CONNECTION_BYTES", len(BODY))
    writer = hub.writer()
    for _ in range(12):
        writer.send(bytes(10 * len(BODY)))
    with asking(hub, page_request(writer) * 3) as connection:
        until(lambda: hub.service.app.pages.held > 0 and third_is_answered(hub))
        small = hub.post("/v1/stream", StreamRequest(writer.label, 1, max_items=1))
        assert len(small.read(StreamResponse).items) == 1
        found = statuses(connection, 3)
    assert (found[0], found[2]) == (200, 503)
    until(lambda: hub.service.app.pages.held == 0)
    assert hub.post("/v1/stream", StreamRequest(writer.label, 1)).status == 200


def third_is_answered(hub: Hub) -> bool:
    server = hub.service.server._service
    assert server is not None
    queues = [tuple(one.queue) for one in tuple(server.roster.connections) if isinstance(one, Http1)]
    return any(len(queue) == 3 and queue[2].answer is not None for queue in queues)


def asked_by(connection: object, caller: bytes | None) -> Request:
    return Request("POST", "/v1/stream", "", {}, b"", "", "1.1", connection=connection, caller=caller)


def test_a_caller_with_many_connections_has_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_api, "CONNECTION_BYTES", 2 * len(BODY))
    monkeypatch.setattr(read_api, "CALLER_BYTES", 2 * len(BODY))
    page_memory = read_api.PageMemoryBudget()
    crowd = [asked_by(object(), b"\x0a\0\0\1") for _ in range(4)]
    held = [page_memory.counted(BODY, one) for one in crowd[:3]]
    with pytest.raises(Refused, match="too many of your pages"):
        page_memory.check(crowd[3])
    page_memory.check(asked_by(object(), b"\x0a\0\0\2"))
    page_memory.check(asked_by(object(), None))
    held.pop()
    page_memory.check(crowd[3])
    held.clear()
    assert (page_memory.held, page_memory._held_by) == (0, {})


def test_behind_a_proxy_each_connection_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_api, "CONNECTION_BYTES", len(BODY))
    page_memory, one, other = read_api.PageMemoryBudget(), asked_by(object(), None), asked_by(object(), None)
    held = [page_memory.counted(BODY, one)]
    page_memory.check(one)  # exactly its share
    held.append(page_memory.counted(BODY, one))
    with pytest.raises(Refused, match="too many of your pages"):
        page_memory.check(one)
    page_memory.check(other)


def test_short_pages_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_api, "CONNECTION_BYTES", 0)
    page_memory, one = read_api.PageMemoryBudget(), asked_by(object(), b"\x0a\0\0\1")
    held = page_memory.counted(bytes(1 << 16), one)
    page_memory.check(one)
    assert (len(held), page_memory.held) == (1 << 16, 0)


# Signatures that wait to be checked.


class Gate:
    """A verifier that forwards checks only once it is open, and records the order of clients."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._held: list[tuple[Signed, Answer]] = []
        self._open = False
        self.asked: list[bytes] = []

    def check(self, signed: Signed, answer: Answer) -> None:
        self.asked.append(signed[0])
        if self._open:
            self._verifier.check(signed, answer)
        else:
            self._held.append((signed, answer))

    def open(self) -> None:
        self._open = True
        for signed, answer in self._held:
            self._verifier.check(signed, answer)

    def flush(self) -> None:
        self._verifier.flush()

    def close(self) -> None:
        self._verifier.close()


MAX_CHECKS = 4


@contextmanager
def gated(folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> Iterator[tuple[Hub, Gate]]:
    monkeypatch.setattr(submit, "MAX_CHECKS", MAX_CHECKS)
    with running(make_dir(folder), disk=QuickDisk(), **config) as hub:
        gate = hub.service.pipeline._verifier = Gate(hub.service.pipeline._verifier)
        yield hub, gate


def in_flight(hub: Hub) -> int:
    """Each check takes a turn of the hub's loop."""
    assert hub.get("/healthz").status == 200
    return hub.service.pipeline.in_flight


def test_a_client_with_one_message_does_not_wait_for_all_of_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gated(tmp_path, monkeypatch) as (hub, gate), ThreadPoolExecutor(2) as pool:
        many, one = hub.writer(), hub.writer()
        batch_ = pool.submit(hub.batch, *many.next_messages(40))
        until(lambda: in_flight(hub) == 40)
        single = pool.submit(hub.submit, one.message())
        until(lambda: in_flight(hub) == 41)
        assert len(gate.asked) == MAX_CHECKS
        hub.loop.call_soon_threadsafe(gate.open)
        assert single.result(PATIENCE_S).status == 200
        places = [one.stream_seq for one in batch_.result(PATIENCE_S) if isinstance(one, Receipt)]
        assert (len(places), sorted(places)) == (40, places)
    assert len(gate.asked) == 41
    assert gate.asked.index(one.key.public_key) <= MAX_CHECKS + 1


def test_a_batch_fills_half_of_the_room_and_others_are_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 64
    with gated(tmp_path, monkeypatch, max_in_flight=most) as (hub, gate), ThreadPoolExecutor(2) as pool:
        batch_ = pool.submit(hub.batch, *hub.writer().next_messages(most))
        until(lambda: in_flight(hub) == MAX_CHECKS + most // 2)
        single = pool.submit(hub.submit, hub.writer().message())
        until(lambda: in_flight(hub) == MAX_CHECKS + most // 2 + 1)
        hub.loop.call_soon_threadsafe(gate.open)
        assert single.result(PATIENCE_S).status == 200
        found = batch_.result(PATIENCE_S)
    assert [isinstance(one, Receipt) for one in found] == [True] * (MAX_CHECKS + most // 2) + [False] * (
        most // 2 - MAX_CHECKS
    )


def test_a_reserve_is_kept_for_clients_with_few_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 64
    with gated(tmp_path, monkeypatch, max_in_flight=most) as (hub, gate), ThreadPoolExecutor(4) as pool:
        batches = [pool.submit(hub.batch, *hub.writer().next_messages(most)) for _ in range(2)]
        until(lambda: in_flight(hub) == most)
        single = pool.submit(hub.submit, hub.writer().message())
        until(lambda: in_flight(hub) == most + 1)
        hub.loop.call_soon_threadsafe(gate.open)
        assert single.result(PATIENCE_S).status == 200
        for one in batches:
            one.result(PATIENCE_S)
