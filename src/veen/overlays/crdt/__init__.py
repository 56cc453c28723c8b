"""CRDT0: registers, sets and counters. 001, spec-1 §25."""

from veen.overlays.crdt.gcounter import G_COUNTER, GCounter, Increment, total
from veen.overlays.crdt.lww import LWW, Lww, Register, Write
from veen.overlays.crdt.orset import OR_SET, Add, OrSet, Remove, elements, has

__all__ = [
    "Add",
    "GCounter",
    "G_COUNTER",
    "Increment",
    "LWW",
    "Lww",
    "OR_SET",
    "OrSet",
    "Register",
    "Remove",
    "Write",
    "elements",
    "has",
    "total",
]
