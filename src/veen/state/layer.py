"""Rows laid over other rows: what is written stays in memory, and what is below is never touched."""

from collections.abc import Iterator
from heapq import merge

from veen.overlays.rows import MemoryRows, Rows


class LayeredRows:
    """An ordered map that begins as another one."""

    def __init__(self, below: Rows) -> None:
        self._below = below
        self._above = MemoryRows()
        self._gone: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        if key in self._gone:
            return None
        own = self._above.get(key)
        return self._below.get(key) if own is None else own

    def put(self, key: bytes, row: bytes) -> None:
        self._gone.discard(key)
        self._above.put(key, row)

    def delete(self, key: bytes) -> None:
        self._above.delete(key)
        self._gone.add(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        both = merge(self._above.scan(prefix, start), self._kept(self._below.scan(prefix, start)), key=_key)
        return _first_of_each(both)

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        below = self._kept(self._below.back(prefix, end))
        return _first_of_each(merge(self._above.back(prefix, end), below, key=_key, reverse=True))

    def _kept(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        return (row for row in rows if row[0] not in self._gone)


def _key(row: tuple[bytes, bytes]) -> bytes:
    return row[0]


def _first_of_each(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Of two rows with one key the upper one, which comes first."""
    last = None
    for row in rows:
        if row[0] != last:
            yield row
        last = row[0]
