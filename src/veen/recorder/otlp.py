"""OTLP logs: decode requests in protobuf and JSON into events. OpenTelemetry protocol 1.x.

An input records for one origin. Records of another service are rejected, because one client key would represent both.
If every record of a request has a time, the digest of its bytes identifies it, so that a repeated request is
recognized.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from veen.core import Malformed, canonical_json
from veen.core.canonical_json import Plain
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.normalize import Defaults
from veen.recorder.spool import MAX_BATCH_BYTES

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
            converted = {name: _with_base64_ids(one, _MAX_DEPTH) for name, one in found.items()}
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
