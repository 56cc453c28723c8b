"""Everything that is being put together, in bounded memory, and what has been, so that it is not begun again.

Time is told, not looked at. A gathering lives until its object is whole or its time is up. Where there is no room, the
source that holds most of it loses what it sent first: who floods an inbox floods its own part.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from veil.codec.form import Form
from veil.fec.gathering import Gathered, Gathering
from veil.limits import CACHE_TTL_SECONDS, MAX_INBOX_BYTES, MAX_INBOX_DONE
from veil.shards import ShardSet, ShardV1


@dataclass(slots=True)
class _Open:
    gathering: Gathering
    expiry: float
    sources: set[Hashable] = field(default_factory=set)


class Inbox:
    """Shards in, objects out, each object once."""

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
        # The bytes held of each source, and the objects it has a part in, the oldest first.
        self._ledger: Counter[Hashable] = Counter()
        self._parts: dict[Hashable, OrderedDict[ShardSet, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        return self._ledger.total()

    @property
    def done_count(self) -> int:
        return len(self._done)

    def is_done(self, of: ShardSet) -> bool:
        """Whether the object of these shards was whole already."""
        return of in self._done

    def missing(self, of: ShardSet) -> tuple[int, ...]:
        """The indices that would help: none where nothing of the object has come, or all of it has."""
        found = self._open.get(of)
        held = found.gathering.indices if found else range(of.shape.n)
        return tuple(index for index in range(of.shape.n) if index not in held)

    def add(self, shard: ShardV1, now_s: float, source: Hashable = None, standing: int = 0) -> Gathered | None:
        """Take a shard in; the object, where it is whole now."""
        self.expire(now_s)
        if shard.of in self._done:
            return None
        found = self._open.get(shard.of)
        if found is None:
            found = _Open(Gathering(shard.of, self._form, self._ledger), now_s + self._ttl)
            self._open[shard.of] = found
        found.sources.add(source)
        self._parts.setdefault(source, OrderedDict())[shard.of] = None
        gathered = found.gathering.add(shard, source, standing)
        if gathered is not None:
            self._drop(shard.of)
            self._done[shard.of] = now_s + self._ttl
            while len(self._done) > self._max_done:
                self._done.popitem(last=False)
        while self.held_bytes > self._max_bytes:
            self._make_room()
        return gathered

    def expire(self, now_s: float) -> None:
        """Let go of all whose time is up. Both are in the order of their time."""
        while self._open and next(iter(self._open.values())).expiry <= now_s:
            self._drop(next(iter(self._open)))
        while self._done and next(iter(self._done.values())) <= now_s:
            self._done.popitem(last=False)

    def _make_room(self) -> None:
        greediest = max(self._ledger, key=lambda source: self._ledger[source])
        of = next(iter(self._parts[greediest]))
        found = self._open[of]
        found.gathering.forget(greediest)
        if found.gathering.indices:
            found.sources.discard(greediest)
            self._leave(greediest, of)
        else:
            self._drop(of)

    def _drop(self, of: ShardSet) -> None:
        found = self._open.pop(of)
        found.gathering.clear()
        for source in found.sources:
            self._leave(source, of)

    def _leave(self, source: Hashable, of: ShardSet) -> None:
        del self._parts[source][of]
        if not self._parts[source]:
            del self._parts[source]
