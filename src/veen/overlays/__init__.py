"""Overlays turn the events of a stream into state, as pure folds that anyone can recompute. Spec §11.

`fold` works in memory, `kept_fold_lmdb.Cache` stores a fold in a directory, and `summarise`, `merge` and `run` fold a
log in pieces. Each overlay has its own module with its events and views. docs/overlays.md explains how to write one.
"""

from veen.overlays.event import At, Event, EventFault, FaultKind, FoldEntry, draft
from veen.overlays.fold import (
    Applied,
    Fold,
    FoldLookup,
    Outcome,
    ShippedSummary,
    Summary,
    encode_states,
    first_places,
    fold,
    merge,
    merge_first_places,
    preview,
    receive,
    run,
    ship,
    state_hash,
    summarise,
)
from veen.overlays.monoid_laws import LawBroken, check_laws
from veen.overlays.overlay import ENTRY_POINT_GROUP, AnyOverlay, FoldStep, MergeOverlay, Overlay, Registry, WalkOverlay
from veen.overlays.registry import registry

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
