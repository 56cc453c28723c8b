"""`veen op check`: what can be said of every rule of the profiles, for every operation of a stream."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from terminalface.command import Misuse
from veen.cli import output
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import Reads, reads

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer, Basis
    from veen.overlays import Entry
    from veen.overlays.operations import Finding, Logged, World
    from veen.state.view import View

    Checked = tuple[tuple[Finding, ...], Answer, Basis]

TONES = {"holds": Tone.GOOD, "violated": Tone.BAD, "open": Tone.WARN}
WORDS = {"holds": "hold", "violated": "are violated", "open": "are open"}
COLUMNS = ("rule", "verdict", "entry", "operation", "reason")


def add(app: typer.Typer) -> None:
    """Declare it in the group."""
    reads(
        app,
        "check",
        "veen op check --stream ops",
        "veen op check --stream ops --known domain.json --rule paid.P2 --rule access.A1",
        "veen op check --stream ops --data-dir copy --at 100 --json",
    )(check)


def check(
    asked: Reads,
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
    from veen.cli.client import files
    from veen.cli.failures import VIOLATED_STATUS
    from veen.cli.overlay import asking, telling
    from veen.overlays.operations import MEANING, OPERATIONS, Rule, violations

    wanted = rules or [str(rule) for rule in MEANING]
    strange = [rule for rule in wanted if rule not in Rule.__members__.values()]
    if strange:
        raise Misuse(f"there is no rule {strange[0]!r}", f"they are {', '.join(Rule)}")
    world = _read(known)
    if asked.out is not None:
        files.check_new(asked.out)

    async def work(view: "View[Any, Any]", name: str) -> "Checked":
        async with view.reading(asking.place(asked.at, view)) as reading:
            found = await _findings(view, list(reading.states.values()), world, not asked.no_cache)
            chosen = tuple(one for one in found if str(one.rule) in wanted)
            told = _answer(chosen, every)
            return chosen, told, await asking.basis_of(asked, view, reading, name, told)

    findings, told, basis = asking.viewing(asked, OPERATIONS, work)
    telling.tell(told, basis, asked)
    if violations(findings):
        raise typer.Exit(VIOLATED_STATUS)


async def _findings(
    view: "View[Any, Any]", entries: "list[Entry | None]", known: "World", cached: bool
) -> "tuple[Finding, ...]":
    from dataclasses import replace

    from veen.overlays.operations import check, operations

    listed = operations(entries)
    world = await _with_states(known, view, listed, cached)
    return check(listed, replace(world, stream_id=view.stream_id))


def _read(known: Path | None) -> "World":
    """What is known beside the log."""
    from dataclasses import fields

    from veen.cli.failures import hinted
    from veen.core import Malformed
    from veen.overlays.operations.evidence import Evidence, read

    try:
        return read(b"{}" if known is None else known.read_bytes())
    except Malformed as error:
        names = ", ".join(one.name for one in fields(Evidence))
        raise hinted(Malformed(str(known), error.reason), f"it is a JSON object with some of {names}") from None


async def _with_states(world: "World", view: "View[Any, Any]", listed: "Sequence[Logged]", cached: bool) -> "World":
    """What the log itself says where its checkpoints say something: the hub's root there, and our own state."""
    from dataclasses import replace

    from veen.overlays import At, registry
    from veen.overlays.operations import StateCheckpoint
    from veen.overlays.operations.index import said
    from veen.overlays.operations.world import Place
    from veen.state.view import View

    roots: dict[Place, bytes] = {}
    states: dict[tuple[str, bytes, Place], bytes] = {}
    overlays = registry()
    for one, event in said(listed, StateCheckpoint):
        place, at = Place(one.entry.label, event.upto_stream_seq), At(one.entry.epoch, event.upto_stream_seq)
        if not 1 <= event.upto_stream_seq < one.entry.stream_seq:
            continue
        roots[place] = (await view.source.receipt(view.stream_id, at)).mmr_root
        overlay = overlays.of_class(event.state_class)
        if overlay is None:
            continue
        async with View(view.source, view.stream_id, overlay, cached=cached) as other, other.reading(at) as reading:
            part = (event.state_id,) if event.state_id in reading.states else ()
            states[event.state_class, event.state_id, place] = reading.state_hash(*part)
    return replace(
        world, root_at=roots.get, state_at=lambda named, state_id, place: states.get((named, state_id, place))
    )


def _answer(findings: "tuple[Finding, ...]", every: bool) -> "Answer":
    from veen.cli.client.showing import printable, short
    from veen.cli.overlay import asking, telling
    from veen.state.view import shown

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
            "places": [telling.place_data(at) for at in one.places],
            "reason": one.reason,
        }
        for one in findings
    ]
    told = ", ".join(f"{counts[verdict]} {word}" for verdict, word in WORDS.items() if counts[verdict])
    return asking.Answer(
        columns=COLUMNS,
        rows=rows,
        data={"findings": data, "counts": {verdict: counts[verdict] for verdict in WORDS}},
        parts=_shown(findings),
        remarks=(told or "no operation is in this stream",),
    )


def _shown(findings: "tuple[Finding, ...]") -> tuple[bytes, ...]:
    """The operations that --prove shows: those that violate something, or all of them where none does."""
    from veen.overlays.operations import violations

    told = violations(findings) or findings
    return tuple(dict.fromkeys(one.operation_id for one in told if one.operation_id is not None))
