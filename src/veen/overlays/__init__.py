"""Overlays: what the events of a stream mean, as pure folds that anyone can recompute. Spec §11.

`fold` folds in memory, `cache.Cache` keeps a fold in a directory, `summarise`, `merge` and `run` fold in pieces. Each
overlay has a module of its own with its events and its views. How to write one: docs/overlays.md.
"""

from veen.overlays.builtin import registry
from veen.overlays.entry import At, Entry
from veen.overlays.event import Event, Fault, FaultKind, draft
from veen.overlays.fold import Applied, Book, Fold, Outcome, fold, foresee
from veen.overlays.laws import LawBroken, check_laws
from veen.overlays.overlay import MergeOverlay, Overlay, Step, WalkOverlay
from veen.overlays.registry import GROUP, AnyOverlay, Registry
from veen.overlays.state import encode_states, state_hash
from veen.overlays.summary import (
    ShippedSummary,
    Summary,
    firsts,
    merge,
    merge_firsts,
    receive,
    run,
    ship,
    summarise,
)

__all__ = [
    "AnyOverlay",
    "Applied",
    "At",
    "Book",
    "Entry",
    "Event",
    "Fault",
    "FaultKind",
    "Fold",
    "GROUP",
    "LawBroken",
    "MergeOverlay",
    "Outcome",
    "Overlay",
    "Registry",
    "ShippedSummary",
    "Step",
    "Summary",
    "WalkOverlay",
    "check_laws",
    "draft",
    "encode_states",
    "firsts",
    "fold",
    "foresee",
    "merge",
    "merge_firsts",
    "receive",
    "registry",
    "run",
    "ship",
    "state_hash",
    "summarise",
]
