"""`veen explain`: what an error code means and what to do about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from plumbing.cli.command import Misuse, argument, command, single
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.core.admission import ADMISSION, API_MEANING, STATUS
from veen.query import query_errors

# code: (when it occurs, what to do)
STATE: Mapping[str, tuple[str, str]] = {
    "E.STATE": (
        "the event is not valid in the current state, so it was not sent; or an earlier entry left it without effect",
        "look at the current state and decide again",
    ),
    "E.RECORDER": (
        "an event type is mapped to no stream, or to another one",
        "veen recorder map shows and sets the stream of an event type",
    ),
    "WAL.NO_WALLET": (
        "the wallet was never opened",
        "open it, or check the realm, context and currency in its name",
    ),
    "WAL.ALREADY_OPEN": ("the wallet is open already", "use it as it is"),
    "WAL.CLOSED": ("the wallet is closed; it cannot be opened again", "use another wallet"),
    "WAL.FROZEN": ("the wallet is frozen and cannot spend until it is unfrozen", "ask the client that froze it"),
    "WAL.DAILY_LIMIT_EXCEEDED": ("the amount exceeds the daily limit", "wait for the next day, or spend less"),
    "WAL.INSUFFICIENT_FUNDS": ("the balance is smaller than the amount", "deposit first, or spend less"),
    "WAL.INVALID_CURRENCY": ("the wallet has another currency", "name a wallet of that currency"),
    "WAL.UNAUTHORIZED_OPERATION": (
        "the realm does not permit this client to perform this wallet operation",
        "ask the realm's authority for a capability that permits it",
    ),
    "RPC.UNKNOWN_METHOD": ("the server has no such method", "check the name with the operator of the server"),
    "RPC.FAILED": ("the method failed on the server", "read the server's text beside the error, if there is one"),
    "RPC.REPLY_TO": ("the server does not reply on the stream that the call names", "leave out the reply stream"),
}

# error_code of a query service: when it occurs. The advice is in query_errors.QueryCode.
QUERY: Mapping[str, str] = {
    "invalid_json": "the body of a request to a query service is not one JSON object",
    "invalid_query_descriptor": "a query has an unknown field, lacks a field, or has a field of the wrong type",
    "unsupported_version": "the version of a query is not 1",
    "invalid_parameter": "the offset or limit of a result page is invalid",
    "bad_request": "a request to a query service is malformed",
    "unauthorized": "a request to a query service has no valid token or certificate",
    "forbidden_scope": "the account may not query one of the streams of the query",
    "forbidden_host": "the Host or Origin of a request does not match the query service",
    "query_not_found": "the account has no query with this id",
    "not_found": "the query service has no such path",
    "method_not_allowed": "the query service does not support this method at this path",
    "duplicate_query_id": "a query with this id exists already",
    "too_large": "a query or its body exceeds the limit of the service",
    "unsupported_media_type": "the content type of a request to a query service is not JSON",
    "result_too_large": "the result of a query, or its input, exceeds the limit of the service",
    "query_timeout": "a query exceeded the time limit of the service",
    "result_not_ready": "the query has not finished yet",
    "too_many_queries": "the account has reached the maximum number of unfinished queries",
    "execution_failed": "the query started and failed",
    "internal_error": "the query service failed unexpectedly",
    "unavailable": "the query service, or the hub behind it, cannot answer now",
    "tables_not_ready": "the tables of the query service are still being loaded",
}


app = single("explain")


@dataclass(frozen=True, slots=True)
class ExplainedCode:
    code: str
    detail_enum: str | None
    http_status: int | None
    stage: str | None
    when: str
    what_to_do: str

    @property
    def name(self) -> str:
        """The code as errors print it."""
        return self.code if self.detail_enum is None else f"{self.code}/{self.detail_enum}"


def codes() -> list[ExplainedCode]:
    """Every code: admission in the order of its checks, endpoints, states, query services."""
    admission = [
        ExplainedCode(row.code, row.detail_enum, STATUS[row.code], str(row.stage), row.failure, row.advice)
        for row in ADMISSION
    ]
    endpoints = [ExplainedCode(code, None, STATUS[code], None, *meaning) for code, meaning in API_MEANING.items()]
    states = [ExplainedCode(code, None, None, None, *meaning) for code, meaning in STATE.items()]
    queries = [ExplainedCode(code, None, code.status, None, QUERY[code], code.hint) for code in query_errors.QueryCode]
    return admission + endpoints + states + queries


def find(text: str) -> list[ExplainedCode]:
    """The codes that match: E.CAP/CAP_TTL or CAP_TTL is one row, E.CAP all rows of that code. Case is ignored."""
    known, text = codes(), text.removesuffix(":")
    return [one for one in known if one.name == text] or [one for one in known if text.upper() in _aliases(one)]


def _aliases(one: ExplainedCode) -> tuple[str | None, ...]:
    short = one.code.partition(".")[2] or one.code
    return one.name.upper(), one.code.upper(), one.detail_enum, short.upper()


def _names(incomplete: str) -> list[str]:
    return [one.name for one in codes() if one.name.startswith(incomplete)]


@command(app, "explain", "veen explain E.CAP/CAP_TTL", "veen explain duplicate", "veen explain")
def explain(
    code: Annotated[
        str | None, argument("CODE", "the code as printed; without it, all are listed", autocompletion=_names)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain an error code and what to do about it."""
    if code is None:
        _list(codes(), as_json)
        return
    found = find(code)
    if not found:
        raise Misuse(f"there is no error code {code!r}", "veen explain lists every code")
    if len(found) > 1:
        _list(found, as_json)
        return
    one = found[0]
    rows: dict[str, output.Value] = {"code": one.name, "when": one.when, "what to do": one.what_to_do}
    if one.stage is not None:
        rows["stage"] = one.stage
    if one.http_status is not None:
        rows["http status"] = one.http_status
    output.facts(rows, as_json, asdict(one))


def _list(found: list[ExplainedCode], as_json: bool) -> None:
    rows = [(one.name, one.http_status, one.when, one.what_to_do) for one in found]
    output.table(("code", "http", "when", "what to do"), rows, as_json, [asdict(one) for one in found])
