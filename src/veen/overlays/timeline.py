"""A fold that is kept: any part at any place in O(log n), and the summary of any range from a tree of summaries.

Every part has its own line of the events it took, numbered from 0. Sixteen neighbours make a block, sixteen blocks a
larger one, and each whole block keeps its summary; after every fourth event the state is kept too. Only what was
neither a copy nor refused is on the line, so a summary of it always runs.

    m                        class, version, settings: whose rows these are
    b epoch                  Tip: the label of the epoch, how far it was taken in, the peaks of its tree there
    p part                   Head: its name, its state now, the sums of its unfinished blocks
    o place, part            where a part was first touched; its name
    l place, part            the same, for the parts that are live
    e part, place            number of the event, and the entry
    s part, number           its state after 4 · number events
    n part, height, number   the summary of a whole block
    d part and key           where a step was first known by that key
    f place, number          Fault

A part is named by its hash in keys. The tree's leaves are the `msg_id` of every entry, ours or not, so the rows know
the root of the log they were made from; they hold for that log only.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Generic, TypeVar

from veen.core import Malformed, Mmr, Unverified, cbor
from veen.core.hashing import u64be
from veen.overlays.blocks import STRIDE, Bound, Head, Tip, cover, first_key, part_key
from veen.overlays.entry import AT_BYTES, At
from veen.overlays.event import Fault
from veen.overlays.overlay import Overlay, Step, step_of
from veen.overlays.rows import Rows
from veen.overlays.summary import Summary

S = TypeVar("S")
M = TypeVar("M")

FORMAT = 1
META, TIP, HEAD, BIRTH, LIVE, EVENT, STATE, NODE, FIRST, FAULT = (bytes((code,)) for code in b"mbpolesndf")
_NUMBER_BYTES = 8
RootAt = Callable[[Bound], bytes | None]


class Timeline(Generic[S, M]):
    """What was kept of one overlay's fold of one stream. Raises `Malformed` where the rows are of another."""

    def __init__(self, overlay: Overlay[S, M], rows: Rows) -> None:
        self.overlay = overlay
        self._rows = rows
        kept = rows.get(META)
        if kept is not None and kept != owner(overlay):
            raise Malformed("cache", f"made for another overlay than {overlay.CLASS} version {overlay.VERSION}")

    def bounds(self) -> tuple[Bound, ...]:
        """The prefixes these rows were made from, one per label, by epoch."""
        found = []
        for key, row in self._rows.scan(TIP):
            tip = Tip.decode(row)
            found.append(Bound(tip.label, int.from_bytes(key[1:], "big"), tip.upto_seq, tip.mmr_root()))
        return tuple(found)

    @property
    def rows(self) -> Rows:
        """Where it looks things up: to lay further rows over them."""
        return self._rows

    def tree(self, epoch: int) -> Mmr:
        """The tree of an epoch's label as far as it was taken in; an empty one where nothing was."""
        row = self._rows.get(TIP + u64be(epoch))
        return Mmr() if row is None else Tip.decode(row).tree()

    def upto(self) -> At | None:
        """The last place taken in."""
        bounds = self.bounds()
        return At(bounds[-1].epoch, bounds[-1].upto_seq) if bounds else None

    def check(self, root_at: RootAt) -> None:
        """Refuse these rows unless the log still has, at every bound, the root they were made under.

        `root_at` gives the verified root of the log at that size, None where the log does not reach it.
        """
        for bound in self.bounds():
            if root_at(bound) != bound.mmr_root:
                where = f"entry {bound.upto_seq} of label {bound.label.hex()}"
                raise Unverified("cache", f"the log does not have the root this cache was made under, at {where}")

    def state(self, part: bytes, at: At | None = None) -> S:
        """The state of a part after the entry at a place, by default the last one."""
        found = self._state(part_key(part), part, at)
        return self.overlay.INITIAL if found is None else found

    def known(self, part: bytes, key: bytes) -> At | None:
        """Where a step was first known by a key."""
        row = self._rows.get(FIRST + first_key(part, key))
        return None if row is None else At.of_key(row)

    def states(self, at: At | None = None) -> Mapping[bytes, S]:
        """The whole state after a place. Each part is worked out when it is asked for."""
        return StatesAt(self, at)

    def fold(self, part: bytes, first: At, last: At) -> M:
        """The summary of what a part took from `first` to `last`, both included."""
        key = EVENT + part_key(part)
        forward = self._rows.scan(key, first.key())
        start, stop = next(forward, None), next(self._rows.back(key, last.key()), None)
        if start is None or stop is None or start[0] > stop[0]:
            return self.overlay.EMPTY
        blocks = list(cover(_number(start[1]), _number(stop[1]) + 1))
        edge = len(list(takewhile(lambda block: block[0] == 0, blocks)))
        tail = len(list(takewhile(lambda block: block[0] == 0, reversed(blocks[edge:]))))
        summed = self.overlay.EMPTY
        for _, row in islice(self._rows.scan(key, first.key()), edge):
            summed = self.overlay.merge(summed, self.overlay.lift(self._step(part, row)))
        for height, number in blocks[edge : len(blocks) - tail]:
            summed = self.overlay.merge(summed, self._node(part, height, number))
        for _, row in reversed(list(islice(self._rows.back(key, last.key()), tail))):
            summed = self.overlay.merge(summed, self.overlay.lift(self._step(part, row)))
        return summed

    def summary(self, first: At, last: At) -> Summary[M]:
        """The summary of all parts from `first` to `last`, both included, and the faults there."""
        touched = {part: self.fold(part, first, last) for part in self.parts(last) if self._touches(part, first, last)}
        return Summary(touched, tuple(self.faults(first, last)))

    def history(self, part: bytes, first: At | None = None, last: At | None = None) -> Iterator[Step]:
        """The steps a part took, in order."""
        prefix = EVENT + part_key(part)
        for key, row in self._rows.scan(prefix, first.key() if first else b""):
            if last is not None and key[len(prefix) :] > last.key():
                return
            yield self._step(part, row)

    def faults(self, first: At | None = None, last: At | None = None) -> Iterator[Fault]:
        """The entries that changed nothing, in order."""
        for key, row in self._rows.scan(FAULT, first.key() if first else b""):
            if last is not None and key[1 : 1 + AT_BYTES] > last.key():
                return
            yield Fault.decode(row)

    def parts(self, at: At | None = None) -> Iterator[bytes]:
        """The parts touched by then, in the order in which they were first touched."""
        for key, row in self._rows.scan(BIRTH):
            if at is not None and key[1 : 1 + AT_BYTES] > at.key():
                return
            yield row

    def live(self) -> Iterator[tuple[bytes, S]]:
        """The parts that are live now, with their states, in the order in which they were first touched."""
        for _, part in self._rows.scan(LIVE):
            yield part, self.state(part)

    def _touches(self, part: bytes, first: At, last: At) -> bool:
        line = EVENT + part_key(part)
        newest = next(self._rows.back(line, last.key()), None)
        return newest is not None and newest[0] >= line + first.key()

    def _state(self, hashed: bytes, part: bytes, at: At | None) -> S | None:
        if at is None:
            row = self._rows.get(HEAD + hashed)
            return None if row is None else Head.decode_state(self.overlay, row)
        line = EVENT + hashed
        newest = next(self._rows.back(line, at.key()), None)
        if newest is None:
            return None
        whole, rest = divmod(_number(newest[1]) + 1, STRIDE)
        state = self._snapshot(part, hashed, whole)
        for _, row in reversed(list(islice(self._rows.back(line, at.key()), rest))):
            state = self.overlay.apply(state, self._step(part, row))
        return state

    def _snapshot(self, part: bytes, hashed: bytes, whole: int) -> S:
        if whole == 0:
            return self.overlay.INITIAL
        return self.overlay.decode_state(part, self._row(STATE + hashed + u64be(whole)))

    def _node(self, part: bytes, height: int, number: int) -> M:
        key = node_key(part_key(part), height, number)
        return self.overlay.decode_summary(part, self._row(key))

    def _row(self, key: bytes) -> bytes:
        row = self._rows.get(key)
        if row is None:
            raise Malformed("cache", "a row is missing")
        return row

    def _step(self, part: bytes, row: bytes) -> Step:
        return step_of(self.overlay, part, row[_NUMBER_BYTES:])


class StatesAt(Mapping[bytes, S], Generic[S, M]):
    """The state at a place as a mapping: what views look into, kept or in memory alike."""

    def __init__(self, timeline: Timeline[S, M], at: At | None) -> None:
        self._timeline = timeline
        self._at = at

    def __getitem__(self, part: bytes) -> S:
        found = self._timeline._state(part_key(part), part, self._at)
        if found is None:
            raise KeyError(part)
        return found

    def __iter__(self) -> Iterator[bytes]:
        return self._timeline.parts(self._at)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def owner(overlay: Overlay[S, M]) -> bytes:
    """Whose rows these are."""
    return cbor.encode([FORMAT, overlay.CLASS, overlay.VERSION, overlay.settings()])


def node_key(hashed: bytes, height: int, number: int) -> bytes:
    return NODE + hashed + bytes((height,)) + u64be(number)


def event_row(number: int, entry: bytes) -> bytes:
    return u64be(number) + entry


def _number(row: bytes) -> int:
    return int.from_bytes(row[:_NUMBER_BYTES], "big")
