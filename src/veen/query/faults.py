"""What can be wrong with a query, in the words that go over HTTP. 001, query-api-spec §7.6."""

from enum import StrEnum

from veen.core import Refused


class Code(StrEnum):
    """An `error_code`."""

    INVALID_JSON = "invalid_json"
    INVALID_QUERY_DESCRIPTOR = "invalid_query_descriptor"
    UNSUPPORTED_VERSION = "unsupported_version"
    INVALID_PARAMETER = "invalid_parameter"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN_SCOPE = "forbidden_scope"
    QUERY_NOT_FOUND = "query_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    DUPLICATE_QUERY_ID = "duplicate_query_id"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    RESULT_NOT_READY = "result_not_ready"
    EXECUTION_FAILED = "execution_failed"
    INTERNAL_ERROR = "internal_error"
    BAD_REQUEST = "bad_request"
    UNAVAILABLE = "unavailable"


STATUS: dict[Code, int] = {
    Code.INVALID_JSON: 400,
    Code.INVALID_QUERY_DESCRIPTOR: 400,
    Code.UNSUPPORTED_VERSION: 400,
    Code.INVALID_PARAMETER: 400,
    Code.BAD_REQUEST: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN_SCOPE: 403,
    Code.QUERY_NOT_FOUND: 404,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.DUPLICATE_QUERY_ID: 409,
    Code.TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    # Of the three that may be chosen from, the one that nothing else here answers with.
    Code.RESULT_NOT_READY: 425,
    Code.EXECUTION_FAILED: 500,
    Code.INTERNAL_ERROR: 500,
    Code.UNAVAILABLE: 503,
}

HINTS: dict[Code, str] = {
    Code.INVALID_JSON: "send one JSON object",
    Code.INVALID_QUERY_DESCRIPTOR: "docs/query.md says what a descriptor has",
    Code.UNSUPPORTED_VERSION: "leave version out, or give 1",
    Code.INVALID_PARAMETER: "offset and limit are whole numbers",
    Code.BAD_REQUEST: "the service's own description says what it takes",
    Code.UNAUTHORIZED: "give a token with --token-file, or a certificate; veen query token makes tokens",
    Code.FORBIDDEN_SCOPE: "ask whoever runs the service for leave to ask about that stream",
    Code.QUERY_NOT_FOUND: "check the id, and that the query is your own",
    Code.NOT_FOUND: "check the address of the service",
    Code.METHOD_NOT_ALLOWED: "check the address of the service",
    Code.DUPLICATE_QUERY_ID: "leave query_id out, or choose another",
    Code.TOO_LARGE: "ask for less at once",
    Code.UNSUPPORTED_MEDIA_TYPE: "send application/json",
    Code.RESULT_NOT_READY: "ask again in a moment; veen query status says how far it is",
    Code.EXECUTION_FAILED: "the message says why; a query that failed is not run again: submit it anew",
    Code.INTERNAL_ERROR: "the log of the service says more",
    Code.UNAVAILABLE: "try again in a moment",
}


class QueryFault(Refused):
    """A query that is not answered, and why."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.add_note(HINTS[code])


def invalid(reason: str) -> QueryFault:
    return QueryFault(Code.INVALID_QUERY_DESCRIPTOR, reason)
