"""The store of a node: ordered tables of bytes with atomic commits, in memory or on disk.

On disk it is LMDB, whose commits are atomic and synced. A crash at any moment leaves the last commit. Changes collect
in one write transaction until `commit`. Uncommitted changes are lost in a crash, so a node sends no frame that promises
them before the commit (`Node.take`). If a change or a commit fails, the transaction is aborted at once. The store stays
failed until `rollback`, so no later commit can succeed without the lost changes.
"""

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import lmdb

from plumbing import durable, lmdb_env
from veil.veil_errors import Refused, Unavailable


class Table(StrEnum):
    """Data that survives a restart."""

    SHARDS = "shards"  # shard_id -> encoded shard
    INDEX = "index"  # shard_id -> shard set, index, tier and expiry
    DONE = "done"  # object_root -> when it was restored
    QUEUE = "queue"  # message_id -> message that is not sealed yet
    PARCELS = "parcels"  # object_root -> own object that is being sent
    EVENTS = "events"  # seq -> event
    SUBSCRIPTIONS = "subscriptions"
    TIERS = "tiers"  # public key -> tier set by hand
    ENDORSEMENTS = "endorsements"  # endorser, subject -> when
    META = "meta"


class StoreFailed(Exception):
    """The store cannot write, for example because the disk is full.

    It is not a `VeilError`, so that no handler for bad input can swallow it: it must reach the node.
    """


class Store(Protocol):
    """Ordered tables. Reads see changes at once. Changes survive a crash once `commit` has returned.

    A crash leaves all changes up to some commit and none after it. One thread uses a store.

    `put`, `delete` and `commit` raise `StoreFailed` if the disk does not take the changes. Then all changes since the
    last commit are lost: reads return the last commit, and every further change or commit fails until `rollback`.
    """

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def put(self, table: Table, key: bytes, value: bytes) -> None: ...

    def delete(self, table: Table, key: bytes) -> None: ...

    def items(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a table in key order. The table must not change during the iteration."""
        ...

    @property
    def uncommitted(self) -> bool:
        """Whether anything has changed since the last commit, or a change has failed."""
        ...

    @property
    def failed(self) -> StoreFailed | None:
        """The failure since the last `rollback`, if any."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Drop all changes since the last commit, and allow changes again."""
        ...

    def close(self) -> None:
        """Commit, unless a change has failed, and release the files."""
        ...


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


FORMAT = b"veil-node-1"
_FORMAT_KEY = b"format"
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
# Maximum size of the file. The file grows with its content.
DEFAULT_MAX_BYTES = 8 << 30
# The length of LMDB's lock file with its default of 126 readers.
_LOCK_BYTES = 8_192


class DiskStore:
    """Tables in one directory. Only one process may have it open for writing.

    Raise `Unavailable` if the directory cannot be used, for example because the disk is full.
    """

    def __init__(self, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, sync: bool = True) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._sync = sync
        self._txn: lmdb.Transaction | None = None
        self._failed: StoreFailed | None = None
        try:
            # LMDB syncs its file, but not the names of the folders above it.
            durable.in_use().make_durable_folder(path, _PRIVATE_FOLDER)
            # Queued and delivered payloads are stored in clear, so restrict a directory that existed before, too.
            path.chmod(_PRIVATE_FOLDER)
            self._open()
            found = self.get(Table.META, _FORMAT_KEY)
            if found is None:
                self.put(Table.META, _FORMAT_KEY, FORMAT)
                self.commit()
        except (OSError, lmdb.Error, StoreFailed) as error:
            raise Unavailable(str(path), f"the store cannot be opened: {error}") from None
        if found not in (None, FORMAT):
            self._env.close()
            raise Refused("store", f"unsupported format {found!r}; this version reads {FORMAT!r}")

    def get(self, table: Table, key: bytes) -> bytes | None:
        if self._txn is not None:
            return _bytes(self._txn.get(key, db=self._tables[table]))
        with self._env.begin() as txn:
            return _bytes(txn.get(key, db=self._tables[table]))

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        try:
            self._writing().put(key, value, db=self._tables[table])
        except lmdb.Error as error:
            raise self._fail(error) from error

    def delete(self, table: Table, key: bytes) -> None:
        try:
            self._writing().delete(key, db=self._tables[table])
        except lmdb.Error as error:
            raise self._fail(error) from error

    def items(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        if self._txn is not None:
            yield from _pairs(self._txn, self._tables[table])
            return
        with self._env.begin() as txn:
            yield from _pairs(txn, self._tables[table])

    @property
    def uncommitted(self) -> bool:
        return self._txn is not None or self._failed is not None

    @property
    def failed(self) -> StoreFailed | None:
        return self._failed

    def commit(self) -> None:
        if not self.uncommitted:
            return
        try:
            self._writing().commit()
        except lmdb.Error as error:
            raise self._fail(error) from error
        self._txn = None

    def rollback(self) -> None:
        """Return to the last commit. Raise `StoreFailed` if the store cannot even be read."""
        self._abort()
        try:
            self._reopen_after_panic()
        except (OSError, lmdb.Error) as error:
            raise StoreFailed(f"the store cannot be opened again: {error}") from None
        self._failed = None

    def close(self) -> None:
        try:
            if self._failed is None:
                self.commit()
        finally:
            self._abort()
            self._env.close()

    def _open(self) -> None:
        # LMDB writes its lock file through a memory map. On a full disk, a write to a page without a block raises
        # SIGBUS. Allocate the blocks first, so a full disk is an error here.
        handle = os.open(self._path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            os.posix_fallocate(handle, 0, _LOCK_BYTES)
        finally:
            os.close(handle)
        self._env = lmdb_env.open_environment(
            self._path,
            map_size=self._max_bytes,
            max_dbs=len(Table),
            sync=self._sync,
            metasync=self._sync,
            mode=_PRIVATE_FILE,
        )
        self._tables = {table: self._env.open_db(table.encode()) for table in Table}

    def _reopen_after_panic(self) -> None:
        """LMDB refuses even reads (MDB_PANIC) after it failed to write a meta page, until it is opened again."""
        try:
            with self._env.begin():
                return
        except lmdb.Error:
            self._env.close()
            self._open()

    def _abort(self) -> None:
        txn, self._txn = self._txn, None
        if txn is not None:
            txn.abort()

    def _writing(self) -> lmdb.Transaction:
        if self._failed is not None:
            raise self._failed
        if self._txn is None:
            self._txn = self._env.begin(write=True)
        return self._txn

    def _fail(self, error: lmdb.Error) -> StoreFailed:
        self._abort()
        self._failed = StoreFailed(f"{error}; {self._room()}")
        return self._failed

    def _room(self) -> str:
        try:
            found = os.statvfs(self._path)
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        return f"{found.f_bavail * found.f_frsize} bytes are free for {self._path}"


def _pairs(txn: lmdb.Transaction, table: lmdb._Database) -> Iterator[tuple[bytes, bytes]]:
    return ((bytes(key), bytes(value)) for key, value in txn.cursor(db=table))


def _bytes(found: object) -> bytes | None:
    return bytes(found) if isinstance(found, bytes | memoryview) else None


__all__ = ["DiskStore", "MemoryStore", "Store", "StoreFailed", "Table"]
