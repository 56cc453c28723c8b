"""A spool as a feed: segment by segment, each from the last place that was settled, removed once it was sent whole."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from veen.core import Malformed, cbor
from veen.recorder import durable, spool
from veen.recorder.feed import Item

PLACES = "places"
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a segment is settled: the frame at `offset` follows on `before` events, and `within` of its own are."""

    offset: int = 0
    before: int = 0
    within: int = 0


@dataclass(frozen=True, slots=True)
class _Taken:
    item: Item
    segment: str
    after: _Place  # where the segment stands once this event is settled


class SpoolFeed:
    """All segments of a folder, also those that are still written. With `follow` it waits for more."""

    def __init__(self, folder: Path, name: str, *, follow: bool = True) -> None:
        """`name` is what the sources are called: one for each segment."""
        durable.make_folder(folder)
        self._folder = folder
        self._name = name
        self._follow = follow
        self._settled = _read(folder / PLACES)
        self._ahead: dict[str, _Place] = dict(self._settled)  # how far each segment has been given
        self._given: deque[_Taken] = deque()
        self._ended = False

    def close(self) -> None:
        """Nothing is held open."""

    def end(self) -> None:
        """What is there now is all there will be."""
        self._ended = True

    async def take(self, most: int) -> Sequence[Item]:
        while True:
            last = self._ended or not self._follow
            found = await asyncio.to_thread(self._next, most)
            if found:
                self._given.extend(found)
                return [one.item for one in found]
            if last:
                return ()
            await asyncio.sleep(_LOOK_S)

    def _next(self, most: int) -> list[_Taken]:
        found: list[_Taken] = []
        for path in spool.segments(self._folder):
            place = self._ahead.get(path.name, _Place())
            abandoned = durable.is_abandoned(path)  # before the look: what is there then is all there is
            for one in self._events(path, place, most - len(found)):
                found.append(one)
                self._ahead[path.name] = one.after
            if len(found) == most:
                break
            if abandoned and self._settled.get(path.name, _Place()) == self._ahead.get(path.name, _Place()):
                self._remove(path)
        return found

    def _events(self, path: Path, place: _Place, most: int) -> list[_Taken]:
        source, found = f"{self._name}/{path.name.removesuffix(spool.SUFFIX)}", list[_Taken]()
        for batch in spool.batches(path, place.offset):
            whole = _Place(batch.end, place.before + len(batch.events))
            for number in range(place.within + 1, len(batch.events) + 1):
                if len(found) == most:
                    return found
                after = whole if number == len(batch.events) else replace(place, within=number)
                item = Item(source, place.before + number, batch.events[number - 1])
                found.append(_Taken(item, path.name, after))
            place = whole
        return found

    def settle(self, items: Sequence[Item]) -> None:
        for _ in items:
            taken = self._given.popleft()
            self._settled[taken.segment] = taken.after
        self._write()

    def _remove(self, path: Path) -> None:
        spool.remove(path)
        self._ahead.pop(path.name, None)
        if self._settled.pop(path.name, None) is not None:
            self._write()

    def _write(self) -> None:
        rows = {name: (one.offset, one.before, one.within) for name, one in sorted(self._settled.items())}
        durable.replace_file(self._folder / PLACES, cbor.encode(rows))


def _read(path: Path) -> dict[str, _Place]:
    try:
        rows = cbor.decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        return {}
    if not isinstance(rows, Mapping):
        raise Malformed(str(path), "not the places of segments")
    found: dict[str, _Place] = {}
    for name, row in rows.items():
        match name, row:
            case str(), (int() as offset, int() as before, int() as within):
                found[name] = _Place(offset, before, within)
            case _:
                raise Malformed(str(path), f"{name!r} is no segment's place")
    return found
