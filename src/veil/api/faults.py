"""How the local API says no: a status, and what is wrong in the terms of the error that was raised."""

from http import HTTPStatus

from veil.api.http import Response
from veil.errors import Malformed, Refused, Unverified, VeilError
from veil.lanes import Unavailable

# What each class of error is to a caller. A test proves that none is missing.
STATUS: dict[type[VeilError], tuple[int, str]] = {
    Malformed: (HTTPStatus.BAD_REQUEST, "malformed"),
    Unverified: (HTTPStatus.UNPROCESSABLE_ENTITY, "unverified"),
    Refused: (HTTPStatus.CONFLICT, "refused"),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
}


def told(error: VeilError) -> Response:
    status, kind = next(STATUS[one] for one in type(error).__mro__ if one in STATUS)
    return refusal(status, kind, error.what, error.reason, *getattr(error, "__notes__", ()))


def refusal(status: int, kind: str, what: str, reason: str, *hints: str) -> Response:
    return Response.json({"error": {"kind": kind, "what": what, "reason": reason, "hints": list(hints)}}, status)
