"""Overlays: what the events of a stream mean, as pure folds that anyone can recompute. Spec §11.

`fold` folds in memory, `cache.Cache` keeps a fold in a directory, `summarise`, `merge` and `run` fold in pieces. Each
overlay has a module of its own with its events and its views. How to write one: docs/overlays.md.
"""

from veen.overlays.builtin import registry
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import Event, EventFault, FaultKind, draft
from veen.overlays.fold import Applied, FaultBook, Fold, Outcome, encode_states, fold, foresee, state_hash
from veen.overlays.monoid_laws import LawBroken, check_laws
from veen.overlays.overlay import FoldStep, MergeOverlay, Overlay, WalkOverlay
from veen.overlays.registry import GROUP, AnyOverlay, Registry
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
    "Event",
    "EventFault",
    "FaultBook",
    "FaultKind",
    "Fold",
    "FoldEntry",
    "FoldStep",
    "GROUP",
    "LawBroken",
    "MergeOverlay",
    "Outcome",
    "Overlay",
    "Registry",
    "ShippedSummary",
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
