"""Overlays turn the events of a stream into state, as pure folds that anyone can recompute. Spec §11.

`fold` works in memory, `kept_fold_lmdb.Cache` stores a fold in a directory, and `summarise`, `merge` and `run` fold a
log in pieces. Each overlay has its own module with its events and views. docs/overlays.md explains how to write one.
"""

from veen.overlays.builtin import registry
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import Event, EventFault, FaultKind, draft
from veen.overlays.fold import Applied, Fold, FoldLookup, Outcome, encode_states, fold, preview, state_hash
from veen.overlays.monoid_laws import LawBroken, check_laws
from veen.overlays.overlay import FoldStep, MergeOverlay, Overlay, WalkOverlay
from veen.overlays.registry import ENTRY_POINT_GROUP, AnyOverlay, Registry
from veen.overlays.summary import (
    ShippedSummary,
    Summary,
    first_places,
    merge,
    merge_first_places,
    receive,
    run,
    ship,
    summarise,
)

__all__ = [
    "AnyOverlay",
    "Applied",
    "At",
    "ENTRY_POINT_GROUP",
    "Event",
    "EventFault",
    "FaultKind",
    "Fold",
    "FoldEntry",
    "FoldLookup",
    "FoldStep",
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
    "first_places",
    "fold",
    "merge",
    "merge_first_places",
    "preview",
    "receive",
    "registry",
    "run",
    "ship",
    "state_hash",
    "summarise",
]
