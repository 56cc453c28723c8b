"""A real hub against damaged requests: it answers or closes the connection, reports no bug, and stays alive.

    VEEN_FUZZ_SEED=7 VEEN_FUZZ_CASES=100000 python -m pytest -m slow tests/hub/test_http_fuzz.py

The damaged requests are those of real clients: bodies are changed by CBOR items and JSON tokens, whole requests by
bytes and lines, HTTP/2 by bytes and frames.
"""

import io
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from random import Random

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from fuzz.damage import Sown, cbor_spans, exchange_item, exchange_token, json_spans, pick
from plumbing.http import HttpSettings
from tests.core.wire_strategies import fullest
from tests.hub.client import CBOR, JSON, PATIENCE_S, TOKEN, Hub, Reply, log_file, log_rows, make_dir, running
from tests.hub.disks import QuickDisk
from veen.core import wire_json
from veen.core.attachment import UploadProof
from veen.core.cbor import Wire
from veen.core.envelopes import ErrorEnvelope, ReceiptRequest, StreamRequest, SubmitRequest
from veen.core.hashing import h
from veen.hub.hub_openapi import ENDPOINTS

CASES = int(os.environ.get("VEEN_FUZZ_CASES") or 20_000)
FEW = 300
PATHS = [one.path.replace("{coid}", h(b"attachment").hex()) for one in ENDPOINTS]
TAKEN = {one.path: one.request for one in ENDPOINTS if isinstance(one.request, type)}
METHODS = ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE"]
TYPES = [
    CBOR,
    JSON,
    "application/json; charset=utf-8",
    "APPLICATION/JSON",
    "text/plain",
    "",
    "*/*",
    "application/cbor, x",
]
QUICK = HttpSettings(header_timeout_s=5, body_timeout_s=5, idle_timeout_s=5, linger_s=0.2)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with short timeouts. Afterwards it must be alive, without a reported bug."""
    with log_file(tmp_path / "log") as log, running(make_dir(tmp_path), disk=QuickDisk(), http=QUICK) as found:
        found.writer().send_many(3)
        yield found
        assert found.get("/healthz").status == 200
        assert found.writer("afterwards").send().stream_seq == 1
    rows = log_rows(log)
    assert [row["event"] for row in rows] == ["started", "stopped"], rows[:3]


def check_reply(reply: Reply, path: str) -> None:
    """No answer is a 500, and every error is an envelope."""
    assert reply.status not in (500, 502, 504), reply
    if reply.status >= 400 and path != "/readyz" and reply.body:
        assert isinstance(reply.error(), ErrorEnvelope)


def efforts(few: int = FEW) -> pytest.MarkDecorator:
    """A few cases always, many in the slow suite."""
    thorough = pytest.param(CASES, marks=pytest.mark.slow, id="much")
    return pytest.mark.parametrize("cases", [pytest.param(few, id="little"), thorough])


def dice(cases: int) -> Random:
    """A few cases are the same in every run; the others are random."""
    seed = int(os.environ.get("VEEN_FUZZ_SEED") or (1 if cases <= FEW else Random().getrandbits(32)))
    print(f"seed {seed}")  # pytest prints it if the test fails
    return Random(seed)


# Damaged bodies.


@dataclass(frozen=True)
class Body:
    path: str
    kind: str
    sown: Sown


def bodies(hub: Hub) -> list[Body]:
    """Valid bodies for every endpoint with an object, in both formats; the hub would accept some of them."""
    writer = hub.writer()
    writer.client_seq = 10
    good: list[tuple[str, Wire]] = [(path, fullest(wire)) for path, wire in TAKEN.items()]
    good += [("/v1/submit", SubmitRequest(writer.message())), ("/v1/stream", StreamRequest(writer.label, 1, 3))]
    good += [("/v1/receipt", ReceiptRequest(writer.label, 1)), ("/v1/proof", ReceiptRequest(writer.label, 2))]
    found = []
    for path, wire in good:
        plain, text = wire.encode(), wire_json.encode(wire)
        found.append(Body(path, CBOR, Sown(plain, cbor_spans(plain))))
        found.append(Body(path, JSON, Sown(text, json_spans(text))))
    batch = b"".join(writer.next_messages(3))
    return [*found, Body("/tooling/submit-batch", CBOR, Sown(batch, cbor_spans(writer.message().encode())))]


def damaged_body(rng: Random, known: list[Body]) -> tuple[Body, bytes]:
    body = pick(rng, known)
    data = body.sown.data
    for _ in range(int(rng.random() * 4)):
        spans = cbor_spans if body.kind == CBOR else json_spans
        exchange = exchange_item if body.kind == CBOR else exchange_token
        try:
            data = exchange(
                rng, Sown(data, spans(data)), pick(rng, [one for one in known if one.kind == body.kind]).sown
            )
        except (IndexError, ValueError, AssertionError):
            break  # nothing left to change
    if rng.random() < 0.3:
        data = damaged_bytes(rng, data)
    return body, data


def damaged_bytes(rng: Random, data: bytes) -> bytes:
    """Change, drop, double or insert bytes at a few places."""
    for _ in range(1 + int(rng.random() * 3)):
        at, width = int(rng.random() * (len(data) + 1)), 1 + int(rng.random() * 8)
        match int(rng.random() * 5):
            case 0:
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + width :]
            case 2:
                data = data[: at + width] + data[at : at + width] + data[at + width :]
            case 3:
                data = data[:at] + rng.randbytes(width) + data[at:]
            case 4:
                data = data[:at]
    return data


@efforts()
def test_damaged_bodies_are_answered(hub: Hub, cases: int) -> None:
    rng, known = dice(cases), bodies(hub)
    connection = HTTPConnection("127.0.0.1", hub.port, timeout=PATIENCE_S)
    for _ in range(cases):
        body, data = damaged_body(rng, known)
        path = body.path if rng.random() < 0.9 else pick(rng, PATHS)
        method = "POST" if rng.random() < 0.9 else pick(rng, METHODS)
        headers = {"content-type": body.kind if rng.random() < 0.9 else pick(rng, TYPES)}
        if rng.random() < 0.5:
            headers["authorization"] = f"Bearer {TOKEN}"
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        reply = read(answer)
        check_reply(reply, path)
        if answer.will_close:
            connection.close()
    connection.close()


def read(answer: HTTPResponse) -> Reply:
    headers = {name.lower(): text for name, text in answer.getheaders()}
    return Reply(answer.status, headers, answer.read())


# Damaged requests.

WORDS = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b":",
        b"\0",
        b"\xff",
        b"%00",
        b"%2e%2e/",
        b"?",
        b"#",
        b"HTTP/1.1",
        b"HTTP/2.0",
    ),
    *(b"content-length: 0\r\n", b"content-length: 18446744073709551616\r\n", b"transfer-encoding: chunked\r\n"),
    *(b"expect: 100-continue\r\n", b"connection: close\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n"),
    *(b"accept: application/json\r\n", b"content-type: application/json\r\n", b"host: h\r\n", b"x: " + b"y" * 20_000),
    *(b"authorization: veen-upload 00\r\n", b"authorization: Bearer x\r\n", b"0\r\n\r\n", b"ffffffff\r\n", b"GET / "),
]


def requests(hub: Hub) -> list[bytes]:
    """Valid requests of every kind, as bytes."""
    found = []
    for body in bodies(hub):
        lines = [f"POST {body.path} HTTP/1.1", "host: hub", f"content-type: {body.kind}"]
        found.append("\r\n".join([*lines, f"content-length: {len(body.sown.data)}", "", ""]).encode() + body.sown.data)
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body.sown.data), body.sown.data)
        found.append("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode() + chunk)
    for path in PATHS:
        found.append(f"GET {path}?label={'0' * 64}&from=1 HTTP/1.1\r\nhost: hub\r\n\r\n".encode())
    proof = UploadProof(bytes(32), 10, 0, bytes(64)).header()
    path = f"/tooling/attachments/{h(b'attachment').hex()}"
    found.append(f"PUT {path} HTTP/1.1\r\nhost: hub\r\ncontent-length: 10\r\n\r\nattachment".encode())
    found.append(
        f"PUT {path} HTTP/1.1\r\nhost: hub\r\nauthorization: {proof}\r\ncontent-length: 10\r\n\r\nattachment".encode()
    )
    upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    found.append(f"GET /tooling/subscribe?label={'0' * 64} HTTP/1.1\r\nhost: hub\r\n{upgrade}{key}".encode())
    return found


def damaged_request(rng: Random, known: list[bytes]) -> bytes:
    data = pick(rng, known)
    if rng.random() < 0.3:
        data += pick(rng, known)
    for _ in range(int(rng.random() * 3)):
        at = int(rng.random() * len(data))
        data = data[:at] + pick(rng, WORDS) + data[at:]
    if rng.random() < 0.2:
        lines = data.split(b"\r\n")
        rng.shuffle(lines)
        data = b"\r\n".join(lines)
    return damaged_bytes(rng, data) if rng.random() < 0.5 else data


def said(hub: Hub, data: bytes, rng: Random) -> bytes:
    """Everything received for these bytes, sent in one or two pieces, until the hub closes."""
    with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE_S) as connection:
        cut = int(rng.random() * len(data)) if rng.random() < 0.2 else len(data)
        answer = b""
        try:
            connection.sendall(data[:cut])
            connection.sendall(data[cut:])
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                answer += piece
        except TimeoutError:
            raise  # it hangs
        except OSError:
            pass  # the hub closed before everything was sent
        return answer


class Replay:
    """The socket interface that http.client needs."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def first_answer(data: bytes) -> Reply | None:
    """The first response, parsed by http.client; None if the connection ended before it."""
    answer = HTTPResponse(Replay(data))  # type: ignore[arg-type]
    try:
        answer.begin()
        return read(answer)
    except HTTPException:
        return None


@efforts()
def test_damaged_requests_are_answered_or_hung_up_on(hub: Hub, cases: int) -> None:
    rng, known = dice(cases), requests(hub)
    statuses: dict[int, int] = {}
    for _ in range(cases):
        answer = said(hub, damaged_request(rng, known), rng)
        assert b"HTTP/1.1 500" not in answer
        reply = first_answer(answer) if answer.startswith(b"HTTP/1.1 ") else None
        assert reply is not None or not answer.startswith(b"HTTP/1.1 4"), answer[:300]
        if reply is not None and reply.status != 101:
            check_reply(reply, "")
            statuses[reply.status] = statuses.get(reply.status, 0) + 1
    # The requests were damaged in enough ways, and not beyond recognition.
    wanted = {200, 400, 404} if cases == FEW else {200, 400, 404, 413}
    assert statuses.keys() >= wanted, statuses


# Damaged HTTP/2.


def conversation(requests: Callable[[H2Connection], None]) -> bytes:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    requests(client)
    return client.data_to_send()


def ask(method: str, path: str, body: bytes) -> Callable[[H2Connection], None]:
    def requests(client: H2Connection) -> None:
        for _ in range(3):
            stream = client.get_next_available_stream_id()
            fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "hub")]
            client.send_headers(stream, fields, end_stream=not body)
            if body:
                client.send_data(stream, body, end_stream=True)

    return requests


def frames(data: bytes) -> list[bytes]:
    """The preface, then each frame."""
    start = 24
    found = [data[:start]]
    while start < len(data):
        end = start + 9 + int.from_bytes(data[start : start + 3], "big")
        found.append(data[start:end])
        start = end
    return found


@efforts(100)
def test_damaged_http_2_is_answered_or_hung_up_on(hub: Hub, cases: int) -> None:
    rng = dice(cases)
    message = SubmitRequest(hub.writer().message()).encode()
    path = f"/tooling/attachments/{h(b'attachment').hex()}"
    known = [
        frames(conversation(ask(*one)))
        for one in (("POST", "/v1/submit", message), ("GET", "/healthz", b""), ("PUT", path, b"attachment"))
    ]
    for _ in range(cases):
        parts = list(pick(rng, known))
        for _ in range(int(rng.random() * 4)):
            at = 1 + int(rng.random() * (len(parts) - 1))
            match int(rng.random() * 4):
                case 0:
                    parts[at] = damaged_bytes(rng, parts[at])
                case 1:
                    parts.insert(at, pick(rng, pick(rng, known)[1:]))
                case 2:
                    parts[at] = parts[at][:3] + rng.randbytes(2) + parts[at][5:]
                case 3 if len(parts) > 2:
                    del parts[at]
        said(hub, b"".join(parts), rng)
    healthy = said(hub, b"GET /healthz HTTP/1.1\r\nhost: hub\r\n\r\n", rng)
    assert healthy.startswith(b"HTTP/1.1 200 "), healthy
