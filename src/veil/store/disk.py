"""A store on disk: LMDB, whose commits are atomic and synced, so a crash at any moment leaves the last one whole.

Changes gather in one write transaction until `commit`; what was not committed is gone after a crash, and a node lets
no promise leave before it is (`Node.take`).
"""

from collections.abc import Iterator
from pathlib import Path

import lmdb

from veil.errors import Refused
from veil.store.tables import Table

FORMAT = b"veil-node-1"
_FORMAT_KEY = b"format"
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
# The most that the file may grow to. It is as large as what it holds, not as this.
DEFAULT_MAX_BYTES = 8 << 30


class DiskStore:
    """Tables in one directory. Only one process may have it open for writing."""

    def __init__(self, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, sync: bool = True) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_FOLDER)
        # What waits to be sent and what was read is in clear here, whoever made the folder and however.
        path.chmod(_PRIVATE_FOLDER)
        self._env = lmdb.open(
            str(path), map_size=max_bytes, max_dbs=len(Table), sync=sync, metasync=sync, mode=_PRIVATE_FILE
        )
        self._tables = {table: self._env.open_db(table.encode()) for table in Table}
        self._txn: lmdb.Transaction | None = None
        found = self.get(Table.META, _FORMAT_KEY)
        if found is None:
            self.put(Table.META, _FORMAT_KEY, FORMAT)
            self.commit()
        elif found != FORMAT:
            self._env.close()
            raise Refused("store", f"the format {found!r} is not {FORMAT!r}")

    def get(self, table: Table, key: bytes) -> bytes | None:
        if self._txn is not None:
            return _bytes(self._txn.get(key, db=self._tables[table]))
        with self._env.begin() as txn:
            return _bytes(txn.get(key, db=self._tables[table]))

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._writing().put(key, value, db=self._tables[table])

    def delete(self, table: Table, key: bytes) -> None:
        self._writing().delete(key, db=self._tables[table])

    def items(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        if self._txn is not None:
            yield from _pairs(self._txn, self._tables[table])
            return
        with self._env.begin() as txn:
            yield from _pairs(txn, self._tables[table])

    @property
    def uncommitted(self) -> bool:
        return self._txn is not None

    def commit(self) -> None:
        txn, self._txn = self._txn, None
        if txn is not None:
            txn.commit()

    def close(self) -> None:
        self.commit()
        self._env.close()

    def _writing(self) -> lmdb.Transaction:
        if self._txn is None:
            self._txn = self._env.begin(write=True)
        return self._txn


def _pairs(txn: lmdb.Transaction, table: lmdb._Database) -> Iterator[tuple[bytes, bytes]]:
    return ((bytes(key), bytes(value)) for key, value in txn.cursor(db=table))


def _bytes(found: object) -> bytes | None:
    return bytes(found) if isinstance(found, bytes | memoryview) else None
