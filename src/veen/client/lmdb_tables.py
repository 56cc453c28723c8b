"""The client's LMDB environment: named tables, changed in atomic transactions.

    meta          name                               number: format, next place in the outbox
    labels        hub_id, label                      LabelState
    ladders       hub_id, label                      rk, sealed, because only the keystore may contain plain secrets
    receipts      hub_id, label, stream_seq          RECEIPT, never deleted
    checkpoints   hub_id, label, upto_seq            CHECKPOINT, never deleted
    generations   generation                         ClientKeyUse: client_id and time of each generation
    eras          generation, hub_id                 the epoch of that hub in which the client_id first wrote there
    writers       client_id, hub_id, label           WriterState: the last client_seq used
    outbox        hub_id, label, place               MSG: exactly the bytes that are or were sent
    leaves        leaf_hash                          its key in the outbox
    marks         mark                               leaf_hash of the message that a program gave this mark
    hubs          hub_id                             HubRecord
    caught        hub_id, digest of the evidence     CaughtRow: a proven contradiction
    urls          url                                hub_id
    streams       stream_id                          StreamKey: name and public reader key
    grants        hub_id, auth_ref                   when a capability expires at a hub

Every commit is synced before it returns. Each method of the state is one transaction, so any thread may call it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from plumbing.durable import PRIVATE_FILE
from veen.client.local_files import named
from veen.core import Malformed, Unavailable
from veen.core.hashing import u64be

FORMAT = 1
_PAST_ANY_NUMBER = b"\xff" * 9
MAP_BYTES = 1 << 36  # address space, not disk
TABLES = (
    "meta",
    "labels",
    "ladders",
    "receipts",
    "checkpoints",
    "generations",
    "eras",
    "writers",
    "outbox",
    "leaves",
    "marks",
    "hubs",
    "caught",
    "urls",
    "streams",
    "grants",
)


class TableRows:
    """The tables within one transaction."""

    __slots__ = ("_dbs", "_txn")

    def __init__(self, txn: lmdb.Transaction, dbs: dict[str, lmdb._Database]) -> None:
        self._txn = txn
        self._dbs = dbs

    def get(self, table: str, key: bytes) -> bytes | None:
        row = self._txn.get(key, db=self._dbs[table])
        return None if row is None else bytes(row)

    def put(self, table: str, key: bytes, row: bytes) -> None:
        self._txn.put(key, row, db=self._dbs[table])

    def delete(self, table: str, key: bytes) -> None:
        self._txn.delete(key, db=self._dbs[table])

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys have the prefix, ascending, from key prefix + `start` on."""
        cursor = self._txn.cursor(self._dbs[table])
        found = cursor.set_range(prefix + start) if prefix + start else cursor.first()
        while found and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.next()

    def first_after(self, table: str, prefix: bytes) -> bytes | None:
        """The first key after all keys made of the prefix and a number; without prefix, the first key."""
        cursor = self._txn.cursor(self._dbs[table])
        found = cursor.set_range(prefix + _PAST_ANY_NUMBER) if prefix else cursor.first()
        return bytes(cursor.key()) if found else None

    def last(self, table: str, prefix: bytes = b"") -> tuple[bytes, bytes] | None:
        """The last row whose key is the prefix and a number."""
        cursor = self._txn.cursor(self._dbs[table])
        found = cursor.prev() if cursor.set_range(prefix + _PAST_ANY_NUMBER) else cursor.last()
        key = bytes(cursor.key())
        return (key, bytes(cursor.value())) if found and key.startswith(prefix) else None

    def number(self, name: str) -> int:
        row = self.get("meta", name.encode())
        return 0 if row is None else int.from_bytes(row, "big")

    def put_number(self, name: str, number: int) -> None:
        self.put("meta", name.encode(), u64be(number))


class ClientTables:
    """The environment. Any number of readers in any process; one writer at a time, others wait."""

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        with _named(folder):
            self._env = lmdb.open(
                str(folder), map_size=map_bytes, max_dbs=len(TABLES), mode=PRIVATE_FILE, readahead=False
            )
            try:
                _lengthen(self._env, folder)
                self._env.reader_check()  # free the reader slots of killed processes
                self._dbs = {name: self._env.open_db(name.encode()) for name in TABLES}
                self._check_format(folder)
            except BaseException:
                self._env.close()
                raise
        self._folder = folder

    def close(self) -> None:
        self._env.close()

    @contextmanager
    def read(self) -> Iterator[TableRows]:
        """A snapshot that does not change."""
        with _named(self._folder), self._env.begin() as txn:
            yield TableRows(txn, self._dbs)

    @contextmanager
    def write(self) -> Iterator[TableRows]:
        """Commit when the block ends. If it raises or the process dies before, nothing is written."""
        with _named(self._folder), self._env.begin(write=True) as txn:
            yield TableRows(txn, self._dbs)

    def _check_format(self, folder: Path) -> None:
        with self._env.begin() as txn:
            found = TableRows(txn, self._dbs).number("format")
        if found == 0:
            with self._env.begin(write=True) as txn:
                TableRows(txn, self._dbs).put_number("format", FORMAT)
        elif found != FORMAT:
            raise Malformed(str(folder), f"unsupported format {found}; this program supports {FORMAT}")


def _lengthen(env: lmdb.Environment, folder: Path) -> None:
    """Extend the file to its last page, because access to a missing page would kill the process.

    An intact file may be shorter: LMDB never writes pages that were allocated and freed in one transaction. In a
    truncated file the extension adds pages of zeros, which LMDB detects as pages of the wrong type.
    """
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    with named(folder), (folder / "data.mdb").open("r+b") as file:
        if os.fstat(file.fileno()).st_size < needed:
            os.posix_fallocate(file.fileno(), 0, needed)  # only extends, also while other processes write


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise Malformed(str(folder), str(error)) from None
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"{folder}: {error}") from None
