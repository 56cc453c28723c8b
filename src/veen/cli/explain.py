"""`veen explain`: what an error code means and what to do about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption

# code: when it is said, and what to do then
STATE: Mapping[str, tuple[str, str]] = {
    "E.STATE": (
        "the state of the stream does not take it, so it is not sent; or another entry came first and it had no effect",
        "look at the state as it is now and decide again",
    ),
    "E.RECORDER": (
        "an event type is mapped to no stream, or to another one",
        "veen recorder map shows and sets which stream a type goes to",
    ),
    "WAL.NO_WALLET": (
        "the wallet was never opened",
        "open it, or check the realm, context and currency it is named by",
    ),
    "WAL.ALREADY_OPEN": ("the wallet is open already", "use it as it is"),
    "WAL.CLOSED": ("the wallet is closed, which is for good", "use another wallet"),
    "WAL.FROZEN": ("the wallet is frozen, and spends nothing until it is unfrozen", "ask whoever froze it"),
    "WAL.DAILY_LIMIT_EXCEEDED": ("more would be spent than the day's limit allows", "wait for the next day, or less"),
    "WAL.INSUFFICIENT_FUNDS": ("the balance is smaller than the amount", "deposit first, or spend less"),
    "WAL.INVALID_CURRENCY": ("the currency is not the wallet's", "name a wallet of that currency"),
    "WAL.UNAUTHORIZED_OPERATION": (
        "the realm does not let this client do that to wallets",
        "ask for a capability that the realm's authority names for it",
    ),
    "RPC.UNKNOWN_METHOD": ("the server has no such method", "check its name with whoever runs the server"),
    "RPC.FAILED": ("what answers the method did not end well", "the text beside it, if any, is the server's"),
    "RPC.REPLY_TO": ("the server does not answer on the stream that the call names", "leave the stream of replies out"),
}

# error_code of a query service: when it answers so; what to do is among its own hints
QUERY: Mapping[str, str] = {
    "invalid_json": "a query service was sent something that is not one JSON object",
    "invalid_query_descriptor": "a query has a field that does not exist, lacks one, or has one of the wrong kind",
    "unsupported_version": "a query is of another version than 1",
    "invalid_parameter": "a page of a result was asked for with an offset or limit that cannot be",
    "bad_request": "a request to a query service has a form that it does not take",
    "unauthorized": "a request to a query service came without a token or certificate that it knows",
    "forbidden_scope": "the asker may not ask about one of the streams of the query",
    "forbidden_host": "a query service was asked by a name that is not its own, or by a page of another site",
    "query_not_found": "there is no such query of this asker",
    "not_found": "a query service has nothing at that path",
    "method_not_allowed": "a query service does not take that method at that path",
    "duplicate_query_id": "there is a query with that id already",
    "too_large": "a query or its body is larger than the service takes",
    "unsupported_media_type": "a query service was sent something that does not say it is JSON",
    "result_too_large": "the result of a query, or what it is worked out from, is larger than the service allows",
    "query_timeout": "a query took longer than the service allows",
    "result_not_ready": "the query has not ended yet",
    "too_many_queries": "the asker has as many queries that have not ended as the service allows",
    "execution_failed": "the query was begun and could not be carried out",
    "internal_error": "the query service met something that nobody foresaw",
    "unavailable": "the query service, or the hub behind it, cannot answer now",
    "tables_not_ready": "the tables that a query service answers from are being filled",
}


app = single("explain")


@dataclass(frozen=True, slots=True)
class ExplainedCode:
    """One way to say no."""

    code: str
    detail_enum: str | None
    http_status: int | None
    stage: str | None
    when: str
    what_to_do: str

    @property
    def name(self) -> str:
        """As errors print it."""
        return self.code if self.detail_enum is None else f"{self.code}/{self.detail_enum}"


def codes() -> list[ExplainedCode]:
    """Every code: a hub's, in the order of its checks, then its endpoints'; a state's; a query service's."""

    from veen.core.admission import ADMISSION, API_MEANING, STATUS
    from veen.query import query_errors

    admission = [
        ExplainedCode(row.code, row.detail_enum, STATUS[row.code], str(row.stage), row.failure, row.advice)
        for row in ADMISSION
    ]
    endpoints = [ExplainedCode(code, None, STATUS[code], None, *meaning) for code, meaning in API_MEANING.items()]
    states = [ExplainedCode(code, None, None, None, *meaning) for code, meaning in STATE.items()]
    queries = [
        ExplainedCode(code, None, query_errors.STATUS[code], None, QUERY[code], query_errors.HINTS[code])
        for code in query_errors.QueryCode
    ]
    return admission + endpoints + states + queries


def find(text: str) -> list[ExplainedCode]:
    """The codes meant: E.CAP/CAP_TTL is one, CAP_TTL too, E.CAP is every row of it; capitals do not matter."""
    known, text = codes(), text.removesuffix(":")
    return [one for one in known if one.name == text] or [one for one in known if text.upper() in _called(one)]


def _called(one: ExplainedCode) -> tuple[str | None, ...]:
    short = one.code.partition(".")[2] or one.code
    return one.name.upper(), one.code.upper(), one.detail_enum, short.upper()


def _names(incomplete: str) -> list[str]:
    return [one.name for one in codes() if one.name.startswith(incomplete)]


@command(app, "explain", "veen explain E.CAP/CAP_TTL", "veen explain duplicate", "veen explain")
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="as it was printed; without one, all are listed", autocompletion=_names),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what an error code means and what to do about it."""
    if code is None:
        _list(codes(), as_json)
        return
    found = find(code)
    if not found:
        raise Misuse(f"nothing answers with {code!r}", "veen explain lists every code")
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
