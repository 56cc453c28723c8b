"""What must hold for every overlay and every log, wherever it is cut: a test for overlays, ours and others'.

monoid       EMPTY is the identity; merging is associative; every grouping of pieces comes to the same summary
pieces       a summary runs to the state that a walk comes to, and is stuck only where the walk refused something
faults       without the entries that changed nothing, the log comes to the same state
encodings    summaries and states come back from their encodings, and have one each
kept         a timeline answers for every place as a fold of the log up to there does
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TypeVar

from veen.core import mmr
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import EventFault, FaultKind
from veen.overlays.fold import fold, state_hash
from veen.overlays.kept_fold import MemoryRows, Timeline, extend
from veen.overlays.overlay import Overlay
from veen.overlays.summary import ShippedSummary, Summary, first_places, merge, receive, run, ship, summarise

S = TypeVar("S")
M = TypeVar("M")
Log = Sequence[FoldEntry]


class LawBroken(AssertionError):
    """A law that an overlay does not keep, and where."""


def check_laws(overlay: Overlay[S, M], entries: Log) -> None:
    """All of them, for the log of one label from entry 1. Takes the cube of its length: two dozen entries are many."""
    _monoid(overlay, entries)
    _pieces(overlay, entries)
    _faults(overlay, entries)
    _encodings(overlay, entries)
    _kept(overlay, entries)


def cuts(entries: Log) -> Iterator[tuple[Log, Log]]:
    """The log in two pieces, at every place."""
    for place in range(len(entries) + 1):
        yield entries[:place], entries[place:]


def _hold(right: bool, law: str) -> None:
    if not right:
        raise LawBroken(law)


def _monoid(overlay: Overlay[S, M], entries: Log) -> None:
    known = first_places(overlay, entries)

    def summed(piece: Log) -> Summary[M]:
        return summarise(overlay, piece, known)

    whole, nothing = summed(entries), summed(())
    for one in whole.parts.values():
        _hold(overlay.merge(overlay.EMPTY, one) == one == overlay.merge(one, overlay.EMPTY), "EMPTY is the identity")
    _hold(merge(overlay, nothing, whole) == whole == merge(overlay, whole, nothing), "no entries sum up to nothing")
    for place, (head, tail) in enumerate(cuts(entries)):
        a, rest = summed(head), summed(tail)
        _hold(merge(overlay, a, rest) == whole, f"the pieces before and after entry {place} merge to the whole")
        for middle, end in cuts(tail):
            b, c = summed(middle), summed(end)
            left, right = merge(overlay, merge(overlay, a, b), c), merge(overlay, a, merge(overlay, b, c))
            _hold(left == right, f"merging is associative at {place} and {place + len(middle)}")


def _pieces(overlay: Overlay[S, M], entries: Log) -> None:
    known, after = first_places(overlay, entries), fold(overlay, entries)
    refused = {fault.part for fault in after.faults if fault.kind == FaultKind.REFUSED}
    for place, (head, tail) in enumerate(cuts(entries)):
        states, stuck = run(overlay, fold(overlay, head).states, summarise(overlay, tail, known))
        _hold(set(stuck) <= refused, f"a summary from entry {place} on is stuck where nothing was refused")
        for part, state in states.items():
            walked = after.state(part)
            _hold(part in stuck or state == walked, f"a summary from entry {place} on runs to the state of a walk")


def _faults(overlay: Overlay[S, M], entries: Log) -> None:
    whole = fold(overlay, entries)
    running, useful = fold(overlay, ()), []
    for entry in entries:
        if any(not isinstance(outcome, EventFault) for outcome in running.add(entry)):
            useful.append(entry)
    kept = fold(overlay, useful)
    _hold(kept.states == whole.states, "entries that changed nothing can be left out")
    _hold(state_hash(overlay, kept.states) == state_hash(overlay, whole.states), "equal states have one hash")


def _encodings(overlay: Overlay[S, M], entries: Log) -> None:
    summary, states = summarise(overlay, entries, first_places(overlay, entries)), fold(overlay, entries).states
    for part, summed in summary.parts.items():
        back = overlay.decode_summary(part, overlay.encode_summary(summed))
        _hold(back == summed, "a summary comes back from its encoding")
        _hold(overlay.encode_summary(back) == overlay.encode_summary(summed), "a summary has one encoding")
    for part, state in states.items():
        again = overlay.decode_state(part, overlay.encode_state(state))
        _hold(again == state, "a state comes back from its encoding")
        _hold(overlay.encode_state(again) == overlay.encode_state(state), "a state has one encoding")
        _hold(all(isinstance(name, str) for name in overlay.plain(part, state)), "a plain state has names")
    if entries:
        sent = ship(overlay, summary, entries, _root(entries))
        _hold(receive(overlay, ShippedSummary.decode(sent.encode())) == summary, "a summary arrives as it was sent")


def _kept(overlay: Overlay[S, M], entries: Log) -> None:
    rows, half, whole = MemoryRows(), len(entries) // 2, fold(overlay, entries)
    extend(overlay, rows, entries[:half], _root(entries[:half]))
    extend(overlay, rows, entries[half:], _root(entries))
    timeline = Timeline(overlay, rows)
    _hold(dict(timeline.states()) == whole.states, "what is kept is the state of a fold")
    live = [(part, whole.states[part]) for part in timeline.parts() if overlay.live(whole.states[part])]
    _hold(list(timeline.live()) == live, "the live parts are those whose state is")
    for place in range(len(entries) + 1):
        at, prefix = At(0, place), fold(overlay, entries[:place])
        rest = timeline.summary(At(0, place + 1), At(0, len(entries)))
        _hold(
            run(overlay, prefix.states, rest) == (whole.states, ()), f"all that follows entry {place} runs to the end"
        )
        _hold([*prefix.faults, *rest.faults] == whole.faults, f"the faults after entry {place} are the rest of them")
        _hold(dict(timeline.states(at)) == prefix.states, f"what is kept of entry {place} is the state of a fold")
        _hold(list(timeline.faults(last=at)) == prefix.faults, f"the faults up to entry {place} are those of a fold")
        for part, state in whole.states.items():
            later = timeline.fold(part, At(0, place + 1), At(0, len(entries)))
            _hold(overlay.run(timeline.state(part, at), later) == state, f"what follows entry {place} runs to the end")
            lifted = [overlay.lift(step) for step in timeline.history(part, last=at)]
            summed = reduce(overlay.merge, lifted, overlay.EMPTY)
            _hold(timeline.fold(part, At(0, 1), at) == summed, f"the tree sums up entry 1 to {place}")


def _root(entries: Log) -> bytes:
    return mmr.root(entry.msg_id for entry in entries)
