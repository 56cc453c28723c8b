"""The errors of the query service, as sent over HTTP. 001, query-api-spec §7.6."""

from enum import StrEnum

from veen.core import Refused


class QueryCode(StrEnum):
    """The values of `error_code`."""

    INVALID_JSON = "invalid_json"
    INVALID_QUERY_DESCRIPTOR = "invalid_query_descriptor"
    UNSUPPORTED_VERSION = "unsupported_version"
    INVALID_PARAMETER = "invalid_parameter"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN_SCOPE = "forbidden_scope"
    FORBIDDEN_HOST = "forbidden_host"
    QUERY_NOT_FOUND = "query_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    DUPLICATE_QUERY_ID = "duplicate_query_id"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    RESULT_TOO_LARGE = "result_too_large"
    QUERY_TIMEOUT = "query_timeout"
    RESULT_NOT_READY = "result_not_ready"
    TOO_MANY_QUERIES = "too_many_queries"
    EXECUTION_FAILED = "execution_failed"
    INTERNAL_ERROR = "internal_error"
    BAD_REQUEST = "bad_request"
    UNAVAILABLE = "unavailable"
    TABLES_NOT_READY = "tables_not_ready"


STATUS: dict[QueryCode, int] = {
    QueryCode.INVALID_JSON: 400,
    QueryCode.INVALID_QUERY_DESCRIPTOR: 400,
    QueryCode.UNSUPPORTED_VERSION: 400,
    QueryCode.INVALID_PARAMETER: 400,
    QueryCode.BAD_REQUEST: 400,
    QueryCode.UNAUTHORIZED: 401,
    QueryCode.FORBIDDEN_SCOPE: 403,
    QueryCode.FORBIDDEN_HOST: 403,
    QueryCode.QUERY_NOT_FOUND: 404,
    QueryCode.NOT_FOUND: 404,
    QueryCode.METHOD_NOT_ALLOWED: 405,
    QueryCode.DUPLICATE_QUERY_ID: 409,
    QueryCode.TOO_LARGE: 413,
    QueryCode.UNSUPPORTED_MEDIA_TYPE: 415,
    # Not 413, which concerns the request, and not 5xx: repeating the query would not help.
    QueryCode.RESULT_TOO_LARGE: 422,
    QueryCode.QUERY_TIMEOUT: 422,
    # The specification allows three; no other error here uses this one.
    QueryCode.RESULT_NOT_READY: 425,
    QueryCode.TOO_MANY_QUERIES: 429,
    QueryCode.EXECUTION_FAILED: 500,
    QueryCode.INTERNAL_ERROR: 500,
    QueryCode.UNAVAILABLE: 503,
    QueryCode.TABLES_NOT_READY: 503,
}

HINTS: dict[QueryCode, str] = {
    QueryCode.INVALID_JSON: "send one JSON object",
    QueryCode.INVALID_QUERY_DESCRIPTOR: "docs/query.md describes the fields of a descriptor",
    QueryCode.UNSUPPORTED_VERSION: "leave version out, or give 1",
    QueryCode.INVALID_PARAMETER: "offset and limit must be integers",
    QueryCode.BAD_REQUEST: "see the OpenAPI description at /api/openapi.json",
    QueryCode.UNAUTHORIZED: "give a token with --token-file or a client certificate; veen query token creates tokens",
    QueryCode.FORBIDDEN_SCOPE: "ask the operator of the service for access to that stream",
    QueryCode.FORBIDDEN_HOST: "use the address of the service, or add the proxy's name with veen query serve --name",
    QueryCode.QUERY_NOT_FOUND: "check the id, and that the query is yours",
    QueryCode.NOT_FOUND: "check the address of the service",
    QueryCode.METHOD_NOT_ALLOWED: "check the address of the service",
    QueryCode.DUPLICATE_QUERY_ID: "leave query_id out, or choose another",
    QueryCode.TOO_LARGE: "send a smaller request",
    QueryCode.UNSUPPORTED_MEDIA_TYPE: "send application/json",
    QueryCode.RESULT_TOO_LARGE: "narrow or aggregate it; the limits are veen query serve --max-rows, --max-bytes",
    QueryCode.QUERY_TIMEOUT: "narrow the query or ask for less evidence; the limit is veen query serve --max-time",
    QueryCode.RESULT_NOT_READY: "try again in a moment; veen query status shows the progress",
    QueryCode.TOO_MANY_QUERIES: "wait until some of your queries end; the limit is veen query serve --max-open",
    QueryCode.EXECUTION_FAILED: "see the message; a failed query is not retried, submit it again",
    QueryCode.INTERNAL_ERROR: "see the log of the service",
    QueryCode.UNAVAILABLE: "try again in a moment",
    QueryCode.TABLES_NOT_READY: "try again later; to fill the tables in advance, run veen pipeline run",
}


class QueryFault(Refused):
    """A query error, with a hint."""

    def __init__(self, code: QueryCode, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.add_note(HINTS[code])


def invalid(reason: str) -> QueryFault:
    return QueryFault(QueryCode.INVALID_QUERY_DESCRIPTOR, reason)
