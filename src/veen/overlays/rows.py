"""Where a timeline keeps its rows: an ordered map of byte strings. LMDB is one (`cache`); memory is another."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Protocol


class Rows(Protocol):
    """An ordered map. A reader's view does not change while it is held."""

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
    """Rows that are gone when the process is: for small logs and for tests."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, row: bytes) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row

    def delete(self, key: bytes) -> None:
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for index in range(bisect_left(self._keys, prefix + start), len(self._keys)):
            key = self._keys[index]
            if not key.startswith(prefix):
                return
            yield key, self._rows[key]

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for index in range(bisect_right(self._keys, prefix + end) - 1, -1, -1):
            key = self._keys[index]
            if not key.startswith(prefix):
                return
            yield key, self._rows[key]
