"""The laws that every overlay must satisfy for every log, cut at any place. Tests of overlays call `check_laws`.

monoid       EMPTY is the identity, merge is associative, and every grouping of pieces gives the same summary
pieces       running a summary gives the same state as folding entry by entry; it fails only if a step was refused
faults       removing the entries that were not applied does not change the state
encodings    summaries and states survive a round trip and have exactly one encoding
kept         a timeline returns for every place what a fold of the log up to that place returns
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TypeVar

from veen.core import mmr
from veen.overlays.event import At, EventFault, FaultKind, FoldEntry
from veen.overlays.fold import (
    ShippedSummary,
    Summary,
    first_places,
    fold,
    merge,
    receive,
    run,
    ship,
    state_hash,
    summarise,
)
from veen.overlays.kept_fold import MemoryRows, Timeline, extend
from veen.overlays.overlay import Overlay

S = TypeVar("S")
M = TypeVar("M")
Log = Sequence[FoldEntry]


class LawBroken(AssertionError):
    """An overlay violates a law; the message names the law and the place."""


def check_laws(overlay: Overlay[S, M], entries: Log) -> None:
    """Check all laws on the log of one label, from entry 1.

    The cost is cubic in the length of the log, so use at most about two dozen entries.
    """
    _monoid(overlay, entries)
    _pieces(overlay, entries)
    _faults(overlay, entries)
    _encodings(overlay, entries)
    _kept(overlay, entries)


def cuts(entries: Log) -> Iterator[tuple[Log, Log]]:
    """Every split of the log into two pieces."""
    for place in range(len(entries) + 1):
        yield entries[:place], entries[place:]


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise LawBroken(law)


def _monoid(overlay: Overlay[S, M], entries: Log) -> None:
    known = first_places(overlay, entries)

    def summed(piece: Log) -> Summary[M]:
        return summarise(overlay, piece, known)

    whole, nothing = summed(entries), summed(())
    for one in whole.parts.values():
        _require(overlay.merge(overlay.EMPTY, one) == one == overlay.merge(one, overlay.EMPTY), "EMPTY is the identity")
    _require(
        merge(overlay, nothing, whole) == whole == merge(overlay, whole, nothing), "the summary of no entries is empty"
    )
    for place, (head, tail) in enumerate(cuts(entries)):
        a, rest = summed(head), summed(tail)
        _require(
            merge(overlay, a, rest) == whole,
            f"the summaries before and after entry {place} merge to the summary of the whole log",
        )
        for middle, end in cuts(tail):
            b, c = summed(middle), summed(end)
            left, right = merge(overlay, merge(overlay, a, b), c), merge(overlay, a, merge(overlay, b, c))
            _require(left == right, f"merge is associative at {place} and {place + len(middle)}")


def _pieces(overlay: Overlay[S, M], entries: Log) -> None:
    known, after = first_places(overlay, entries), fold(overlay, entries)
    refused = {fault.part for fault in after.faults if fault.kind == FaultKind.REFUSED}
    for place, (head, tail) in enumerate(cuts(entries)):
        states, stuck = run(overlay, fold(overlay, head).states, summarise(overlay, tail, known))
        _require(
            set(stuck) <= refused, f"a summary after entry {place} fails to run only on parts where a step was refused"
        )
        for part, state in states.items():
            expected = after.state(part)
            _require(part in stuck or state == expected, f"a summary after entry {place} runs to the state of a fold")


def _faults(overlay: Overlay[S, M], entries: Log) -> None:
    whole = fold(overlay, entries)
    running, applied = fold(overlay, ()), []
    for entry in entries:
        if any(not isinstance(outcome, EventFault) for outcome in running.add(entry)):
            applied.append(entry)
    kept = fold(overlay, applied)
    _require(kept.states == whole.states, "entries that were not applied can be removed")
    _require(state_hash(overlay, kept.states) == state_hash(overlay, whole.states), "equal states have the same hash")


def _encodings(overlay: Overlay[S, M], entries: Log) -> None:
    summary, states = summarise(overlay, entries, first_places(overlay, entries)), fold(overlay, entries).states
    for part, summed in summary.parts.items():
        back = overlay.decode_summary(part, overlay.encode_summary(summed))
        _require(back == summed, "a summary survives encoding and decoding")
        _require(overlay.encode_summary(back) == overlay.encode_summary(summed), "a summary has one encoding")
    for part, state in states.items():
        again = overlay.decode_state(part, overlay.encode_state(state))
        _require(again == state, "a state survives encoding and decoding")
        _require(overlay.encode_state(again) == overlay.encode_state(state), "a state has one encoding")
        _require(all(isinstance(name, str) for name in overlay.plain(part, state)), "the keys of plain() are strings")
    if entries:
        sent = ship(overlay, summary, entries, _root(entries))
        _require(
            receive(overlay, ShippedSummary.decode(sent.encode())) == summary, "a shipped summary is received unchanged"
        )


def _kept(overlay: Overlay[S, M], entries: Log) -> None:
    rows, half, whole = MemoryRows(), len(entries) // 2, fold(overlay, entries)
    extend(overlay, rows, entries[:half], _root(entries[:half]))
    extend(overlay, rows, entries[half:], _root(entries))
    timeline = Timeline(overlay, rows)
    _require(dict(timeline.states()) == whole.states, "the kept states equal those of a fold")
    live = [(part, whole.states[part]) for part in timeline.parts() if overlay.live(whole.states[part])]
    _require(list(timeline.live()) == live, "the live parts are those with a live state")
    for place in range(len(entries) + 1):
        at, prefix = At(0, place), fold(overlay, entries[:place])
        rest = timeline.summary(At(0, place + 1), At(0, len(entries)))
        _require(
            run(overlay, prefix.states, rest) == (whole.states, ()),
            f"the summary after entry {place} runs to the final state",
        )
        _require(
            [*prefix.faults, *rest.faults] == whole.faults, f"the faults up to and after entry {place} are all faults"
        )
        _require(dict(timeline.states(at)) == prefix.states, f"the kept states at entry {place} equal those of a fold")
        _require(
            list(timeline.faults(last=at)) == prefix.faults,
            f"the kept faults up to entry {place} equal those of a fold",
        )
        for part, state in whole.states.items():
            later = timeline.fold(part, At(0, place + 1), At(0, len(entries)))
            _require(
                overlay.run(timeline.state(part, at), later) == state,
                f"the part summary after entry {place} runs to the final state",
            )
            lifted = [overlay.lift(step) for step in timeline.history(part, last=at)]
            summed = reduce(overlay.merge, lifted, overlay.EMPTY)
            _require(timeline.fold(part, At(0, 1), at) == summed, f"the summary tree covers entries 1 to {place}")


def _root(entries: Log) -> bytes:
    return mmr.root(entry.msg_id for entry in entries)
