"""The store interface: ordered tables of bytes with atomic commits, and an implementation in memory."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol


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
