"""`veen op check`, and `found`, which looks up an operation by its id."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import output, output_files, read_state, render_state
from veen.cli.kit.exit_status import VIOLATED_STATUS, hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.read_state import StateAnswer, StateBasis
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import ReadOptions, read_command
from veen.core import Malformed, Unavailable
from veen.overlays import At, FoldEntry, registry
from veen.overlays.operations.operation_events import StateCheckpoint
from veen.overlays.operations.operation_index import OPERATIONS, LoggedOperation, logged, of_kind, operations
from veen.overlays.operations.rule_checks import violations
from veen.overlays.operations.rules import ExternalFacts, FactsFile, LogPlace, Rule, RuleFinding, read
from veen.state.state_view import StateAt, StateView, shown

OpReading: TypeAlias = StateAt[FoldEntry | None, FoldEntry | None]
Checked = tuple[tuple[RuleFinding, ...], StateAnswer, StateBasis]


OperationId: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="the operation: its id, or a unique prefix of it")
]
MIN_DIGITS = 6
ID_DIGITS = 64


def found(reading: OpReading, text: str) -> LoggedOperation:
    """Return the operation with this id or id prefix."""

    wanted = text.rstrip("…").lower()
    if not MIN_DIGITS <= len(wanted) <= ID_DIGITS or set(wanted) - set("0123456789abcdef"):
        raise Misuse(f"{text!r} is not an operation id", f"give its first {MIN_DIGITS} to {ID_DIGITS} hex digits")
    whole = len(wanted) == ID_DIGITS
    ids: Iterable[bytes] = [bytes.fromhex(wanted)] if whole else reading.states
    named = [one for one in ids if one.hex().startswith(wanted) and one in reading.states]
    if len(named) > 1:
        raise Misuse(f"{len(named)} operations start with {wanted}", "give more digits; --json prints whole ids")
    entry = reading.states[named[0]] if named else None
    one = None if entry is None else logged(entry)
    if one is None:
        raise hinted(Unavailable(f"there is no operation {wanted} in this stream"), "veen op list lists all operations")
    return one


TONES = {"holds": Tone.GOOD, "violated": Tone.BAD, "open": Tone.WARN}
WORDS = {"holds": "hold", "violated": "are violated", "open": "are open"}
COLUMNS = ("rule", "verdict", "entry", "operation", "reason")


def add(app: typer.Typer) -> None:
    read_command(
        app,
        "check",
        "veen op check --stream ops",
        "veen op check --stream ops --known domain.json --rule paid.P2 --rule access.A1",
        "veen op check --stream ops --data-dir copy --at 100 --json",
    )(check)


def check(
    options: ReadOptions,
    known: Annotated[
        Path | None,
        typer.Option("--known", metavar="FILE", help="facts that are not in the log: policies, and what services did"),
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="only this rule", show_default="all"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="also show the rules that hold; else they are counted")] = False,
) -> None:
    """Check the operations of a stream against the rules of their profiles.

    A rule holds for an operation, is violated, or is open if the known facts do not decide it; --known adds facts. The
    exit status is 13 if a rule is violated. A state.checkpoint is compared with the log and with the state folded from
    it.
    """

    wanted = rules or [str(rule) for rule in Rule]
    unknown = [rule for rule in wanted if rule not in Rule.__members__.values()]
    if unknown:
        raise Misuse(f"there is no rule {unknown[0]!r}", f"the rules are {', '.join(Rule)}")
    facts = _read(known)
    if options.out is not None:
        output_files.check_new(options.out)

    async def work(view: StateView[Any, Any], name: str) -> Checked:
        async with view.reading(read_state.parse_place(options.at, view)) as reading:
            found = await _findings(view, list(reading.states.values()), facts, not options.no_cache)
            chosen = tuple(one for one in found if str(one.rule) in wanted)
            answer = _answer(chosen, every)
            return chosen, answer, await read_state.basis_of(options, view, reading, name, answer)

    findings, answer, basis = read_state.with_view(options, OPERATIONS, work)
    render_state.show_answer(answer, basis, options)
    if violations(findings):
        raise typer.Exit(VIOLATED_STATUS)


async def _findings(
    view: StateView[Any, Any], entries: list[FoldEntry | None], known: ExternalFacts, cached: bool
) -> tuple[RuleFinding, ...]:
    from veen.overlays.operations.rule_checks import check

    listed = operations(entries)
    facts = await _with_states(known, view, listed, cached)
    return check(listed, replace(facts, stream_id=view.stream_id))


def _read(known: Path | None) -> ExternalFacts:
    try:
        return read(b"{}" if known is None else known.read_bytes())
    except Malformed as error:
        names = ", ".join(one.name for one in fields(FactsFile))
        raise hinted(
            Malformed(str(known), error.reason), f"give a JSON object with any of the fields {names}"
        ) from None


async def _with_states(
    facts: ExternalFacts, view: StateView[Any, Any], listed: Sequence[LoggedOperation], cached: bool
) -> ExternalFacts:
    """Add the hub's root and our own state at each place that a logged state.checkpoint names."""

    roots: dict[LogPlace, bytes] = {}
    states: dict[tuple[str, bytes, LogPlace], bytes] = {}
    overlays = registry()
    for one, event in of_kind(listed, StateCheckpoint):
        place, at = LogPlace(one.entry.label, event.upto_stream_seq), At(one.entry.epoch, event.upto_stream_seq)
        if not 1 <= event.upto_stream_seq < one.entry.stream_seq:
            continue
        roots[place] = (await view.source.receipt(view.stream_id, at)).mmr_root
        overlay = overlays.of_class(event.state_class)
        if overlay is None:
            continue
        async with (
            StateView(view.source, view.stream_id, overlay, cached=cached) as other,
            other.reading(at) as reading,
        ):
            part = (event.state_id,) if event.state_id in reading.states else ()
            states[event.state_class, event.state_id, place] = reading.state_hash(*part)
    return replace(
        facts, root_at=roots.get, state_at=lambda named, state_id, place: states.get((named, state_id, place))
    )


def _answer(findings: tuple[RuleFinding, ...], every: bool) -> StateAnswer:
    counts = Counter(str(one.verdict) for one in findings)
    rows: list[Sequence[output.Value]] = [
        (
            str(one.rule),
            Marked(str(one.verdict), TONES[one.verdict]),
            ", ".join(map(shown, one.places)),
            None if one.operation_id is None else short(one.operation_id),
            printable(one.reason),
        )
        for one in findings
        if every or one.verdict != "holds"
    ]
    data = [
        {
            "rule": str(one.rule),
            "verdict": str(one.verdict),
            "operation_id": one.operation_id,
            "places": [render_state.place_data(at) for at in one.places],
            "reason": one.reason,
        }
        for one in findings
    ]
    summary = ", ".join(f"{counts[verdict]} {word}" for verdict, word in WORDS.items() if counts[verdict])
    return read_state.StateAnswer(
        columns=COLUMNS,
        rows=rows,
        data={"findings": data, "counts": {verdict: counts[verdict] for verdict in WORDS}},
        parts=_operations_to_prove(findings),
        remarks=(summary or "this stream has no operations",),
    )


def _operations_to_prove(findings: tuple[RuleFinding, ...]) -> tuple[bytes, ...]:
    """Return the operations that violate a rule, or all of them if none does."""

    listed = violations(findings) or findings
    return tuple(dict.fromkeys(one.operation_id for one in listed if one.operation_id is not None))
