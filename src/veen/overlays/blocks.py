"""Blocks of neighbours: which whole ones cover a range, and what is kept of a part. Pure arithmetic and encodings."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from veen.core import Mmr, cbor, mmr
from veen.core.cbor import Array, Bstr, ListOf, Uint, Wire
from veen.core.errors import Malformed
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_PEAKS
from veen.overlays.overlay import Overlay

S = TypeVar("S")
M = TypeVar("M")

FANOUT = 16  # neighbours in a block
STRIDE = 4  # events from one kept state to the next


def cover(first: int, end: int) -> Iterator[tuple[int, int]]:
    """`(height, number)` of the fewest whole blocks that make up `first` up to, not including, `end`, in order.

    A block of height h holds 16^h events; those of height 0 are single events.
    """
    while first < end:
        height, size = 0, 1
        while first % (size * FANOUT) == 0 and first + size * FANOUT <= end:
            height, size = height + 1, size * FANOUT
        yield height, first // size
        first += size


def part_key(part: bytes) -> bytes:
    """A part in 32 bytes, whatever its name."""
    return ht("veen/overlay-part", part)


def first_key(part: bytes, key: bytes) -> bytes:
    """What a step is known by, in 32 bytes."""
    return ht("veen/overlay-key", u64be(len(part)) + part + key)


@dataclass(frozen=True, slots=True)
class Tip(Wire):
    """How far the log of one label was taken in, and the tip of its tree there."""

    label: bytes
    upto_seq: int
    peaks: tuple[bytes, ...]

    LAYOUT: ClassVar = Array(
        "tip", Bstr("label"), Uint("upto_seq", least=1), ListOf("peaks", Bstr("peak"), most=MAX_PEAKS)
    )

    def flaw(self) -> str | None:
        return None if len(self.peaks) == self.upto_seq.bit_count() else "its peaks are not those of its size"

    @classmethod
    def of(cls, label: bytes, tree: Mmr) -> "Tip":
        return cls(label, tree.size, tuple(tree.peaks))

    def tree(self) -> Mmr:
        return Mmr(self.upto_seq, self.peaks)

    def mmr_root(self) -> bytes:
        return mmr.root_of(self.peaks)


@dataclass(frozen=True, slots=True)
class Bound:
    """The prefix of one label that something was worked out from: under another root it means nothing."""

    label: bytes
    epoch: int
    upto_seq: int
    mmr_root: bytes


@dataclass(slots=True)
class Head(Generic[S, M]):
    """What is known of a part at the end of its line, and the sums of the blocks that are not whole yet."""

    part: bytes
    count: int
    state: S
    birth: bytes = b""  # the place where it was first touched, as a key
    open_sums: list[M] = field(default_factory=list)  # by height, from 1

    def encode(self, overlay: Overlay[S, M]) -> bytes:
        sums = [overlay.encode_summary(one) for one in self.open_sums]
        return cbor.encode([self.part, self.count, overlay.encode_state(self.state), self.birth, sums])

    @classmethod
    def decode(cls, overlay: Overlay[S, M], data: bytes) -> "Head[S, M]":
        match cbor.decode(data, "part"):
            case (bytes() as part, int() as count, bytes() as state, bytes() as birth, tuple() as sums):
                kept = [overlay.decode_summary(part, one) for one in sums if isinstance(one, bytes)]
                return cls(part, count, overlay.decode_state(part, state), birth, kept)
        raise Malformed("part", "not a part's row")

    @staticmethod
    def decode_state(overlay: Overlay[S, M], data: bytes) -> S:
        """The state alone, which is all that most readers want."""
        match cbor.decode(data, "part"):
            case (bytes() as part, int(), bytes() as state, bytes(), tuple()):
                return overlay.decode_state(part, state)
        raise Malformed("part", "not a part's row")

    def take(self, overlay: Overlay[S, M], lifted: M, after: S) -> Iterator[tuple[int, int, M]]:
        """Put one event on the line; `(height, number, summary)` of each block that it made whole."""
        self.count += 1
        self.state = after
        rising, size = lifted, 1
        for height in range(1, len(self.open_sums) + 2):
            if height > len(self.open_sums):
                self.open_sums.append(overlay.EMPTY)
            rising = overlay.merge(self.open_sums[height - 1], rising)
            size *= FANOUT
            if self.count % size:
                self.open_sums[height - 1] = rising
                return
            self.open_sums[height - 1] = overlay.EMPTY
            yield height, self.count // size - 1, rising
