"""What can be wrong with a query, in the words that go over HTTP. 001, query-api-spec §7.6."""

from enum import StrEnum

from veen.core import Refused


class QueryCode(StrEnum):
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
    # Not 413, which is of what is sent, and not 5xx: asked again, it would come to the same.
    QueryCode.RESULT_TOO_LARGE: 422,
    QueryCode.QUERY_TIMEOUT: 422,
    # Of the three that may be chosen from, the one that nothing else here answers with.
    QueryCode.RESULT_NOT_READY: 425,
    QueryCode.TOO_MANY_QUERIES: 429,
    QueryCode.EXECUTION_FAILED: 500,
    QueryCode.INTERNAL_ERROR: 500,
    QueryCode.UNAVAILABLE: 503,
    QueryCode.TABLES_NOT_READY: 503,
}

HINTS: dict[QueryCode, str] = {
    QueryCode.INVALID_JSON: "send one JSON object",
    QueryCode.INVALID_QUERY_DESCRIPTOR: "docs/query.md says what a descriptor has",
    QueryCode.UNSUPPORTED_VERSION: "leave version out, or give 1",
    QueryCode.INVALID_PARAMETER: "offset and limit are whole numbers",
    QueryCode.BAD_REQUEST: "the service's own description says what it takes",
    QueryCode.UNAUTHORIZED: "give a token with --token-file, or a certificate; veen query token makes tokens",
    QueryCode.FORBIDDEN_SCOPE: "ask whoever runs the service for leave to ask about that stream",
    QueryCode.FORBIDDEN_HOST: "use the address it listens on, or add the proxy's name with veen query serve --name",
    QueryCode.QUERY_NOT_FOUND: "check the id, and that the query is your own",
    QueryCode.NOT_FOUND: "check the address of the service",
    QueryCode.METHOD_NOT_ALLOWED: "check the address of the service",
    QueryCode.DUPLICATE_QUERY_ID: "leave query_id out, or choose another",
    QueryCode.TOO_LARGE: "ask for less at once",
    QueryCode.UNSUPPORTED_MEDIA_TYPE: "send application/json",
    QueryCode.RESULT_TOO_LARGE: "ask for less, or for groups; veen query serve --max-rows and --max-bytes set limits",
    QueryCode.QUERY_TIMEOUT: "ask for less, or for less evidence; veen query serve --max-time sets the limit",
    QueryCode.RESULT_NOT_READY: "ask again in a moment; veen query status says how far it is",
    QueryCode.TOO_MANY_QUERIES: "let some of your queries end first; veen query serve --max-open sets the limit",
    QueryCode.EXECUTION_FAILED: "the message says why; a query that failed is not run again: submit it anew",
    QueryCode.INTERNAL_ERROR: "the log of the service says more",
    QueryCode.UNAVAILABLE: "try again in a moment",
    QueryCode.TABLES_NOT_READY: "try again later; veen pipeline run fills tables beforehand, on many cores",
}


class QueryFault(Refused):
    """A query that is not answered, and why."""

    def __init__(self, code: QueryCode, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.add_note(HINTS[code])


def invalid(reason: str) -> QueryFault:
    return QueryFault(QueryCode.INVALID_QUERY_DESCRIPTOR, reason)
