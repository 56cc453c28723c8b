"""A store that forgets: for the simulator, and for nodes that want to leave nothing behind."""

from collections.abc import Iterator

from veil.store.tables import Table


class MemoryStore:
    """Tables in memory."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        self._uncommitted = False

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._tables[table].get(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._tables[table][key] = value
        self._uncommitted = True

    def delete(self, table: Table, key: bytes) -> None:
        self._tables[table].pop(key, None)
        self._uncommitted = True

    def items(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self._tables[table].items())

    @property
    def uncommitted(self) -> bool:
        return self._uncommitted

    def commit(self) -> None:
        self._uncommitted = False

    def close(self) -> None:
        self.commit()
