"""Kept folds: a fold stored as rows, so that it can be extended and read at any place in O(log n) steps.

For each part the rows hold its events, its state after every `STRIDE` events, and a tree of summaries over blocks of
`FANOUT` neighbours. `Timeline` reads the rows and `extend` appends to them. No I/O here: `KeptRows` is the storage.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge as merge_sorted
from itertools import islice, takewhile
from operator import itemgetter
from typing import Annotated, Generic, Protocol, TypeVar

from veen.core import Malformed, Mmr, Unverified, cbor, mmr
from veen.core.cbor import Bstr, ListOf, Uint, Wire, array
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_PEAKS
from veen.overlays.event import AT_BYTES, At, EventFault, FoldEntry
from veen.overlays.fold import Applied, Summary, fold_entry
from veen.overlays.overlay import FoldStep, Overlay, step_of

S = TypeVar("S")
M = TypeVar("M")

FANOUT = 16  # children of a summary block
STRIDE = 4  # events between two stored states of a part


def cover(first: int, end: int) -> Iterator[tuple[int, int]]:
    """The fewest whole blocks, as `(height, number)` in order, that cover events `first` to `end` (exclusive).

    A block of height h holds FANOUT^h events; a block of height 0 is a single event.
    """
    while first < end:
        height, size = 0, 1
        while first % (size * FANOUT) == 0 and first + size * FANOUT <= end:
            height, size = height + 1, size * FANOUT
        yield height, first // size
        first += size


def part_key(part: bytes) -> bytes:
    """The key of a part: 32 bytes for a name of any length."""
    return ht("veen/overlay-part", part)


def first_key(part: bytes, key: bytes) -> bytes:
    """The row key for the first occurrence of a step's key, 32 bytes."""
    return ht("veen/overlay-key", u64be(len(part)) + part + key)


@array("tip")
class Tip(Wire):
    """The last folded entry of one label, and the peaks of its tree at that size."""

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    peaks: Annotated[tuple[bytes, ...], ListOf(Bstr(name="peak"), most=MAX_PEAKS)]

    def flaw(self) -> str | None:
        return None if len(self.peaks) == self.upto_seq.bit_count() else "the number of peaks does not match upto_seq"

    @classmethod
    def of(cls, label: bytes, tree: Mmr) -> "Tip":
        return cls(label, tree.size, tuple(tree.peaks))

    def tree(self) -> Mmr:
        return Mmr(self.upto_seq, self.peaks)

    def mmr_root(self) -> bytes:
        return mmr.root_of(self.peaks)


@dataclass(frozen=True, slots=True)
class LogPrefix:
    """The prefix of one label's log that rows were computed from. They are valid only under this root."""

    label: bytes
    epoch: int
    upto_seq: int
    mmr_root: bytes

    def check(self, root: bytes | None) -> None:
        """Raise `Unverified` unless the log has this root at this size."""
        if root != self.mmr_root:
            where = f"entry {self.upto_seq} of label {self.label.hex()}"
            raise Unverified("cache", f"the log has another root at {where} than when this cache was built")


@dataclass(slots=True)
class KeptHead(Generic[S, M]):
    """The latest state of a part, and the summaries of its incomplete blocks."""

    part: bytes
    count: int
    state: S
    birth: bytes = b""  # key of the place that first touched the part
    open_sums: list[M] = field(default_factory=list)  # by height, from 1

    def encode(self, overlay: Overlay[S, M]) -> bytes:
        sums = [overlay.encode_summary(one) for one in self.open_sums]
        return cbor.encode([self.part, self.count, overlay.encode_state(self.state), self.birth, sums])

    @classmethod
    def decode(cls, overlay: Overlay[S, M], data: bytes) -> "KeptHead[S, M]":
        match cbor.decode(data, "part"):
            case (bytes() as part, int() as count, bytes() as state, bytes() as birth, tuple() as sums):
                kept = [overlay.decode_summary(part, one) for one in sums if isinstance(one, bytes)]
                return cls(part, count, overlay.decode_state(part, state), birth, kept)
        raise Malformed("part", "not a part's row")

    @staticmethod
    def decode_state(overlay: Overlay[S, M], data: bytes) -> S:
        """Decode only the state, which is all that most readers need."""
        match cbor.decode(data, "part"):
            case (bytes() as part, int(), bytes() as state, bytes(), tuple()):
                return overlay.decode_state(part, state)
        raise Malformed("part", "not a part's row")

    def append(self, overlay: Overlay[S, M], lifted: M, after: S) -> Iterator[tuple[int, int, M]]:
        """Append one event and yield `(height, number, summary)` of each block that it completes."""
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


class KeptRows(Protocol):
    """An ordered map. A reader sees a stable snapshot."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, row: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key has the prefix, ascending, from `prefix + start` on."""
        ...

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key has the prefix, descending, from `prefix + end` back."""
        ...


class MemoryRows:
    """Rows in memory, alone or above others. Writes stay in memory and never change the rows below."""

    def __init__(self, below: KeptRows | None = None) -> None:
        self._below = below
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []  # ascending
        self._deleted: set[bytes] = set()  # keys of rows below

    def get(self, key: bytes) -> bytes | None:
        own = self._rows.get(key)
        if own is not None or self._below is None or key in self._deleted:
            return own
        return self._below.get(key)

    def put(self, key: bytes, row: bytes) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row

    def delete(self, key: bytes) -> None:
        if self._below is not None:
            self._deleted.add(key)
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        own = self._own(range(bisect_left(self._keys, prefix + start), len(self._keys)), prefix)
        return own if self._below is None else self._above(own, self._below.scan(prefix, start), reverse=False)

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        own = self._own(range(bisect_right(self._keys, prefix + end) - 1, -1, -1), prefix)
        return own if self._below is None else self._above(own, self._below.back(prefix, end), reverse=True)

    def _own(self, indexes: range, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for index in indexes:
            key = self._keys[index]
            if not key.startswith(prefix):
                return
            yield key, self._rows[key]

    def _above(
        self, own: Iterator[tuple[bytes, bytes]], below: Iterator[tuple[bytes, bytes]], *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """The own rows and those below that are neither replaced nor deleted."""
        visible = (row for row in below if row[0] not in self._rows and row[0] not in self._deleted)
        return merge_sorted(own, visible, key=itemgetter(0), reverse=reverse)


FORMAT = 1
META, TIP, HEAD, BIRTH, LIVE, EVENT, STATE, NODE, FIRST, FAULT = (bytes((code,)) for code in b"mbpolesndf")
_NUMBER_BYTES = 8
RootAt = Callable[[LogPrefix], bytes | None]


class Timeline(Generic[S, M]):
    """Reads the kept fold of one overlay over one stream. Raises `Malformed` if the rows belong to another overlay."""

    def __init__(self, overlay: Overlay[S, M], rows: KeptRows) -> None:
        self.overlay = overlay
        self._rows = rows
        kept = rows.get(META)
        if kept is not None and kept != fold_identity(overlay):
            raise Malformed(
                "cache", f"not built by overlay {overlay.CLASS} version {overlay.VERSION} with these settings"
            )

    def prefixes(self) -> tuple[LogPrefix, ...]:
        """The log prefixes that these rows were computed from, one per label, by epoch."""
        found = []
        for key, row in self._rows.scan(TIP):
            tip = Tip.decode(row)
            found.append(LogPrefix(tip.label, int.from_bytes(key[1:], "big"), tip.upto_seq, tip.mmr_root()))
        return tuple(found)

    @property
    def rows(self) -> KeptRows:
        """The storage of this timeline, for rows above it."""
        return self._rows

    def tree(self, epoch: int) -> Mmr:
        """The tree of an epoch's label up to the last folded entry; empty if there is none."""
        row = self._rows.get(TIP + u64be(epoch))
        return Mmr() if row is None else Tip.decode(row).tree()

    def upto(self) -> At | None:
        """The last folded place."""
        prefixes = self.prefixes()
        return At(prefixes[-1].epoch, prefixes[-1].upto_seq) if prefixes else None

    def check(self, root_at: RootAt) -> None:
        """Raise `Unverified` unless the log still has the root of every prefix that these rows were computed from.

        `root_at` returns the verified root of the log at that size, or None if the log is shorter.
        """
        for prefix in self.prefixes():
            prefix.check(root_at(prefix))

    def state(self, part: bytes, at: At | None = None) -> S:
        """The state of a part after the entry at `at`, by default the last entry."""
        found = self._state(part_key(part), part, at)
        return self.overlay.INITIAL if found is None else found

    def known(self, part: bytes, key: bytes) -> At | None:
        """The place where a key first occurred in a part, or None."""
        row = self._rows.get(FIRST + first_key(part, key))
        return None if row is None else At.of_key(row)

    def states(self, at: At | None = None) -> Mapping[bytes, S]:
        """The whole state after a place. Each part is computed on access."""
        return StatesAt(self, at)

    def fold(self, part: bytes, first: At, last: At) -> M:
        """The summary of a part's events from `first` to `last`, both included."""
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
        """The summary of all parts from `first` to `last`, both included, with the faults."""
        touched = {part: self.fold(part, first, last) for part in self.parts(last) if self._touches(part, first, last)}
        return Summary(touched, tuple(self.faults(first, last)))

    def history(self, part: bytes, first: At | None = None, last: At | None = None) -> Iterator[FoldStep]:
        """The steps applied to a part, in order."""
        prefix = EVENT + part_key(part)
        for key, row in self._rows.scan(prefix, first.key() if first else b""):
            if last is not None and key[len(prefix) :] > last.key():
                return
            yield self._step(part, row)

    def faults(self, first: At | None = None, last: At | None = None) -> Iterator[EventFault]:
        """The entries that were not applied, in order."""
        for key, row in self._rows.scan(FAULT, first.key() if first else b""):
            if last is not None and key[1 : 1 + AT_BYTES] > last.key():
                return
            yield EventFault.decode(row)

    def parts(self, at: At | None = None) -> Iterator[bytes]:
        """The parts touched up to `at`, in the order of their first entry."""
        for key, row in self._rows.scan(BIRTH):
            if at is not None and key[1 : 1 + AT_BYTES] > at.key():
                return
            yield row

    def live(self) -> Iterator[tuple[bytes, S]]:
        """The parts that are live now, with their states, in the order of their first entry."""
        for _, part in self._rows.scan(LIVE):
            yield part, self.state(part)

    def _touches(self, part: bytes, first: At, last: At) -> bool:
        line = EVENT + part_key(part)
        newest = next(self._rows.back(line, last.key()), None)
        return newest is not None and newest[0] >= line + first.key()

    def _state(self, hashed: bytes, part: bytes, at: At | None) -> S | None:
        if at is None:
            row = self._rows.get(HEAD + hashed)
            return None if row is None else KeptHead.decode_state(self.overlay, row)
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
            raise Malformed("cache", "a row is missing; discard the cache to rebuild it from the log")
        return row

    def _step(self, part: bytes, row: bytes) -> FoldStep:
        return step_of(self.overlay, part, row[_NUMBER_BYTES:])


class StatesAt(Mapping[bytes, S], Generic[S, M]):
    """The state at a place as a mapping, so that views work on kept folds and on folds in memory."""

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


def fold_identity(overlay: Overlay[S, M]) -> bytes:
    """Identifies the format, overlay, rules version and settings that rows were computed with."""
    return cbor.encode([FORMAT, overlay.CLASS, overlay.VERSION, overlay.settings()])


def node_key(hashed: bytes, height: int, number: int) -> bytes:
    return NODE + hashed + bytes((height,)) + u64be(number)


def _number(row: bytes) -> int:
    return int.from_bytes(row[:_NUMBER_BYTES], "big")


class KeptFold(Generic[S, M]):
    """The kept fold of one overlay over one stream, in memory. `kept_fold_lmdb.Cache` stores one in a directory."""

    def __init__(self, overlay: Overlay[S, M]) -> None:
        self.overlay = overlay
        self._rows = MemoryRows()

    @contextmanager
    def reading(self) -> Iterator[Timeline[S, M]]:
        """A snapshot of the timeline; later additions do not change it."""
        yield Timeline(self.overlay, self._rows)

    def check(self, root_at: RootAt) -> None:
        """Raise unless the log still has the roots of this fold. See `Timeline.check`."""
        with self.reading() as timeline:
            timeline.check(root_at)

    def extend(self, entries: Iterable[FoldEntry], mmr_root: bytes) -> At | None:
        """Append entries, all or none, and return the last place. See `extend`."""
        return extend(self.overlay, self._rows, entries, mmr_root)

    def close(self) -> None:
        pass


def extend(overlay: Overlay[S, M], rows: KeptRows, entries: Iterable[FoldEntry], mmr_root: bytes) -> At | None:
    """Append entries to a kept fold and return the last place.

    The entries must be all that follow the last folded place, in order and without a gap. `mmr_root` is the root that
    the hub signed for the last of them; `Unverified` is raised if the entries have another root.
    """
    return _Extension(overlay, rows).append(entries, mmr_root)


class _Extension(Generic[S, M]):
    """One call of `extend`. Each changed head is written once, at the end."""

    def __init__(self, overlay: Overlay[S, M], rows: KeptRows) -> None:
        self._timeline = Timeline(overlay, rows)
        self._overlay = overlay
        self._rows = rows
        self._heads: dict[bytes, KeptHead[S, M]] = {}
        prefixes = self._timeline.prefixes()
        self._epoch, self._label, self._tree = -1, b"", Mmr()
        if prefixes:
            self._epoch, self._label = prefixes[-1].epoch, prefixes[-1].label
            self._tree = self._timeline.tree(self._epoch)

    def append(self, entries: Iterable[FoldEntry], mmr_root: bytes) -> At | None:
        last = None
        for entry in entries:
            self._place(entry)
            self._tree.append(entry.msg_id)
            last, faults = entry.at, 0
            for outcome in fold_entry(self._overlay, entry, self, self._note):
                if isinstance(outcome, EventFault):
                    self._rows.put(FAULT + last.key() + u64be(faults), outcome.encode())
                    faults += 1
                else:
                    self._apply(outcome, last.key())
        if last is None:
            return None
        if self._tree.root() != mmr_root:
            raise Unverified("cache", f"the entries up to {last.stream_seq} do not have the root that the hub signed")
        self._finish()
        return last

    def state(self, part: bytes) -> S:
        return self._head(part).state

    def known(self, part: bytes, key: bytes) -> At | None:
        return self._timeline.known(part, key)

    def _note(self, part: bytes, key: bytes, at: At) -> None:
        self._rows.put(FIRST + first_key(part, key), at.key())

    def _place(self, entry: FoldEntry) -> None:
        """Check that an entry follows the previous one. A new epoch starts a new tree."""
        if entry.epoch > self._epoch and entry.stream_seq == 1:
            if self._tree.size:
                self._rows.put(TIP + u64be(self._epoch), Tip.of(self._label, self._tree).encode())
            self._epoch, self._label, self._tree = entry.epoch, entry.label, Mmr()
        elif entry.epoch < self._epoch:
            raise Unverified("cache", f"epoch {entry.epoch} has a new entry after epoch {self._epoch} began")
        elif (entry.label, entry.stream_seq) != (self._label, self._tree.size + 1):
            raise ValueError(f"entry {entry.stream_seq} does not follow entry {self._tree.size}")

    def _apply(self, outcome: Applied[S], place: bytes) -> None:
        step = outcome.step
        hashed, head = part_key(step.part), self._head(step.part)
        was_live = head.count > 0 and self._overlay.live(head.state)
        if head.count == 0:
            head.birth = place
            self._rows.put(BIRTH + head.birth + hashed, step.part)
        self._rows.put(EVENT + hashed + place, u64be(head.count) + step.entry.encode())
        for height, number, summed in head.append(self._overlay, self._overlay.lift(step), outcome.after):
            self._rows.put(node_key(hashed, height, number), self._overlay.encode_summary(summed))
        if was_live != self._overlay.live(head.state):
            key = LIVE + head.birth + hashed
            self._rows.delete(key) if was_live else self._rows.put(key, step.part)
        if head.count % STRIDE == 0:
            self._rows.put(STATE + hashed + u64be(head.count // STRIDE), self._overlay.encode_state(head.state))

    def _head(self, part: bytes) -> KeptHead[S, M]:
        head = self._heads.get(part)
        if head is None:
            row = self._rows.get(HEAD + part_key(part))
            fresh: KeptHead[S, M] = KeptHead(part, 0, self._overlay.INITIAL)
            head = self._heads[part] = fresh if row is None else KeptHead.decode(self._overlay, row)
        return head

    def _finish(self) -> None:
        self._rows.put(META, fold_identity(self._overlay))
        self._rows.put(TIP + u64be(self._epoch), Tip.of(self._label, self._tree).encode())
        for part, head in self._heads.items():
            if head.count:
                self._rows.put(HEAD + part_key(part), head.encode(self._overlay))
