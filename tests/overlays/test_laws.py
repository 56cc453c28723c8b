"""The laws see what breaks them: each of these overlays is right but for one thing."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.overlays.logs import LogLine, log, msg_id
from veen.core import cbor
from veen.overlays import AnyOverlay, FoldStep, LawBroken, check_laws
from veen.overlays.crdt import G_COUNTER, GCounter, Increment
from veen.overlays.queue import QUEUE, Put, Queue, Task, TaskClaim

A, B = bytes(32), b"\xff" * 32
COUNTED = log(Increment(A, 1), Increment(A, 2), LogLine(Increment(A, 2), msg_id(2)), Increment(B, 4), Increment(A, 300))
TASKS = log(Put(b"x"), TaskClaim(msg_id(1), 5), TaskClaim(msg_id(1), 5), Put(b"y"))


class NotAssociative(GCounter):
    def merge(self, a: int, b: int) -> int:
        return a + b if a == 0 or b == 0 else 2 * a + b


class NoIdentity(GCounter):
    EMPTY = 1


class Lossy(GCounter):
    def encode_state(self, state: int) -> bytes:
        return cbor.encode(state & 0xFF)


class TwoSpellings(GCounter):
    spelled = 0

    def encode_state(self, state: int) -> bytes:
        self.spelled += 1
        return cbor.encode([self.spelled, state])

    def decode_state(self, part: bytes, data: bytes) -> int:
        found = cbor.decode(data)
        assert isinstance(found, tuple)
        assert isinstance(found[1], int)
        return found[1]


class ChangedByRefused(Queue):
    def run(self, state: Task, summary: tuple[FoldStep, ...]) -> Task | None:
        for step in summary:
            state = self.apply(state, step)
        return state


class StuckForNothing(GCounter):
    def run(self, state: int, summary: int) -> int | None:
        return None if summary == 4 else state + summary


class Nameless(GCounter):
    def plain(self, part: bytes, state: int) -> Mapping[str, Any]:
        return {part: state}  # type: ignore[dict-item]


class LiftsOther(GCounter):
    def apply(self, state: int, step: FoldStep) -> int:
        return super().apply(state, step) + 1


@pytest.mark.parametrize("overlay", [G_COUNTER, QUEUE])
def test_a_correct_overlay_passes_the_laws(overlay: AnyOverlay) -> None:
    check_laws(overlay, COUNTED)
    check_laws(overlay, TASKS)
    check_laws(overlay, [])


@pytest.mark.parametrize(
    ("overlay", "law"),
    [
        (NotAssociative(), "merge"),
        (NoIdentity(), "identity"),
        (Lossy(), "survives encoding|same hash|received unchanged"),
        (TwoSpellings(), "one encoding|same hash"),
        (ChangedByRefused(), "state of a fold"),
        (StuckForNothing(), "fails to run"),
        (Nameless(), "keys of plain"),
        (LiftsOther(), "state of a fold"),
    ],
    ids=lambda given: type(given).__name__ if not isinstance(given, str) else "",
)
def test_a_violated_law_is_named(overlay: AnyOverlay, law: str) -> None:
    with pytest.raises(LawBroken, match=law):
        check_laws(overlay, TASKS if isinstance(overlay, Queue) else COUNTED)
