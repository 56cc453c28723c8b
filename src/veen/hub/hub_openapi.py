"""The hub's HTTP interface as an OpenAPI description, generated from one table and the layouts of the wire objects.

A body is JSON as described, or the same object in CBOR. `tools.openapi_page` writes `docs/openapi.json`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from veen.core import CapPresentation, CapToken, Checkpoint, Limits, Receipt
from veen.core.admission import STATUS
from veen.core.cbor import (
    Array,
    Bool,
    Bstr,
    Bytes,
    Constant,
    Details,
    FieldType,
    ListOf,
    Map,
    Nested,
    Text,
    Uint,
    VersionField,
    Wire,
)
from veen.core.envelopes import (
    AuthorizeResponse,
    CheckpointList,
    CheckpointOrder,
    CheckpointRequest,
    CheckpointResponse,
    ClockAcceptance,
    ConsistencyRequest,
    EpochList,
    Equivocation,
    EquivocationList,
    ErrorEnvelope,
    KeyRelease,
    ProofAtRequest,
    ProofAtResponse,
    ProofRequest,
    ProofResponse,
    ReceiptCheck,
    ReceiptRequest,
    ReceiptResponse,
    ReleasedKeys,
    RevocationRequest,
    RotationRequest,
    StreamList,
    StreamRegistration,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
    TimePlace,
    WitnessRequest,
)
from veen.core.handover import HandOver, HandOverList
from veen.core.hub_identity import ForkOrigin
from veen.core.limits import SERVER_VERSION, WIRE_VERSION
from veen.core.proof_of_work import HEADER
from veen.core.recovery import RecoveryList
from veen.core.retention import Hold, RetentionPolicy, RetentionReport, RetentionRequest, RetentionRules
from veen.core.strict_json import Json
from veen.hub.read_access import is_read

_JSON, _CBOR, _SEQUENCE = "application/json", "application/cbor", "application/cbor-seq"
_OCTETS, _TEXT = "application/octet-stream", "text/plain"
_OPERATOR, _UPLOAD, _WORK, _READ = "operator", "upload", "work", "read"
_HASH: Json = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_SEQ: Json = {"type": "integer", "minimum": 1, "maximum": (1 << 64) - 1}
_UINT: Json = {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1}
_QUERY = {"label": _HASH, "from": _SEQ, "stream": _HASH, "after": _HASH} | dict.fromkeys(
    ("epoch_min", "epoch_max", "hub_ts"), _UINT
)
_OBJECT: Json = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One method of one path: its request, and its response on success."""

    method: str
    path: str
    summary: str
    request: type[Wire] | tuple[type[Wire], ...] | str | None = None  # an object, or bytes of a media type
    response: type[Wire] | str | None = None
    statuses: tuple[int, ...] = (200,)
    query: tuple[str, ...] = ()
    security: tuple[str, ...] = ()  # any of these; not needed if admission is open
    work: bool = False  # needs a proof of work if the operator requires one


ENDPOINTS: tuple[ApiEndpoint, ...] = (
    ApiEndpoint("post", "/v1/submit", "accept a message", SubmitRequest, SubmitResponse, work=True),
    ApiEndpoint("post", "/v1/stream", "a page of a label", StreamRequest, StreamResponse),
    ApiEndpoint("post", "/v1/receipt", "the receipt at a place", ReceiptRequest, ReceiptResponse),
    ApiEndpoint(
        "post", "/v1/proof", "the proof of an entry in the tree that ends with it", ProofRequest, ProofResponse
    ),
    ApiEndpoint("post", "/v1/checkpoint", "the checkpoint of a prefix", CheckpointRequest, CheckpointResponse),
    ApiEndpoint("get", "/healthz", "whether the hub is alive", response=_JSON),
    ApiEndpoint("get", "/readyz", "whether the hub can accept", response=_JSON, statuses=(200, 503)),
    ApiEndpoint("get", "/metrics", "metrics for Prometheus", response=_TEXT),
    ApiEndpoint("get", "/tooling/status", "status and configuration of the hub", response=_JSON),
    ApiEndpoint("get", "/tooling/openapi.json", "this description", response=_JSON),
    ApiEndpoint("get", "/tooling/origin", "where the log of a fork comes from", None, ForkOrigin),
    ApiEndpoint(
        "get",
        "/tooling/handovers",
        "what the log contained at each change of the hub's key",
        None,
        HandOverList,
        query=("label",),
    ),
    ApiEndpoint(
        "post",
        "/tooling/authorize",
        "log a capability; a token without presentation only where the status has bare_tokens",
        (CapPresentation, CapToken),
        AuthorizeResponse,
    ),
    ApiEndpoint(
        "post", "/tooling/streams", "register a stream", StreamRegistration, SubmitResponse, security=(_OPERATOR,)
    ),
    ApiEndpoint(
        "get",
        "/tooling/streams",
        "the registered streams",
        None,
        StreamList,
        query=("after",),
        security=(_OPERATOR,),
    ),
    ApiEndpoint(
        "get",
        "/tooling/epochs",
        "the epochs in which a stream has entries, with the newest checkpoint of each",
        None,
        EpochList,
        query=("stream", "epoch_min", "epoch_max"),
    ),
    ApiEndpoint(
        "get",
        "/tooling/time",
        "the first entry of a label at a time or later, with the receipts that prove it",
        None,
        TimePlace,
        query=("label", "hub_ts"),
    ),
    ApiEndpoint(
        "post",
        "/tooling/clock",
        "follow the wall clock after a jump; the answer is the clock in the status",
        ClockAcceptance,
        _JSON,
        security=(_OPERATOR,),
    ),
    ApiEndpoint(
        "post",
        "/tooling/revoke",
        "revoke a client key or a capability; only where the status has revocation",
        RevocationRequest,
        SubmitResponse,
        security=(_OPERATOR,),
    ),
    ApiEndpoint(
        "post",
        "/tooling/rotate-key",
        "change to another signing key of the keys folder",
        RotationRequest,
        HandOver,
        security=(_OPERATOR,),
    ),
    ApiEndpoint(
        "post",
        "/tooling/release-keys",
        "stop using the retired keys, so that they can be destroyed",
        KeyRelease,
        ReleasedKeys,
        security=(_OPERATOR,),
    ),
    ApiEndpoint("post", "/tooling/limits", "lower limits", Limits, SubmitResponse, security=(_OPERATOR,)),
    ApiEndpoint("get", "/tooling/retention", "the policies and holds in force", None, RetentionRules),
    ApiEndpoint(
        "post",
        "/tooling/retention/policy",
        "log how long payloads and receipts are kept",
        RetentionPolicy,
        SubmitResponse,
        security=(_OPERATOR,),
    ),
    ApiEndpoint(
        "post", "/tooling/retention/hold", "log a legal hold, or its end", Hold, SubmitResponse, security=(_OPERATOR,)
    ),
    ApiEndpoint(
        "post",
        "/tooling/retention/run",
        "prune what the policies allow, or say what would be pruned; answers at the end of the run",
        RetentionRequest,
        RetentionReport,
        security=(_OPERATOR,),
    ),
    ApiEndpoint("post", "/tooling/proof", "the proof of an entry in a later tree", ProofAtRequest, ProofAtResponse),
    ApiEndpoint(
        "post", "/tooling/consistency", "the proof that a tree extends another", ConsistencyRequest, ProofAtResponse
    ),
    ApiEndpoint(
        "post",
        "/tooling/submit-batch",
        "a sequence of messages, each decided on its own",
        _SEQUENCE,
        _SEQUENCE,
        work=True,
    ),
    ApiEndpoint(
        "get",
        "/tooling/subscribe",
        "entries as they commit, over a WebSocket",
        statuses=(101,),
        query=("label", "from"),
    ),
    ApiEndpoint(
        "get",
        "/tooling/checkpoints",
        "the regular checkpoints of a label",
        None,
        CheckpointList,
        query=("label", "from"),
    ),
    ApiEndpoint(
        "get", "/tooling/recoveries", "the recoveries of the hub, for a label", None, RecoveryList, query=("label",)
    ),
    ApiEndpoint("post", "/tooling/witness", "a witness's signature for a checkpoint", WitnessRequest, Checkpoint),
    ApiEndpoint(
        "post",
        "/tooling/checkpoint",
        "store a checkpoint of a label, and let the witnesses of the hub cosign it",
        CheckpointOrder,
        CheckpointResponse,
    ),
    ApiEndpoint(
        "get",
        "/tooling/checkpoint",
        "the checkpoint of all entries of a label",
        None,
        CheckpointResponse,
        query=("label",),
    ),
    ApiEndpoint(
        "get",
        "/tooling/cosigned",
        "the newest checkpoint of a label that a witness cosigned",
        None,
        Checkpoint,
        query=("label",),
    ),
    ApiEndpoint("get", "/tooling/equivocation", "the hub's own contradictions", None, EquivocationList),
    ApiEndpoint("post", "/tooling/equivocation", "two receipts that contradict each other", Equivocation, Equivocation),
    ApiEndpoint(
        "post",
        "/tooling/receipt-check",
        "whether the log has the entry of a receipt",
        Receipt,
        ReceiptCheck,
    ),
    ApiEndpoint("get", "/tooling/attachments/{coid}", "a sealed attachment", response=_OCTETS),
    ApiEndpoint(
        "put",
        "/tooling/attachments/{coid}",
        "store a sealed attachment",
        _OCTETS,
        statuses=(200, 201),
        query=("label",),
        security=(_OPERATOR, _UPLOAD),
    ),
)


def describe() -> dict[str, Json]:
    """The complete description."""
    paths: dict[str, Json] = {}
    for endpoint in ENDPOINTS:
        methods = paths.setdefault(endpoint.path, {})
        assert isinstance(methods, dict)
        methods[endpoint.method] = _operation(endpoint)
    named = [wire for endpoint in ENDPOINTS for of in (endpoint.request, endpoint.response) for wire in _wires(of)]
    return {
        "openapi": "3.1.0",
        "info": {"title": "VEEN hub", "version": SERVER_VERSION, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {wire.__name__: schema(wire) for wire in sorted(_all(named), key=lambda wire: wire.__name__)},
            "securitySchemes": {
                _OPERATOR: {"type": "http", "scheme": "bearer", "description": "the operator's token"},
                _UPLOAD: {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`veen-upload` and an UploadProof in hex",
                },
                _READ: {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`veen-read` and a ReadProof in hex, where the status has `read_access` `signed`",
                },
                _WORK: {
                    "type": "apiKey",
                    "in": "header",
                    "name": HEADER,
                    "description": "a PowCookie in hex, where the hub's status has a pow_difficulty above 0",
                },
            },
        },
    }


def _operation(endpoint: ApiEndpoint) -> dict[str, Json]:
    found: dict[str, Json] = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "responses": {**{str(status): _answer(endpoint) for status in endpoint.statuses}, "default": _REFUSAL},
    }
    parameters = [_parameter("path", "coid", _HASH)] if "{coid}" in endpoint.path else []
    needed = ("label", "stream", "hub_ts")
    parameters += [_parameter("query", name, _QUERY[name], required=name in needed) for name in endpoint.query]
    if parameters:
        found["parameters"] = parameters
    if endpoint.request is not None:
        # A body of bytes may be empty: an empty batch, or an empty attachment.
        found["requestBody"] = {"required": bool(_wires(endpoint.request)), "content": _content(endpoint.request)}
    if endpoint.security:
        found["security"] = [{security: []} for security in endpoint.security]
    elif is_read(endpoint.method.upper(), endpoint.path):
        found["security"] = [{}, {_READ: []}, {_OPERATOR: []}]
    if endpoint.work:
        found["security"] = [{}, {_WORK: []}]
    return found


def _name(endpoint: ApiEndpoint) -> str:
    words = endpoint.path.replace("{coid}", "").replace("/", " ").replace("-", " ").replace(".", " ").split()
    return "_".join([endpoint.method, *words])


def _parameter(place: str, name: str, of: Json, *, required: bool = True) -> Json:
    return {"in": place, "name": name, "required": required, "schema": of}


def _answer(endpoint: ApiEndpoint) -> Json:
    described: dict[str, Json] = {"description": endpoint.summary}
    if endpoint.response is not None:
        described["content"] = _content(endpoint.response)
    return described


def _content(of: type[Wire] | tuple[type[Wire], ...] | str) -> Json:
    if isinstance(of, str):
        return {of: {"schema": _OBJECT} if of == _JSON else {}}
    refs: list[Json] = [_ref(wire) for wire in _wires(of)]
    return {_JSON: {"schema": refs[0] if len(refs) == 1 else {"oneOf": refs}}, _CBOR: {}}


def _wires(of: type[Wire] | tuple[type[Wire], ...] | str | None) -> tuple[type[Wire], ...]:
    """The objects of a request or response; none if it is bytes."""
    if of is None or isinstance(of, str):
        return ()
    return of if isinstance(of, tuple) else (of,)


_REFUSAL: Json = {
    "description": "the error envelope; the code is one of " + ", ".join(sorted(STATUS)),
    "content": {_JSON: {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}, _CBOR: {}},
}


def _all(wires: Iterable[type[Wire]]) -> set[type[Wire]]:
    """The given wire classes and all that they contain."""
    found: set[type[Wire]] = set()
    waiting: list[type[Wire]] = [*wires, ErrorEnvelope]
    while waiting:
        wire = waiting.pop()
        if wire not in found:
            found.add(wire)
            waiting += [nested for kind in wire.LAYOUT.kinds for nested in _nested(kind)]
    return found


def _nested(kind: FieldType) -> tuple[type[Wire], ...]:
    match kind:
        case Nested():
            return (kind.wire,)
        case ListOf():
            return _nested(kind.item)
    return ()


def _ref(wire: type[Wire]) -> Json:
    return {"$ref": f"#/components/schemas/{wire.__name__}"}


def schema(wire: type[Wire]) -> dict[str, Json]:
    """The JSON form of a wire object."""
    layout = wire.LAYOUT
    kinds = layout.kinds
    described: dict[str, Json] = {"description": (wire.__doc__ or "").partition("\n")[0]}
    least = sum(not kind.optional for kind in kinds)
    if isinstance(layout, Array):
        items: list[Json] = [_schema_of(kind) for kind in kinds]
        return described | {"type": "array", "prefixItems": items, "items": False, "minItems": least}
    assert isinstance(layout, Map)
    required: list[Json] = [kind.name for kind in kinds if not kind.optional]
    properties: Json = {kind.name: _schema_of(kind) for kind in kinds}
    return described | {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema_of(kind: FieldType) -> Json:
    match kind:
        case VersionField():
            return {"const": WIRE_VERSION}
        case Constant():
            return {"const": kind.text}
        case Uint():
            return {"type": "integer", "minimum": kind.least, "maximum": kind.most}
        case Bool():
            return {"type": "boolean"}
        case Bstr():
            digits: Json = {"type": "string", "pattern": f"^[0-9a-f]{{{2 * kind.size}}}$"}
            return {"anyOf": [digits, {"type": "null"}]} if kind.nullable else digits
        case Bytes():
            return {"type": "string", "pattern": "^([0-9a-f]{2})*$", "maxLength": 2 * kind.most}
        case Text():
            return {"type": "string", "maxLength": kind.most}
        case ListOf():
            return {
                "type": "array",
                "items": _schema_of(kind.item),
                "minItems": kind.least,
                "maxItems": kind.most,
            }
        case Details():
            value: Json = {"type": ["integer", "string"]}
            return {"type": "object", "additionalProperties": value}
        case Nested():
            return _ref(kind.wire)
    raise TypeError(f"no schema for a {type(kind).__name__}")
