"""A store that forgets: for the simulator, and for nodes that want to leave nothing behind."""

from collections.abc import Iterator

from veil.store.tables import Table


class MemoryStore:
    """Tables in memory. Its changes never fail."""

    failed: None = None

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        # The value each changed key had at the last commit.
        self._before: dict[tuple[Table, bytes], bytes | None] = {}

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._tables[table].get(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._before.setdefault((table, key), self._tables[table].get(key))
        self._tables[table][key] = value

    def delete(self, table: Table, key: bytes) -> None:
        self._before.setdefault((table, key), self._tables[table].pop(key, None))

    def items(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self._tables[table].items())

    @property
    def uncommitted(self) -> bool:
        return bool(self._before)

    def commit(self) -> None:
        self._before.clear()

    def rollback(self) -> None:
        for (table, key), value in self._before.items():
            if value is None:
                self._tables[table].pop(key, None)
            else:
                self._tables[table][key] = value
        self._before.clear()

    def close(self) -> None:
        self.commit()
