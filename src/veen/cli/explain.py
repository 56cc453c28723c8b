"""`veen explain`: what an error code means and what to do about it."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from terminalface.command import Misuse, command, single
from veen.cli import output
from veen.cli.options import JsonOption

app = single("explain")


@dataclass(frozen=True, slots=True)
class Code:
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


def codes() -> list[Code]:
    """Every code: a hub's, in the order of its checks, then its endpoints'; a state's; a query service's."""
    from veen.cli import othercodes
    from veen.core.admission import ADMISSION, API_MEANING, STATUS
    from veen.query import faults

    admission = [
        Code(row.code, row.detail_enum, STATUS[row.code], str(row.stage), row.failure, row.advice) for row in ADMISSION
    ]
    endpoints = [Code(code, None, STATUS[code], None, *meaning) for code, meaning in API_MEANING.items()]
    states = [Code(code, None, None, None, *meaning) for code, meaning in othercodes.STATE.items()]
    queries = [
        Code(code, None, faults.STATUS[code], None, othercodes.QUERY[code], faults.HINTS[code]) for code in faults.Code
    ]
    return admission + endpoints + states + queries


def find(text: str) -> list[Code]:
    """The codes meant: E.CAP/CAP_TTL is one, CAP_TTL too, E.CAP is every row of it; capitals do not matter."""
    known, text = codes(), text.removesuffix(":")
    return [one for one in known if one.name == text] or [one for one in known if text.upper() in _called(one)]


def _called(one: Code) -> tuple[str | None, ...]:
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


def _list(found: list[Code], as_json: bool) -> None:
    rows = [(one.name, one.http_status, one.when, one.what_to_do) for one in found]
    output.table(("code", "http", "when", "what to do"), rows, as_json, [asdict(one) for one in found])
