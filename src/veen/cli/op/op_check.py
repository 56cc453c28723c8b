"""Operations as people name them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import output
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import ReadOptions, read_command

if TYPE_CHECKING:
    from veen.overlays import FoldEntry
    from veen.overlays.operations import LoggedOperation
    from veen.state.state_at import StateAt

    OpReading: TypeAlias = StateAt[FoldEntry | None, FoldEntry | None]
    from veen.cli.kit.read_state import StateAnswer, StateBasis
    from veen.overlays.operations import ExternalFacts, RuleFinding
    from veen.state.state_view import StateView

    Checked = tuple[tuple[RuleFinding, ...], StateAnswer, StateBasis]


OperationId: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="which operation: its id, or so much of it that it is the only one")
]
LEAST_DIGITS = 6
ID_DIGITS = 64


def found(reading: "OpReading", text: str) -> "LoggedOperation":
    """The operation that a word names: by its whole id, or by the start of it."""
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.operations.operation_index import logged

    wanted = text.rstrip("…").lower()
    if not LEAST_DIGITS <= len(wanted) <= ID_DIGITS or set(wanted) - set("0123456789abcdef"):
        raise Misuse(f"{text!r} is no operation id", f"give {LEAST_DIGITS} to {ID_DIGITS} hex digits of it")
    whole = len(wanted) == ID_DIGITS
    ids: Iterable[bytes] = [bytes.fromhex(wanted)] if whole else reading.states
    named = [one for one in ids if one.hex().startswith(wanted) and one in reading.states]
    if len(named) > 1:
        raise Misuse(f"{len(named)} operations start with {wanted}", "give more digits; --json shows whole ids")
    entry = reading.states[named[0]] if named else None
    one = None if entry is None else logged(entry)
    if one is None:
        raise hinted(Unavailable(f"there is no operation {wanted} in this stream"), "veen op list shows what there is")
    return one


TONES = {"holds": Tone.GOOD, "violated": Tone.BAD, "open": Tone.WARN}
WORDS = {"holds": "hold", "violated": "are violated", "open": "are open"}
COLUMNS = ("rule", "verdict", "entry", "operation", "reason")


def add(app: typer.Typer) -> None:
    """Declare it in the group."""
    read_command(
        app,
        "check",
        "veen op check --stream ops",
        "veen op check --stream ops --known domain.json --rule paid.P2 --rule access.A1",
        "veen op check --stream ops --data-dir copy --at 100 --json",
    )(check)


def check(
    asked: ReadOptions,
    known: Annotated[
        Path | None,
        typer.Option("--known", metavar="FILE", help="what is known beside the log: policy, and what services did"),
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="only this rule", show_default="all"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="show also what holds; else it is only counted")] = False,
) -> None:
    """Check the operations of a stream against the rules of their profiles.

    A rule holds for an operation, is violated, or is open: what is known does not decide it, and --known says more. The
    exit status is 13 where a rule is violated. A checkpoint of a state is compared with the log and with our own fold
    of it.
    """
    from veen.cli.kit import output_files, read_state, render_state
    from veen.cli.kit.exit_status import VIOLATED_STATUS
    from veen.overlays.operations import MEANING, OPERATIONS, Rule, violations

    wanted = rules or [str(rule) for rule in MEANING]
    strange = [rule for rule in wanted if rule not in Rule.__members__.values()]
    if strange:
        raise Misuse(f"there is no rule {strange[0]!r}", f"they are {', '.join(Rule)}")
    facts = _read(known)
    if asked.out is not None:
        output_files.check_new(asked.out)

    async def work(view: "StateView[Any, Any]", name: str) -> "Checked":
        async with view.reading(read_state.parse_place(asked.at, view)) as reading:
            found = await _findings(view, list(reading.states.values()), facts, not asked.no_cache)
            chosen = tuple(one for one in found if str(one.rule) in wanted)
            told = _answer(chosen, every)
            return chosen, told, await read_state.basis_of(asked, view, reading, name, told)

    findings, told, basis = read_state.with_view(asked, OPERATIONS, work)
    render_state.show_answer(told, basis, asked)
    if violations(findings):
        raise typer.Exit(VIOLATED_STATUS)


async def _findings(
    view: "StateView[Any, Any]", entries: "list[FoldEntry | None]", known: "ExternalFacts", cached: bool
) -> "tuple[RuleFinding, ...]":
    from dataclasses import replace

    from veen.overlays.operations import check, operations

    listed = operations(entries)
    facts = await _with_states(known, view, listed, cached)
    return check(listed, replace(facts, stream_id=view.stream_id))


def _read(known: Path | None) -> "ExternalFacts":
    """What is known beside the log."""
    from dataclasses import fields

    from veen.cli.kit.exit_status import hinted
    from veen.core import Malformed
    from veen.overlays.operations.external_facts import FactsFile, read

    try:
        return read(b"{}" if known is None else known.read_bytes())
    except Malformed as error:
        names = ", ".join(one.name for one in fields(FactsFile))
        raise hinted(Malformed(str(known), error.reason), f"it is a JSON object with some of {names}") from None


async def _with_states(
    facts: "ExternalFacts", view: "StateView[Any, Any]", listed: "Sequence[LoggedOperation]", cached: bool
) -> "ExternalFacts":
    """What the log itself says where its checkpoints say something: the hub's root there, and our own state."""
    from dataclasses import replace

    from veen.overlays import At, registry
    from veen.overlays.operations import StateCheckpoint
    from veen.overlays.operations.external_facts import LogPlace
    from veen.overlays.operations.operation_index import of_kind
    from veen.state.state_view import StateView

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


def _answer(findings: "tuple[RuleFinding, ...]", every: bool) -> "StateAnswer":
    from veen.cli.kit import read_state, render_state
    from veen.cli.kit.sanitize import printable, short
    from veen.state.state_view import shown

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
    told = ", ".join(f"{counts[verdict]} {word}" for verdict, word in WORDS.items() if counts[verdict])
    return read_state.StateAnswer(
        columns=COLUMNS,
        rows=rows,
        data={"findings": data, "counts": {verdict: counts[verdict] for verdict in WORDS}},
        parts=_shown(findings),
        remarks=(told or "no operation is in this stream",),
    )


def _shown(findings: "tuple[RuleFinding, ...]") -> tuple[bytes, ...]:
    """The operations that --prove shows: those that violate something, or all of them where none does."""
    from veen.overlays.operations import violations

    told = violations(findings) or findings
    return tuple(dict.fromkeys(one.operation_id for one in told if one.operation_id is not None))
