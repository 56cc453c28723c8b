"""The errors of the query service, as sent over HTTP. 001, query-api-spec §7.6."""

from enum import StrEnum
from typing import Self

from veen.core import Refused


class QueryCode(StrEnum):
    """The values of `error_code`, each with its HTTP status and a hint."""

    status: int
    hint: str

    def __new__(cls, code: str, status: int = 0, hint: str = "") -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.status, member.hint = status, hint
        return member

    INVALID_JSON = "invalid_json", 400, "send one JSON object"
    INVALID_QUERY_DESCRIPTOR = "invalid_query_descriptor", 400, "docs/query.md describes the fields of a descriptor"
    UNSUPPORTED_VERSION = "unsupported_version", 400, "leave version out, or give 1"
    INVALID_PARAMETER = "invalid_parameter", 400, "offset and limit must be integers"
    UNAUTHORIZED = (
        "unauthorized",
        401,
        "give a token with --token-file or a client certificate; veen query token creates tokens",
    )
    FORBIDDEN_SCOPE = "forbidden_scope", 403, "ask the operator of the service for access to that stream"
    FORBIDDEN_HOST = (
        "forbidden_host",
        403,
        "use the address of the service, or add the proxy's name with veen query serve --name",
    )
    QUERY_NOT_FOUND = "query_not_found", 404, "check the id, and that the query is yours"
    NOT_FOUND = "not_found", 404, "check the address of the service"
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "check the address of the service"
    DUPLICATE_QUERY_ID = "duplicate_query_id", 409, "leave query_id out, or choose another"
    TOO_LARGE = "too_large", 413, "send a smaller request"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "send application/json"
    # Not 413, which concerns the request, and not 5xx: repeating the query would not help.
    RESULT_TOO_LARGE = (
        "result_too_large",
        422,
        "narrow or aggregate it; the limits are veen query serve --max-rows, --max-bytes",
    )
    QUERY_TIMEOUT = (
        "query_timeout",
        422,
        "narrow the query or ask for less evidence; the limit is veen query serve --max-time",
    )
    # The specification allows three; no other error here uses this one.
    RESULT_NOT_READY = "result_not_ready", 425, "try again in a moment; veen query status shows the progress"
    TOO_MANY_QUERIES = (
        "too_many_queries",
        429,
        "wait until some of your queries end; the limit is veen query serve --max-open",
    )
    EXECUTION_FAILED = "execution_failed", 500, "see the message; a failed query is not retried, submit it again"
    INTERNAL_ERROR = "internal_error", 500, "see the log of the service"
    BAD_REQUEST = "bad_request", 400, "see the OpenAPI description at /api/openapi.json"
    UNAVAILABLE = "unavailable", 503, "try again in a moment"
    TABLES_NOT_READY = "tables_not_ready", 503, "try again later; to fill the tables in advance, run veen pipeline run"


class QueryFault(Refused):
    """A query error, with a hint."""

    def __init__(self, code: QueryCode, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.add_note(code.hint)


def invalid(reason: str) -> QueryFault:
    return QueryFault(QueryCode.INVALID_QUERY_DESCRIPTOR, reason)
