"""The client's LMDB environment: named tables of rows, and transactions that are there entirely or not at all.

    meta          name                               number: format, next place in the outbox
    labels        hub_id, label                      LabelState
    ladders       hub_id, label                      rk, sealed: the keystore guards secrets, these files do not
    receipts      hub_id, label, stream_seq          RECEIPT, kept for ever
    checkpoints   hub_id, label, upto_seq            CHECKPOINT, kept for ever
    generations   generation                         ClientKeyUse: which client_id came after which, and when
    eras          generation, hub_id                 the epoch of that hub in which the client_id first wrote there
    writers       client_id, hub_id, label           WriterState: which client_seq are taken
    outbox        hub_id, label, place               MSG: exactly the bytes that leave, or left
    leaves        leaf_hash                          its key in the outbox
    marks         mark                               leaf_hash of the message that a program knows by the mark
    hubs          hub_id                             what is known of a hub
    caught        hub_id, digest of the evidence     CaughtRow: what a hub was proven to contradict itself with
    urls          url                                hub_id
    streams       stream_id                          StreamRow: name and public reader key
    grants        hub_id, auth_ref                   when a hub stops honouring a capability it was shown

Every commit is synced before it returns. A method of the state is one transaction, so any thread may call it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from veen.client.durable import PRIVATE_FILE, named
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
    """One transaction."""

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
        """Every row whose key has the prefix, ascending, from the one at `start` of what follows the prefix."""
        cursor = self._txn.cursor(self._dbs[table])
        found = cursor.set_range(prefix + start) if prefix + start else cursor.first()
        while found and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.next()

    def first_after(self, table: str, prefix: bytes) -> bytes | None:
        """The first key after all that are the prefix and a number; the first of all after no prefix."""
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
    """The environment. Any number of readers, in any process; one writer at a time, the others wait."""

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        with _named(folder):
            self._env = lmdb.open(
                str(folder), map_size=map_bytes, max_dbs=len(TABLES), mode=PRIVATE_FILE, readahead=False
            )
            try:
                _lengthen(self._env, folder)
                self._env.reader_check()  # readers that were killed keep their seats until someone looks
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
        """A view that does not change while it is held."""
        with _named(self._folder), self._env.begin() as txn:
            yield TableRows(txn, self._dbs)

    @contextmanager
    def write(self) -> Iterator[TableRows]:
        """All of it is on disk when the block ends; none of it where it raises, or the process dies before that."""
        with _named(self._folder), self._env.begin(write=True) as txn:
            yield TableRows(txn, self._dbs)

    def _check_format(self, folder: Path) -> None:
        with self._env.begin() as txn:
            found = TableRows(txn, self._dbs).number("format")
        if found == 0:
            with self._env.begin(write=True) as txn:
                TableRows(txn, self._dbs).put_number("format", FORMAT)
        elif found != FORMAT:
            raise Malformed(str(folder), f"its format is {found}, and this program knows {FORMAT}")


def _lengthen(env: lmdb.Environment, folder: Path) -> None:
    """Make the file reach to its last page: a page that is not there would take the process down when it is touched.

    A whole file may end before it: LMDB never writes pages that it took and gave back in one transaction. In one that
    was cut short, pages of zeros come to be where others were, and those are found to be of the wrong type.
    """
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    with named(folder), (folder / "data.mdb").open("r+b") as file:
        if os.fstat(file.fileno()).st_size < needed:
            os.posix_fallocate(file.fileno(), 0, needed)  # adds and never cuts, whoever else writes meanwhile


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise Malformed(str(folder), str(error)) from None
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"{folder}: {error}") from None
