"""OTLP logs: the endpoint `POST /v1/logs` for OpenTelemetry exporters, protocol 1.x, in protobuf and JSON.

A request succeeds once its records are on disk. If the response is lost, the exporter repeats the request, which is
recognized by its digest.

An input records for one origin. Records of another service are rejected, because one client key would represent both.
If every record of a request has a time, the digest of its bytes identifies it, so that a repeated request is
recognized.
"""

import asyncio
import base64
import binascii
import logging
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Self

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from plumbing.background import Tasks
from plumbing.http import App, HttpServer, HttpSettings, Request, Respond, Response, peer_address
from veen.core import Malformed, Unavailable, canonical_json
from veen.core.canonical_json import Plain
from veen.core.hashing import h
from veen.core.limits import MAX_MSG_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.normalize import Defaults
from veen.recorder.spool import MAX_BATCH_BYTES, SpoolWriter

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SUBJECT_ATTRIBUTES = ("enduser.id", "user.id")
_SERVICE, _INSTANCE, _EVENT_NAME = "service.name", "service.instance.id", "event.name"
_DEFAULT_SERVICE = "unknown_service"  # the SDK default without a configured name
_IDS = ("traceId", "spanId")
_MS = 1_000_000
_MAX_DEPTH = 32
MAX_RECORDS = 16_384  # per request: twice the default batch of a collector


class RequestTooLarge(ValueError):
    """A request exceeds a limit."""


@dataclass(frozen=True, slots=True)
class OtlpExport:
    """The events of a request, its digest, and the number of rejected records with one reason for all."""

    events: tuple[RecordEvent, ...]
    digest: bytes | None
    rejected: int = 0
    reason: str = ""

    def response(self) -> ExportLogsServiceResponse:
        if not self.rejected:
            return ExportLogsServiceResponse()
        partial = ExportLogsPartialSuccess(rejected_log_records=self.rejected, error_message=self.reason)
        return ExportLogsServiceResponse(partial_success=partial)


def decode(data: bytes, content_type: str) -> ExportLogsServiceRequest:
    """Decode a request. Raises `Malformed`."""
    request = ExportLogsServiceRequest()
    try:
        if content_type == PROTOBUF:
            request.ParseFromString(data)
        else:
            found = canonical_json.parse(data, "OTLP request", exact=True)
            if not isinstance(found, dict):
                raise ValueError("not a JSON object")
            converted: Any = _with_base64_ids(found, _MAX_DEPTH + 1)
            json_format.ParseDict(converted, request, ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise Malformed("OTLP request", f"{type(error).__name__}: {error}"[:200]) from None
    return request


def encode(response: ExportLogsServiceResponse, content_type: str) -> bytes:
    """Encode a response in the format of the request."""
    if content_type == PROTOBUF:
        return response.SerializeToString()
    return str(json_format.MessageToJson(response, indent=None)).encode()


def _with_base64_ids(value: Plain, depth: int) -> Plain:
    """Convert ids from hex, as in OTLP JSON, to base64, as in protobuf JSON."""
    if depth == 0:
        raise Malformed("OTLP request", "nested too deep")
    if isinstance(value, list):
        return [_with_base64_ids(one, depth - 1) for one in value]
    if not isinstance(value, dict):
        return value
    for name in value:
        name.encode()  # protobuf fails with an error of its own if a name is half a surrogate pair
    return {
        name: _base64(one) if name in _IDS and isinstance(one, str) else _with_base64_ids(one, depth - 1)
        for name, one in value.items()
    }


def _base64(text: str) -> str:
    try:
        return base64.b64encode(binascii.unhexlify(text)).decode()
    except (binascii.Error, ValueError):
        raise Malformed("OTLP request", f"{text[:40]!r} is not a hex id") from None


def export(request: ExportLogsServiceRequest, data: bytes, defaults: Defaults, now_ms: int) -> OtlpExport:
    """The events of a request whose bytes are `data`. Raises `RequestTooLarge`."""
    count = sum(len(scope.log_records) for resource in request.resource_logs for scope in resource.scope_logs)
    if count > MAX_RECORDS:
        raise RequestTooLarge(f"{count} records in one request, the limit is {MAX_RECORDS}")
    events: list[RecordEvent] = []
    rejected, reason, timed, room = 0, "", True, MAX_BATCH_BYTES
    for resource, scope, record in _records(request):
        service = str(resource.get(_SERVICE) or "")
        if service and service != defaults.origin and not service.startswith(_DEFAULT_SERVICE):
            rejected += 1
            reason = f"this input records for {defaults.origin}, not for {normalize.name(service, '')}"
            continue
        timed = timed and bool(record.time_unix_nano or record.observed_time_unix_nano)
        events.append(_event(resource, scope, record, defaults, now_ms))
        room -= len(events[-1].content)  # every event repeats its resource, which may be most of the request
        if room < 0:
            raise RequestTooLarge(f"the events of one request have more than {MAX_BATCH_BYTES} bytes")
    return OtlpExport(tuple(events), h(data) if timed and events else None, rejected, reason)


def _records(
    request: ExportLogsServiceRequest,
) -> Iterator[tuple[Mapping[str, object], InstrumentationScope, LogRecord]]:
    for resource in request.resource_logs:
        attributes = _attributes(resource.resource.attributes)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                yield attributes, scope.scope, record


def _event(
    resource: Mapping[str, object],
    scope: InstrumentationScope,
    record: LogRecord,
    defaults: Defaults,
    now_ms: int,
) -> RecordEvent:
    attributes = _attributes(record.attributes)
    named = (str(attributes[name]) for name in SUBJECT_ATTRIBUTES if attributes.get(name))
    subject = next(named, "") or defaults.subject_id or str(resource.get(_INSTANCE) or "")
    event_type = record.event_name or str(attributes.get(_EVENT_NAME) or "")
    nanoseconds = record.time_unix_nano or record.observed_time_unix_nano
    payload: dict[str, object] = {
        "body": _value(record.body),
        "severity_number": int(record.severity_number),
        "severity_text": record.severity_text,
        "attributes": attributes,
        "resource": resource,
        "scope": {"name": scope.name, "version": scope.version},
        "time_unix_nano": str(record.time_unix_nano),
        "observed_time_unix_nano": str(record.observed_time_unix_nano),
    }
    if record.trace_id:
        payload |= {"trace_id": record.trace_id.hex(), "span_id": record.span_id.hex(), "flags": record.flags}
    time_ms = nanoseconds // _MS if nanoseconds else now_ms
    return defaults.event(payload, time_ms, subject=subject, event_type=event_type)


def _attributes(listed: Iterable[KeyValue]) -> dict[str, object]:
    return {one.key: _value(one.value) for one in listed}


def _value(value: AnyValue) -> object:
    match value.WhichOneof("value"):
        case "array_value":
            return [_value(one) for one in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case None:
            return None
        case name:
            return getattr(value, name)


PATH = "/v1/logs"
MAX_REQUEST_BYTES = 4 * MAX_MSG_BYTES
MAX_UNPACKED_BYTES = 8 * MAX_MSG_BYTES
MAX_CONNECTIONS = 128
IDLE_S = 60.0  # between requests
HANDSHAKE_S = 10.0
REQUEST_S = 30.0  # for a whole request, and for sending its response
_STOP_S = 1.0
_NOTIFY_EVERY_S = 60.0
_RETRY_AFTER = b"retry-after", b"1"


class _Rejected(Exception):
    """A rejected request, with its response."""

    def __init__(self, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(reason)
        self.response = Response(status, reason.encode(), headers=headers)


class OtlpServer(App):
    """The OTLP endpoint, as an async context manager. It is the app of an HTTP server."""

    def __init__(
        self,
        writer: SpoolWriter,
        defaults: Defaults,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        refusal: Callable[[RecordEvent], str | None] = lambda event: None,
        notify: Callable[[str], None] = lambda text: None,
        idle_s: float = IDLE_S,
        request_s: float = REQUEST_S,
        handshake_s: float = HANDSHAKE_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`refusal` returns why an event will be set aside instead of recorded; the exporter is informed.

        A request that takes longer than `request_s` is closed without a response; the exporter repeats it.
        """
        self._writer = writer
        self._refusal = refusal
        self._defaults = defaults
        self._address = host, port
        self._tls = tls
        self._settings = HttpSettings(
            max_connections=max_connections,
            makes_room=True,
            max_connections_per_address=max_connections,
            handshake_timeout_s=handshake_s,
            header_timeout_s=request_s / 2,
            body_timeout_s=request_s / 2,
            write_timeout_s=request_s,
            min_bytes_per_s=1 << 40,  # a longer body gets no more time
            idle_timeout_s=idle_s,
        )
        self._notify = notify
        self._notified_at = float("-inf")
        self._local = peer_address.is_loopback(host)
        self._lock = asyncio.Lock()
        self._tasks = Tasks()
        self._server = HttpServer(_log_bug)
        self._server.on_full = self._on_full

    async def __aenter__(self) -> Self:
        await self._server.start(self, *self._address, tls=self._tls, settings=self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(_STOP_S)
        await self._tasks.finish()

    @property
    def port(self) -> int:
        return self._server.port

    def body_limit(self, method: str, path: str) -> int | None:
        return MAX_REQUEST_BYTES

    def too_large(self, head: Request) -> Response:
        return Response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the request has more than %d bytes" % MAX_REQUEST_BYTES)

    def refused(self, status: int, reason: str, head: Request) -> Response | None:
        """Exporters retry after a broken connection, and drop the data after a 408."""
        if status == HTTPStatus.REQUEST_TIMEOUT:
            return None
        return Response(status, (reason or HTTPStatus(status).phrase).encode())

    def websocket(self, head: Request) -> Response:
        return Response(HTTPStatus.NOT_FOUND, f"unknown path; use {PATH}".encode())

    def handle(self, request: Request, respond: Respond) -> None:
        try:
            form, encoding = self._check(request)
        except _Rejected as rejected:
            respond(rejected.response)
            return
        self._tasks.start(self._record(request.body, encoding, form, respond))

    def _check(self, request: Request) -> tuple[str, str]:
        """Content type and encoding of an acceptable request."""
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers.items()}
        # A web page may have sent the browser to a loopback endpoint: reject cross-origin requests.
        if self._local and not peer_address.is_local_request(headers.get("host", ""), headers.get("origin")):
            raise _Rejected(403, "the Host or Origin header names another endpoint")
        if request.path != PATH:
            raise _Rejected(404, f"unknown path; use {PATH}")
        if request.method != "POST":
            raise _Rejected(405, "use POST", (b"allow", b"POST"))
        form = headers.get("content-type", "").partition(";")[0].strip().lower()
        if form not in (PROTOBUF, JSON):
            raise _Rejected(415, f"the content type must be {PROTOBUF} or {JSON}")
        return form, headers.get("content-encoding", "identity").strip().lower()

    async def _record(self, body: bytes, encoding: str, form: str, respond: Respond) -> None:
        async with self._lock:  # one at a time: decoding can take seconds and many times the memory of the request
            try:
                response = await asyncio.to_thread(self._store, body, encoding, form)
            except _Rejected as rejected:
                response = rejected.response
            except Exception as error:  # noqa: BLE001  the exporter gets a response in any case
                _log_bug(PATH, error)
                response = Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error")
        respond(response)

    def _on_full(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._notified_at >= _NOTIFY_EVERY_S:
            self._notified_at = now
            most = self._settings.max_connections
            self._notify(f"all {most} connections are in use; each new one closes the one idle for longest")

    def _store(self, body: bytes, encoding: str, form: str) -> Response:
        """Runs in a thread, so that other connections are served meanwhile."""
        data = _unpacked(body, encoding)
        try:
            exported = export(decode(data, form), data, self._defaults, time.time_ns() // _MS)
            kept = self._writer.append(exported.events, exported.digest, again=True)
        except RequestTooLarge as error:
            raise _Rejected(413, str(error)) from None
        except Unavailable:
            raise _Rejected(503, "the disk failed", _RETRY_AFTER) from None
        except (Malformed, ValueError) as error:
            raise _Rejected(400, str(error)) from None
        if not kept:
            raise _Rejected(503, "the spool is full", _RETRY_AFTER)
        return Response(200, encode(self._with_refusals(exported).response(), form), form.encode())

    def _with_refusals(self, exported: OtlpExport) -> OtlpExport:
        """Count events that will be set aside as rejected."""
        reasons = [reason for event in exported.events if (reason := self._refusal(event)) is not None]
        if not reasons:
            return exported
        reason = f"{exported.reason}; set aside: {reasons[0]}" if exported.reason else f"set aside: {reasons[0]}"
        return replace(exported, rejected=exported.rejected + len(reasons), reason=reason)


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise _Rejected(415, f"unsupported content encoding {encoding[:40]!r}; use gzip")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = unpacker.decompress(body, MAX_UNPACKED_BYTES + 1)
    except zlib.error:
        raise _Rejected(400, "the body is not gzip") from None
    if len(data) > MAX_UNPACKED_BYTES:
        raise _Rejected(413, f"the request has more than {MAX_UNPACKED_BYTES} bytes when unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise _Rejected(400, "the body is not one complete gzip member")
    return data


def _log_bug(place: str, error: BaseException) -> None:
    logging.getLogger("veen.recorder").error("bug in the OTLP endpoint at %s", place, exc_info=error)
