"""Responses of the hub: one object or one error, in the format of the request. Spec §10.3, §10.6."""

from http import HTTPStatus
from typing import TypeVar

from plumbing.http.message import Request, Response
from veen.core import Malformed, Refused, Unavailable, Unverified, wire_json
from veen.core.admission import STATUS
from veen.core.cbor import Wire
from veen.core.envelopes import ErrorEnvelope
from veen.core.limits import MAX_TEXT_BYTES
from veen.hub.conditions import Reason, public_text

W = TypeVar("W", bound=Wire)

CBOR = b"application/cbor"
CBOR_SEQ = b"application/cbor-seq"
JSON = b"application/json"

# Codes for requests that the HTTP server rejects itself.
FRONT_CODES: dict[int, str] = {
    400: "E.BAD_REQUEST",
    408: "E.UNAVAILABLE",
    413: "E.LIMIT",
    414: "E.LIMIT",
    417: "E.BAD_REQUEST",
    431: "E.LIMIT",
    500: "E.UNAVAILABLE",
    501: "E.BAD_REQUEST",
    503: "E.UNAVAILABLE",
    505: "E.BAD_REQUEST",
}
_RETRY_AFTER_S = 1


def wants_json(request: Request) -> bool:
    """Whether the body, and so the answer, is JSON. For a request without body: whether it accepts JSON."""
    given = request.headers.get(b"content-type")
    if given is not None:
        return given.split(b";")[0].strip().lower() == JSON
    return request.method != "POST" and b"json" in request.headers.get(b"accept", b"").lower()


def answer(wire: Wire, *, as_json: bool, status: int = 200) -> Response:
    return Response(status, wire_json.encode(wire), JSON) if as_json else Response(status, wire.encode(), CBOR)


def refusal(error: Refused, *, as_json: bool = False, status: int | None = None) -> Response:
    """The error envelope. The default status is that of the error code."""
    headers = () if error.retry_after is None else ((b"retry-after", str(error.retry_after).encode()),)
    envelope = envelope_of(error)
    body = wire_json.encode(envelope) if as_json else envelope.encode()
    return Response(status or STATUS[error.code], body, JSON if as_json else CBOR, headers)


def front_refusal(status: int, reason: str, head: Request) -> Response:
    """The error envelope for a malformed request. The format follows the headers, or else the path."""
    code = FRONT_CODES[status]
    wait = _RETRY_AFTER_S if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    given = head.headers.keys() & {b"content-type", b"accept"}
    as_json = wants_json(head) if given else not head.path.startswith(("/v1/", "/tooling/"))
    refused = Refused(code, reason or HTTPStatus(status).phrase.lower(), retry_after=wait)
    return refusal(refused, as_json=as_json, status=status)


def envelope_of(error: Refused) -> ErrorEnvelope:
    return ErrorEnvelope.of(
        Refused(
            error.code,
            error.message.encode()[:MAX_TEXT_BYTES].decode(errors="ignore"),
            stage=error.stage,
            detail_enum=error.detail_enum,
            detail=error.detail,
            retry_after=error.retry_after,
        )
    )


def as_refused(error: Malformed | Unverified | Unavailable | Refused) -> Refused:
    """Map our errors to an error code. A test proves that all are covered."""
    match error:
        case Refused():
            return error
        case Malformed():
            return Refused("E.BAD_REQUEST", f"{error.what}: {error.reason}")
        case Unverified():
            return Refused("E.FORBIDDEN", f"{error.what}: {error.reason}")
        case Unavailable():
            # Its text may contain a path, which belongs in the log only.
            return Refused("E.UNAVAILABLE", public_text(Reason.STORAGE, error), retry_after=1)


def decode_request(cls: type[W], body: bytes, as_json: bool) -> W:
    """Decode the request body. Raises `Refused`."""
    try:
        return wire_json.decode(cls, body) if as_json else cls.decode(body)
    except Malformed as error:
        raise as_refused(error) from None
