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


STATUS: dict[Code, int] = {
    Code.INVALID_JSON: 400,
    Code.INVALID_QUERY_DESCRIPTOR: 400,
    Code.UNSUPPORTED_VERSION: 400,
    Code.INVALID_PARAMETER: 400,
    Code.BAD_REQUEST: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN_SCOPE: 403,
    Code.FORBIDDEN_HOST: 403,
    Code.QUERY_NOT_FOUND: 404,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.DUPLICATE_QUERY_ID: 409,
    Code.TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    # Not 413, which is of what is sent, and not 5xx: asked again, it would come to the same.
    Code.RESULT_TOO_LARGE: 422,
    Code.QUERY_TIMEOUT: 422,
    # Of the three that may be chosen from, the one that nothing else here answers with.
    Code.RESULT_NOT_READY: 425,
    Code.TOO_MANY_QUERIES: 429,
    Code.EXECUTION_FAILED: 500,
    Code.INTERNAL_ERROR: 500,
    Code.UNAVAILABLE: 503,
    Code.TABLES_NOT_READY: 503,
}

HINTS: dict[Code, str] = {
    Code.INVALID_JSON: "send one JSON object",
    Code.INVALID_QUERY_DESCRIPTOR: "docs/query.md says what a descriptor has",
    Code.UNSUPPORTED_VERSION: "leave version out, or give 1",
    Code.INVALID_PARAMETER: "offset and limit are whole numbers",
    Code.BAD_REQUEST: "the service's own description says what it takes",
    Code.UNAUTHORIZED: "give a token with --token-file, or a certificate; veen query token makes tokens",
    Code.FORBIDDEN_SCOPE: "ask whoever runs the service for leave to ask about that stream",
    Code.FORBIDDEN_HOST: "ask by the address it listens on; veen query serve --name adds one that a proxy passes on",
    Code.QUERY_NOT_FOUND: "check the id, and that the query is your own",
    Code.NOT_FOUND: "check the address of the service",
    Code.METHOD_NOT_ALLOWED: "check the address of the service",
    Code.DUPLICATE_QUERY_ID: "leave query_id out, or choose another",
    Code.TOO_LARGE: "ask for less at once",
    Code.UNSUPPORTED_MEDIA_TYPE: "send application/json",
    Code.RESULT_TOO_LARGE: "ask for less, or for groups; veen query serve --max-rows and --max-bytes set the limits",
    Code.QUERY_TIMEOUT: "ask for less, or for less evidence; veen query serve --max-time sets the limit",
    Code.RESULT_NOT_READY: "ask again in a moment; veen query status says how far it is",
    Code.TOO_MANY_QUERIES: "let some of your queries end first; veen query serve --max-open sets the limit",
    Code.EXECUTION_FAILED: "the message says why; a query that failed is not run again: submit it anew",
    Code.INTERNAL_ERROR: "the log of the service says more",
    Code.UNAVAILABLE: "try again in a moment",
    Code.TABLES_NOT_READY: "try again later; veen pipeline run fills tables beforehand, on many cores",
}


class QueryFault(Refused):
    """A query that is not answered, and why."""

    def __init__(self, code: Code, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.add_note(HINTS[code])


def invalid(reason: str) -> QueryFault:
    return QueryFault(Code.INVALID_QUERY_DESCRIPTOR, reason)
