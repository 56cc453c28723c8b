"""Reassembly of objects from shards, some of which may be false. Spec §10.

Shards are grouped by their shard set. The root decides whether k shards belong together. If it does not match, other
combinations of k shards are tried, so a false shard costs attempts but never the object. Each shard adds a fixed
number of attempts, so the work is bounded by the input. Attempts start with shards of the source of the newest shard,
so k shards of one honest source succeed regardless of other input. A source of a false shard may have only forwarded
it: a single shard cannot be verified.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from veil.codec import Form
from veil.objects import ShardSet, ShardV1
from veil.veil_errors import Unverified
from veil.veil_limits import ATTEMPTS_PER_SHARD, CACHE_TTL_SECONDS, MAX_INBOX_BYTES, MAX_INBOX_DONE, MAX_RIVALS


@dataclass(frozen=True, slots=True)
class Reassembled:
    """An encoded object with a verified root, and the sources of shards that do not belong to it."""

    of: ShardSet
    encoded: bytes
    liars: frozenset[Hashable]


@dataclass(slots=True, eq=False)
class _Piece:
    """A shard and its sources. Its bytes count against the first source."""

    index: int
    payload: bytes
    sources: list[Hashable]
    trust: int


class Reassembly:
    """The shards of one object until it is restored. `bytes_by_source` counts the bytes held per source."""

    __slots__ = ("_attempts", "_bytes_by_source", "_form", "_pieces", "of")

    def __init__(self, of: ShardSet, form: Form, bytes_by_source: Counter[Hashable] | None = None) -> None:
        self.of = of
        self._form = form
        self._bytes_by_source: Counter[Hashable] = Counter() if bytes_by_source is None else bytes_by_source
        self._pieces: list[_Piece] = []
        self._attempts = 0

    @property
    def held_bytes(self) -> int:
        return sum(len(piece.payload) for piece in self._pieces)

    @property
    def indices(self) -> frozenset[int]:
        """The indices that need not be requested."""
        return frozenset(piece.index for piece in self._pieces)

    def add(self, shard: ShardV1, source: Hashable = None, trust: int = 0) -> Reassembled | None:
        """Add a shard and return the object if it can be restored now.

        If an index has too many rival shards, one with the lowest `trust` is evicted.
        """
        if shard.of != self.of:
            raise ValueError("the shard belongs to another object")
        rivals = [piece for piece in self._pieces if piece.index == shard.index]
        newest = next((piece for piece in rivals if piece.payload == shard.payload), None)
        if newest is None:
            if len(rivals) >= MAX_RIVALS:
                self._remove(self._to_evict(rivals))
            newest = _Piece(shard.index, shard.payload, [], trust)
            self._pieces.append(newest)
            self._bytes_by_source[source] += len(newest.payload)
        elif source in newest.sources:
            return None
        newest.sources.append(source)
        newest.trust = max(newest.trust, trust)
        self._attempts += ATTEMPTS_PER_SHARD
        return self._try(newest, source)

    def forget(self, source: Hashable) -> None:
        """Drop the shards that only this source sent. Shards that others sent too count against the next source."""
        for piece in [piece for piece in self._pieces if source in piece.sources]:
            if piece.sources == [source]:
                self._remove(piece)
                continue
            self._charge(piece, -1)
            piece.sources.remove(source)
            self._charge(piece, 1)

    def clear(self) -> None:
        for piece in list(self._pieces):
            self._remove(piece)

    def _to_evict(self, rivals: Sequence[_Piece]) -> _Piece:
        """Eviction order: lowest trust, source with most rivals, fewest sources, oldest."""
        first_sources = [piece.sources[0] for piece in rivals]
        return max(rivals, key=lambda piece: (-piece.trust, first_sources.count(piece.sources[0]), -len(piece.sources)))

    def _remove(self, piece: _Piece) -> None:
        self._pieces = [other for other in self._pieces if other is not piece]
        self._charge(piece, -1)

    def _charge(self, piece: _Piece, times: int) -> None:
        payer = piece.sources[0]
        self._bytes_by_source[payer] += times * len(piece.payload)
        if self._bytes_by_source[payer] <= 0:
            del self._bytes_by_source[payer]

    def _try(self, newest: _Piece, source: Hashable) -> Reassembled | None:
        """Combinations without the newest shard were tried before, so try only those with it."""
        if len(self._pieces) < self.of.shape.k:
            return None
        for chosen in self._choices(newest, source):
            if not self._attempts:
                return None
            self._attempts -= 1
            try:
                encoded = self._form.restore(self.of, {piece.index: piece.payload for piece in chosen})
            except Unverified:
                continue
            return Reassembled(self.of, encoded, self._liars(encoded, chosen))
        return None

    def _choices(self, newest: _Piece, source: Hashable) -> Iterator[tuple[_Piece, ...]]:
        others = [piece for piece in self._pieces if piece.index != newest.index]
        others.sort(key=lambda piece: (source not in piece.sources, -piece.trust))
        yield from _distinct(others, (newest,), self.of.shape.k - 1)

    def _liars(self, encoded: bytes, chosen: tuple[_Piece, ...]) -> frozenset[Hashable]:
        """The sources of false shards. They are found by encoding the restored object again."""
        taken = set(map(id, chosen))
        rest = [piece for piece in self._pieces if id(piece) not in taken]
        if not rest:
            return frozenset()
        payloads = self._form.cut(self.of, encoded)
        lies = [piece for piece in rest if piece.payload != payloads[piece.index]]
        return frozenset(source for piece in lies for source in piece.sources)


def _distinct(others: Sequence[_Piece], chosen: tuple[_Piece, ...], wanted: int) -> Iterator[tuple[_Piece, ...]]:
    """`chosen` plus `wanted` of the others with distinct indices. Branches with too few indices are pruned."""
    if not wanted:
        yield chosen
        return
    used = {piece.index for piece in chosen}
    for at, piece in enumerate(others):
        if len({other.index for other in others[at:]} - used) < wanted:
            return
        if piece.index not in used:
            yield from _distinct(others[at + 1 :], (*chosen, piece), wanted - 1)


@dataclass(slots=True)
class _Open:
    reassembly: Reassembly
    expiry: float
    sources: set[Hashable] = field(default_factory=set)


class Inbox:
    """Collects shards of many objects and returns each restored object once."""

    def __init__(
        self,
        form: Form,
        *,
        max_bytes: int = MAX_INBOX_BYTES,
        max_done: int = MAX_INBOX_DONE,
        ttl_seconds: float = CACHE_TTL_SECONDS,
    ) -> None:
        self._form = form
        self._max_bytes = max_bytes
        self._max_done = max_done
        self._ttl = ttl_seconds
        self._open: OrderedDict[ShardSet, _Open] = OrderedDict()
        self._done: OrderedDict[ShardSet, float] = OrderedDict()
        # Per source: the bytes held, and the objects it contributed to, oldest first.
        self._bytes_by_source: Counter[Hashable] = Counter()
        self._parts: dict[Hashable, OrderedDict[ShardSet, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        return self._bytes_by_source.total()

    @property
    def done_count(self) -> int:
        return len(self._done)

    def is_done(self, of: ShardSet) -> bool:
        """Whether the object was restored before."""
        return of in self._done

    def missing(self, of: ShardSet) -> tuple[int, ...]:
        """The missing indices of an object that is partly here; empty for unknown and restored objects."""
        found = self._open.get(of)
        held = found.reassembly.indices if found else range(of.shape.n)
        return tuple(index for index in range(of.shape.n) if index not in held)

    def add(self, shard: ShardV1, now_s: float, source: Hashable = None, trust: int = 0) -> Reassembled | None:
        """Add a shard and return the object if it can be restored now."""
        self.expire(now_s)
        if shard.of in self._done:
            return None
        found = self._open.get(shard.of)
        if found is None:
            found = _Open(Reassembly(shard.of, self._form, self._bytes_by_source), now_s + self._ttl)
            self._open[shard.of] = found
        found.sources.add(source)
        self._parts.setdefault(source, OrderedDict())[shard.of] = None
        reassembled = found.reassembly.add(shard, source, trust)
        if reassembled is not None:
            self._drop(shard.of)
            self._done[shard.of] = now_s + self._ttl
            while len(self._done) > self._max_done:
                self._done.popitem(last=False)
        while self.held_bytes > self._max_bytes:
            self._make_room()
        return reassembled

    def expire(self, now_s: float) -> None:
        """Drop expired objects. Both containers are ordered by expiry."""
        while self._open and next(iter(self._open.values())).expiry <= now_s:
            self._drop(next(iter(self._open)))
        while self._done and next(iter(self._done.values())) <= now_s:
            self._done.popitem(last=False)

    def _make_room(self) -> None:
        largest = max(self._bytes_by_source, key=lambda source: self._bytes_by_source[source])
        of = next(iter(self._parts[largest]))
        found = self._open[of]
        found.reassembly.forget(largest)
        if found.reassembly.indices:
            found.sources.discard(largest)
            self._unlink(largest, of)
        else:
            self._drop(of)

    def _drop(self, of: ShardSet) -> None:
        found = self._open.pop(of)
        found.reassembly.clear()
        for source in found.sources:
            self._unlink(source, of)

    def _unlink(self, source: Hashable, of: ShardSet) -> None:
        del self._parts[source][of]
        if not self._parts[source]:
            del self._parts[source]
