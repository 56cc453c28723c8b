"""OTLP: requests of exporters in both formats, and the responses of the endpoint."""

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber

from tests.full_disk import no_file_longer_than
from tests.http.certificates import write_certificate
from tests.hub.client import PATIENCE_S
from veen.core import Malformed
from veen.overlays.record import RecordEvent
from veen.recorder import SpoolWriter, otlp, spool
from veen.recorder.normalize import Defaults
from veen.recorder.otlp import MAX_REQUEST_BYTES, MAX_UNPACKED_BYTES, OtlpServer

DEFAULTS = Defaults("shop", "otel.log")
NOW = 7
TIME = 1_700_000_000_123_456_789


def request(*bodies: str, service: str | None = "shop", time: int = TIME) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    logs = made.resource_logs.add()
    if service is not None:
        logs.resource.attributes.add(key="service.name", value=AnyValue(string_value=service))
    scope = logs.scope_logs.add()
    scope.scope.name = "lib"
    for body in bodies:
        scope.log_records.add(time_unix_nano=time, body=AnyValue(string_value=body))
    return made


def exported(made: ExportLogsServiceRequest) -> otlp.OtlpExport:
    return otlp.export(made, made.SerializeToString(), DEFAULTS, NOW)


def test_a_record_is_an_event() -> None:
    made = request("hi")
    record = made.resource_logs[0].scope_logs[0].log_records[0]
    record.event_name = "login"
    record.severity_text, record.severity_number = "WARN", SeverityNumber.SEVERITY_NUMBER_WARN
    record.trace_id, record.span_id = bytes(range(16)), bytes(range(8))
    record.attributes.add(key="enduser.id", value=AnyValue(string_value="alice"))
    record.attributes.add(key="big", value=AnyValue(int_value=2**60))
    record.attributes.add(key="raw", value=AnyValue(bytes_value=b"\x01\x02"))
    nested = KeyValueList(values=[KeyValue(key="x", value=AnyValue(double_value=1.5))])
    listed = ArrayValue(values=[AnyValue(bool_value=True), AnyValue(kvlist_value=nested), AnyValue()])
    record.attributes.add(key="many", value=AnyValue(array_value=listed))
    (event,) = exported(made).events
    value = event.value()
    assert isinstance(value, dict)
    assert (event.subject_id, event.event_type, event.origin) == ("alice", "login", "shop")
    assert event.event_time == TIME // 10**6
    assert value["attributes"] == {
        "enduser.id": "alice",
        "big": str(2**60),
        "raw": "0102",
        "many": [True, {"x": 1.5}, None],
    }
    assert (value["body"], value["severity_text"], value["trace_id"]) == ("hi", "WARN", bytes(range(16)).hex())
    assert value["time_unix_nano"] == str(TIME)


def test_json_and_protobuf_give_the_same_events() -> None:
    made = request("hi", "ho")
    record = made.resource_logs[0].scope_logs[0].log_records[0]
    record.trace_id, record.span_id = bytes(range(16)), bytes(range(8))
    shown = json.loads(json_format.MessageToJson(made))
    (listed,) = shown["resourceLogs"][0]["scopeLogs"]
    listed["logRecords"][0] |= {"traceId": bytes(range(16)).hex(), "spanId": bytes(range(8)).hex().upper()}
    assert otlp.decode(json.dumps(shown).encode(), otlp.JSON) == made
    assert otlp.decode(made.SerializeToString(), otlp.PROTOBUF) == made


def test_records_of_another_service_are_rejected_and_unnamed_ones_accepted() -> None:
    mixed = request("mine")
    mixed.MergeFrom(request("theirs", "theirs too", service="bank"))
    found = exported(mixed)
    assert [event.origin for event in found.events] == ["shop"]
    assert (found.rejected, "bank" in found.reason) == (2, True)
    assert found.response().partial_success.rejected_log_records == 2
    for nameless in (None, "", "unknown_service:python"):
        assert len(exported(request("x", service=nameless)).events) == 1


def test_a_repeated_request_is_recognized_only_if_each_record_has_a_time() -> None:
    assert exported(request("x")).digest == exported(request("x")).digest is not None
    assert exported(request("y")).digest != exported(request("x")).digest
    assert exported(request("x", time=0)).digest is None
    assert exported(request("x", time=0)).events[0].event_time == NOW


def test_a_request_has_a_bound_on_its_records() -> None:
    assert len(exported(request(*[""] * 10)).events) == 10
    most = request(*[""] * otlp.MAX_RECORDS, service="bank")  # rejecting records is fast
    assert exported(most).rejected == otlp.MAX_RECORDS
    most.MergeFrom(request("one more"))
    with pytest.raises(otlp.RequestTooLarge, match="records"):
        exported(most)


def test_a_large_resource_repeated_by_every_record_is_bounded() -> None:
    made = request(*["x"] * 40)
    made.resource_logs[0].resource.attributes.add(key="k", value=AnyValue(string_value="y" * (1 << 19)))
    with pytest.raises(otlp.RequestTooLarge, match="bytes"):
        exported(made)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"\xff\xff", otlp.PROTOBUF),
        (b"", otlp.JSON),
        (b"[]", otlp.JSON),
        (b'{"resourceLogs":5}', otlp.JSON),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"traceId":"xyz"}]}]}]}', otlp.JSON),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"-1"}]}]}]}', otlp.JSON),
        (b'{"a":' + b"[" * 60 + b"]" * 60 + b"}", otlp.JSON),
    ],
)
def test_an_invalid_request_is_malformed(data: bytes, form: str) -> None:
    with pytest.raises(Malformed):
        otlp.decode(data, form)


def asked(place: Path, work: Callable[[httpx.AsyncClient], Awaitable[None]], **bounds: int) -> list[RecordEvent]:
    """The events in the spool of an endpoint after some requests."""

    async def run() -> None:
        writer = SpoolWriter(place / "spool", sync=True, **bounds)
        async with (
            OtlpServer(writer, DEFAULTS, "127.0.0.1", 0) as server,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client,
        ):
            await work(client)
        writer.close()

    asyncio.run(run())
    paths = spool.segments(place / "spool")
    return [one for path in paths for batch in spool.batches(path) for one in batch.events]


LOGS = b"POST /v1/logs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def endpoint(place: Path, **settings: Any) -> AsyncIterator[OtlpServer]:
    writer = SpoolWriter(place / "spool", sync=True)
    async with OtlpServer(writer, DEFAULTS, "127.0.0.1", 0, **settings) as server:
        yield server
    writer.close()


async def drip_until_closed(port: int, data: bytes) -> None:
    """Send all but the last bytes of a request, then one byte at a time, until the server hangs up."""
    reader, stream = await asyncio.open_connection("127.0.0.1", port)
    try:
        stream.write(data)
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            stream.write(b"x")
            await asyncio.wait([ended], timeout=0.02)
        with suppress(ConnectionError):
            assert ended.result() == b""
    finally:
        stream.transport.abort()


async def exports(port: int, **options: Any) -> int:
    scheme = "https" if options else "http"
    async with httpx.AsyncClient(base_url=f"{scheme}://127.0.0.1:{port}", timeout=PATIENCE_S, **options) as client:
        data = request("good").SerializeToString()
        return (await client.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))).status_code


@pytest.mark.parametrize(
    "begun",
    [
        b"POST /",
        LOGS + b"x-filler: ",
        LOGS + b"content-length: 100000\r\n\r\n",
        LOGS + b"transfer-encoding: chunked\r\n\r\nfffff\r\n",
    ],
    ids=["target", "head", "body", "chunk"],
)
def test_a_slow_request_is_closed_at_its_deadline_while_others_are_served(place: Path, begun: bytes) -> None:
    async def run() -> None:
        async with endpoint(place, request_s=0.5) as server, asyncio.timeout(PATIENCE_S):
            slow = [asyncio.create_task(drip_until_closed(server.port, begun)) for _ in range(8)]
            assert await exports(server.port) == 200
            await asyncio.gather(*slow)

    asyncio.run(run())


def test_a_full_endpoint_closes_the_connection_that_finished_nothing_for_longest(place: Path) -> None:
    async def run() -> None:
        async with endpoint(place, max_connections=2) as server, asyncio.timeout(PATIENCE_S):
            url = f"http://127.0.0.1:{server.port}"
            silent, stream = await asyncio.open_connection("127.0.0.1", server.port)
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as busy:
                given: dict[str, Any] = {"content": request("one").SerializeToString(), "headers": form(otlp.PROTOBUF)}
                first = await busy.post("/v1/logs", **given)
                own = first.extensions["network_stream"].get_extra_info("client_addr")
                assert await exports(server.port) == 200
                with suppress(ConnectionError):
                    assert await silent.read() == b""
                again = await busy.post("/v1/logs", **given)
                assert again.extensions["network_stream"].get_extra_info("client_addr") == own
            stream.transport.abort()

    asyncio.run(run())


def test_connections_count_before_their_tls_handshake_and_make_room_for_one_that_finishes_it(place: Path) -> None:
    cert, key = write_certificate(place)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    trust = ssl.create_default_context(cafile=str(cert))
    trust.check_hostname = False
    notices: list[str] = []

    async def run() -> None:
        settings = {"tls": tls, "max_connections": 2, "notify": notices.append}
        async with endpoint(place, **settings) as server, asyncio.timeout(PATIENCE_S):
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            assert await exports(server.port, verify=trust) == 200
            with suppress(ConnectionError):
                assert await silent[0][0].read() == b""
            for _, stream in silent:
                stream.transport.abort()
        assert notices == ["all 2 connections are in use; each new one closes the one idle for longest"]

    asyncio.run(run())


def test_a_tls_handshake_that_never_ends_is_closed(place: Path) -> None:
    cert, key = write_certificate(place)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)

    async def run() -> None:
        async with endpoint(place, tls=tls, handshake_s=0.2) as server, asyncio.timeout(PATIENCE_S):
            reader, stream = await asyncio.open_connection("127.0.0.1", server.port)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            stream.transport.abort()

    asyncio.run(run())


def form(content_type: str, **headers: str) -> dict[str, str]:
    return {"content-type": content_type, **{name.replace("_", "-"): text for name, text in headers.items()}}


def test_an_exporter_gets_a_response_in_its_format_once_records_are_on_disk(place: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        data = request("one").SerializeToString()
        answer = await client.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))
        assert (answer.status_code, answer.headers["content-type"]) == (200, otlp.PROTOBUF)
        assert ExportLogsServiceResponse.FromString(answer.content) == ExportLogsServiceResponse()
        shown = json_format.MessageToJson(request("two")).encode()
        packed = gzip.compress(shown, mtime=0)
        headers = form(f"{otlp.JSON}; charset=utf-8", content_encoding="gzip")
        answer = await client.post("/v1/logs", content=packed, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {})
        answer = await client.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))
        assert answer.status_code == 200  # the first again, as after a lost response
        answer = await client.post(
            "/v1/logs", content=request("x", service="bank").SerializeToString(), headers=form(otlp.PROTOBUF)
        )
        assert ExportLogsServiceResponse.FromString(answer.content).partial_success.rejected_log_records == 1

    assert [event.value()["body"] for event in asked(place, work)] == ["one", "two"]  # type: ignore[call-overload, index]


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "status"),
    [
        ("GET", "/v1/logs", {}, b"", 405),
        ("POST", "/v1/traces", form(otlp.JSON), b"{}", 404),
        ("POST", "/v1/logs", {}, b"{}", 415),
        ("POST", "/v1/logs", form("text/plain"), b"{}", 415),
        ("POST", "/v1/logs", form(otlp.JSON), b"{", 400),
        ("POST", "/v1/logs", form(otlp.PROTOBUF), b"\xff", 400),
        ("POST", "/v1/logs", form(otlp.JSON, content_encoding="br"), b"{}", 415),
        ("POST", "/v1/logs", form(otlp.JSON, content_encoding="gzip"), b"{}", 400),
        ("POST", "/v1/logs", form(otlp.JSON, content_encoding="gzip"), gzip.compress(b"{}", mtime=0)[:-1], 400),
        ("POST", "/v1/logs", form(otlp.JSON, content_encoding="gzip"), gzip.compress(b"{}", mtime=0) + b"x", 400),
        ("POST", "/v1/logs", form(otlp.JSON), b" " * (MAX_REQUEST_BYTES + 1), 413),
        ("POST", "/v1/logs", form(otlp.PROTOBUF), request(*[""] * (otlp.MAX_RECORDS + 1)).SerializeToString(), 413),
        ("POST", "/v1/logs", form(otlp.JSON, host="evil.com"), b"{}", 403),
        ("POST", "/v1/logs", form(otlp.JSON, host="127.evil.com:4318"), b"{}", 403),
        ("POST", "/v1/logs", form(otlp.JSON, host="127.0.0.1.evil.com"), b"{}", 403),
        ("POST", "/v1/logs", form(otlp.JSON, host="[::1"), b"{}", 403),
        ("POST", "/v1/logs", form(otlp.JSON, host=""), b"{}", 403),
        ("POST", "/v1/logs", form(otlp.JSON, origin="http://evil.com"), b"{}", 403),
        ("POST", "/v1/logs", form(otlp.JSON, origin="null"), b"{}", 403),
        (
            "POST",
            "/v1/logs",
            form(otlp.JSON, content_encoding="gzip"),
            gzip.compress(bytes(MAX_UNPACKED_BYTES + 1)),
            413,
        ),
    ],
)
def test_other_requests_are_rejected_and_nothing_is_stored(
    place: Path, method: str, path: str, headers: dict[str, str], content: bytes, status: int
) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        answer = await client.request(method, path, content=content, headers=headers)
        assert (answer.status_code, bool(answer.content)) == (status, True)
        again = await client.post("/v1/logs", content=b"{}", headers=form(otlp.JSON))
        assert again.status_code == 200

    assert asked(place, work) == []


@pytest.mark.parametrize("named", ["localhost", "127.0.0.1:4318", "[::1]:4318", "LOCALHOST:1"])
def test_the_endpoint_accepts_every_name_of_this_machine(place: Path, named: str) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        headers = form(otlp.JSON, host=named, origin=f"http://{named}")
        assert (await client.post("/v1/logs", content=b"{}", headers=headers)).status_code == 200

    assert asked(place, work) == []


def test_other_requests_are_answered_while_a_large_one_is_decoded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, answered = Event(), Event()
    decode = otlp.decode

    def slow(data: bytes, content_type: str) -> ExportLogsServiceRequest:
        reading.set()
        answered.wait()
        return decode(data, content_type)

    async def work(client: httpx.AsyncClient) -> None:
        monkeypatch.setattr(otlp, "decode", slow)
        large = asyncio.create_task(client.post("/v1/logs", content=b"{}", headers=form(otlp.JSON)))
        await asyncio.to_thread(reading.wait)
        try:
            assert (await client.get("/v1/logs")).status_code == 405
            assert not large.done()
        finally:
            answered.set()
        assert (await large).status_code == 200

    asked(place, work)


def test_a_full_disk_makes_the_exporter_retry_and_nothing_is_lost(place: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        data = request("x" * 500).SerializeToString()
        with no_file_longer_than(100):
            answer = await client.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        answer = await client.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))
        assert answer.status_code == 200

    assert len(asked(place, work)) == 1


def test_a_full_spool_makes_the_exporter_retry(place: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        data = request("x" * 500).SerializeToString()
        answer = await client.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

    assert asked(place, work, max_bytes=400) == []


def test_invalid_http_is_answered_and_closed(place: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        reader, stream = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        stream.write(b"\x16\x03\x01 not http\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        stream.close()

    assert asked(place, work) == []
