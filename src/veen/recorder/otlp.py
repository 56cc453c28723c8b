"""OTLP logs: requests in protobuf and in JSON, and the events of their records. OpenTelemetry protocol 1.x.

One service speaks for one origin: records of another service than the one this input is for are rejected, because one
client key would stand for both. A request that is sent again after a lost answer is known by its bytes where each of
its records has a time.
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
_NAMELESS = "unknown_service"  # what an SDK says that was told no name
_IDS = ("traceId", "spanId")
_MS = 1_000_000
_DEEPEST = 32
MAX_RECORDS = 16_384  # of one request: twice what a collector sends in one by default


class TooMuch(ValueError):
    """More than one request may hold."""


@dataclass(frozen=True, slots=True)
class OtlpExport:
    """The events of a request, what it is known by, and how many records were rejected, with one reason for all."""

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
    """A request. Raises `Malformed`."""
    request = ExportLogsServiceRequest()
    try:
        if content_type == PROTOBUF:
            request.ParseFromString(data)
        else:
            found = canonical_json.parse(data, "OTLP request", exact=True)
            if not isinstance(found, dict):
                raise ValueError("not a JSON object")
            converted = {name: _with_base64_ids(one, _DEEPEST) for name, one in found.items()}
            json_format.ParseDict(converted, request, ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise Malformed("OTLP request", f"{type(error).__name__}: {error}"[:200]) from None
    return request


def encode(response: ExportLogsServiceResponse, content_type: str) -> bytes:
    """An answer in the form of the request."""
    if content_type == PROTOBUF:
        return response.SerializeToString()
    return str(json_format.MessageToJson(response, indent=None)).encode()


def _with_base64_ids(value: Plain, depth: int) -> Plain:
    """Ids are hex in OTLP's JSON, and base64 in that of protobuf."""
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
        raise Malformed("OTLP request", f"{text[:40]!r} is no id in hex") from None


def export(request: ExportLogsServiceRequest, data: bytes, defaults: Defaults, now_ms: int) -> OtlpExport:
    """The events of a request whose bytes are `data`. Raises `TooMuch`."""
    count = sum(len(scope.log_records) for resource in request.resource_logs for scope in resource.scope_logs)
    if count > MAX_RECORDS:
        raise TooMuch(f"{count} records in one request, above {MAX_RECORDS}")
    events: list[RecordEvent] = []
    rejected, reason, timed, room = 0, "", True, MAX_BATCH_BYTES
    for resource, scope, record in _records(request):
        service = str(resource.get(_SERVICE) or "")
        if service and service != defaults.origin and not service.startswith(_NAMELESS):
            rejected += 1
            reason = f"this input records for {defaults.origin}, and not for {normalize.name(service, '')}"
            continue
        timed = timed and bool(record.time_unix_nano or record.observed_time_unix_nano)
        events.append(_event(resource, scope, record, defaults, now_ms))
        room -= len(events[-1].content)  # every record repeats its resource, which may be most of the request
        if room < 0:
            raise TooMuch(f"the records of one request come to more than {MAX_BATCH_BYTES} bytes")
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
    return RecordEvent(
        normalize.name(subject, defaults.subject),
        normalize.name(event_type, defaults.event_type),
        nanoseconds // _MS if nanoseconds else now_ms,
        defaults.origin,
        normalize.payload_of(payload),
    )


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
