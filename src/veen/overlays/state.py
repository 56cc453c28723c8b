"""One encoding for a whole state, so that its hash can stand for it. Spec §11.1; state snapshots, 001 spec-3 §7.

    state       [ [part, state of the part], … ], ascending by part
    state_hash  Ht("veen/state-" || class, state)

The state of some parts alone hashes in the same way: a snapshot of one wallet is the state that has only that part.
"""

from collections.abc import Mapping
from typing import TypeVar

from veen.core.cbor import heads
from veen.core.hashing import ht
from veen.overlays.overlay import Overlay

S = TypeVar("S")
M = TypeVar("M")


def encode_states(overlay: Overlay[S, M], states: Mapping[bytes, S]) -> bytes:
    """The canonical state."""
    pairs = [
        heads.write_head(heads.ARRAY, 2) + heads.write_bstr(part) + overlay.encode_state(states[part])
        for part in sorted(states)
    ]
    return heads.write_head(heads.ARRAY, len(pairs)) + b"".join(pairs)


def state_hash(overlay: Overlay[S, M], states: Mapping[bytes, S]) -> bytes:
    """What a snapshot of these states says."""
    return ht(f"veen/state-{overlay.CLASS}", encode_states(overlay, states))
