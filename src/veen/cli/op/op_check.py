"""Check the operations of a stream against the rules of their profiles."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from veen.cli.kit.exit_status import VIOLATED_STATUS, hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_session import Answer, ReadSession, place_data
from veen.core import Malformed
from veen.overlays import At, registry
from veen.overlays.operations.operation_events import StateCheckpoint
from veen.overlays.operations.operation_index import OPERATIONS, LoggedOperation, of_kind, operations
from veen.overlays.operations.rule_checks import check, violations
from veen.overlays.operations.rules import ExternalFacts, FactsFile, LogPlace, RuleFinding, read
from veen.state.state_view import StateView, shown

_TONES = {"holds": Tone.GOOD, "violated": Tone.BAD, "open": Tone.WARN}
_WORDS = {"holds": "hold", "violated": "are violated", "open": "are open"}


async def findings(session: ReadSession, known: ExternalFacts) -> tuple[RuleFinding, ...]:
    state = await session.open(OPERATIONS)
    view = session.view_of(state)
    listed = operations(state.states.values())
    facts = await _with_states(known, view, listed, session.cached)
    return check(listed, replace(facts, stream_id=view.stream_id))


def read_facts(known: Path | None) -> ExternalFacts:
    """Read the file of --known."""
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


def answer(found: tuple[RuleFinding, ...], every: bool) -> Answer:
    """The findings, by default those that do not hold. The operations that violate a rule prove it."""
    counts = Counter(str(one.verdict) for one in found)
    data = [
        {
            "rule": str(one.rule),
            "verdict": str(one.verdict),
            "operation_id": one.operation_id,
            "places": [place_data(at) for at in one.places],
            "reason": one.reason,
        }
        for one in found
    ]
    summary = ", ".join(f"{counts[verdict]} {word}" for verdict, word in _WORDS.items() if counts[verdict])
    proved = (one.operation_id for one in violations(found) or found if one.operation_id is not None)
    return Answer(
        {
            "findings": data,
            "counts": {verdict: counts[verdict] for verdict in _WORDS},
            "_shown": [row for row in data if every or row["verdict"] != "holds"],
        },
        rows="_shown",
        columns=(
            "rule",
            ("verdict", lambda row: Marked(row["verdict"], _TONES[row["verdict"]])),
            ("entry", lambda row: ", ".join(shown(At(**at)) for at in row["places"])),
            ("operation", "operation_id"),
            "reason",
        ),
        parts=tuple(dict.fromkeys(proved)),
        remarks=(summary or "this stream has no operations",),
        status=VIOLATED_STATUS if violations(found) else 0,
    )
