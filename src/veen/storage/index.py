"""The index: an LMDB environment of rows that say where things are. All of it can be made again from the log.

    meta        name                     number: format, applied (journal group), hub_ts (of the last entry), heads_sum
    heads       label                    Head
    chunks      label                    start_seq, end_seq                  closed ones
    places      label                    stream_seq, chunk_start, offset     one row per block of entries, not per entry
    by_client   client_id, label         client_seq, stream_seq              one row per entry
    cursors     client_id, label         client_seq, prev_ack
    days        label                    day, first stream_seq
    caps        auth_ref                 label, stream_seq of the control entry, issued_at, token
    buckets     auth_ref, label          tokens, hub_ts
    streams     stream_id                label, stream_seq of the control entry
    admin       label, stream_seq        schema, body                        of the realm, where the hub is in one

Rows with several values per key keep them sorted and packed, so a look-up is O(log n) and a row costs its own bytes.

A hub that believed a wrong head would give a place to two messages. So the sum of all heads is kept beside them, and is
checked before anything is added.
"""

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

from veen.core import Malformed, Unavailable, admin
from veen.storage.head import Head

FORMAT = 3
MAP_BYTES = 1 << 40  # address space, not disk
_MAX_DBS = 16
_NUMBER = struct.Struct(">Q")
PLACE = struct.Struct(">QQQ")
PAIR = struct.Struct(">QQ")
CAP = struct.Struct(">32sQQ")
STREAM = struct.Struct(">32sQ")

_PLAIN = ("meta", "heads", "cursors", "caps", "buckets", "streams", "admin")
_PACKED = ("chunks", "places", "by_client", "days")
TABLES = _PLAIN + _PACKED
_LOOKS, _LOOK_EVERY_S = 20, 0.005


class Index:
    """One environment. Any number of readers, in any process; one writer."""

    def __init__(self, folder: Path, *, readonly: bool = False, durable: bool = True, lock: bool = True) -> None:
        """Raises `Malformed` where it cannot be read, `Unavailable` where there is none to read.

        Without `durable` only `sync` makes commits safe; without `lock` no one else may have it open.
        """
        try:
            self._env = lmdb.open(
                str(folder),
                map_size=MAP_BYTES,
                max_dbs=_MAX_DBS,
                readonly=readonly,
                create=not readonly,
                readahead=False,
                max_spare_txns=4,
                sync=durable,
                lock=lock,
            )
            _check_length(self._env, folder)
            self._file = folder / "data.mdb"
            self._env.reader_check()  # readers that were killed keep their seats until someone looks
            self._dbs = {name: self._env.open_db(name.encode(), create=not readonly) for name in _PLAIN}
            for name in _PACKED:
                self._dbs[name] = self._env.open_db(name.encode(), dupsort=True, dupfixed=True, create=not readonly)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise Malformed("index", str(error)) from None
        except lmdb.NotFoundError:
            raise Unavailable("there is no index yet: no hub has run on this data directory") from None
        except (lmdb.Error, OSError) as error:
            raise Unavailable(f"the index cannot be opened: {error}") from None

    def close(self) -> None:
        self._env.close()

    def read(self) -> "Rows":
        """A view that does not change while it is held."""
        return Rows(self._env.begin(buffers=False), self._dbs)

    def write(self) -> "WriteRows":
        """A transaction: all of it is there after `commit`, and synced; none of it otherwise."""
        return WriteRows(self._env.begin(write=True), self._dbs, self._lengthen)

    def sync(self) -> None:
        """Everything committed so far is on disk when this returns."""
        self._env.sync(True)

    def _lengthen(self) -> None:
        """Let the file reach to its last page again: LMDB never writes one that it took and gave back in one go.

        So a file that is too short was cut, unless a crash came right here: either way the index is made again.
        """
        needed = _needed_bytes(self._env)
        with self._file.open("r+b") as file:
            if os.fstat(file.fileno()).st_size < needed:
                os.posix_fallocate(file.fileno(), 0, needed)


class Rows:
    """What can be looked up."""

    def __init__(self, txn: lmdb.Transaction, dbs: dict[str, lmdb._Database]) -> None:
        self._txn = txn
        self._dbs = dbs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._txn.abort()

    def all_rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Every row of a table, by key and then by value."""
        for key, row in self._txn.cursor(self._dbs[table]):
            yield bytes(key), bytes(row)

    def number(self, name: str) -> int:
        row = self._txn.get(name.encode(), db=self._dbs["meta"])
        return 0 if row is None else int(_NUMBER.unpack(row)[0])

    def head(self, label: bytes) -> Head | None:
        row = self._txn.get(label, db=self._dbs["heads"])
        return None if row is None else Head.decode(bytes(row))

    def labels(self, after: bytes = b"") -> Iterator[tuple[bytes, Head]]:
        """Every label and its head, ascending, from the one after `after`."""
        cursor = self._txn.cursor(self._dbs["heads"])
        if not cursor.set_range(after + b"\0" if after else b""):
            return
        for label, row in cursor:
            yield bytes(label), Head.decode(bytes(row))

    def heads_hold(self) -> bool:
        """Whether the heads are, all of them, those that were written."""
        total = 0
        for label, row in self._txn.cursor(self._dbs["heads"]):
            total ^= _share(bytes(label), bytes(row))
        return total == self.number("heads_sum")

    def label_count(self) -> int:
        return int(self._txn.stat(self._dbs["heads"])["entries"])

    def chunk_end(self, label: bytes, start_seq: int) -> int | None:
        """Where the closed chunk ends that starts there."""
        cursor = self._txn.cursor(self._dbs["chunks"])
        if not cursor.set_range_dup(label, PAIR.pack(start_seq, 0)):
            return None
        start, end = PAIR.unpack(cursor.value())
        return int(end) if start == start_seq else None

    def place(self, label: bytes, stream_seq: int) -> tuple[int, int, int] | None:
        """`(stream_seq, chunk_start, offset)` of the last indexed entry at or before this one."""
        cursor = self._txn.cursor(self._dbs["places"])
        if not _last_at_or_before(cursor, label, PLACE.pack(stream_seq, (1 << 64) - 1, (1 << 64) - 1)):
            return None
        seq, start, offset = PLACE.unpack(cursor.value())
        return seq, start, offset

    def client_cursor(self, label: bytes, client_id: bytes) -> tuple[int, int] | None:
        """`(client_seq, prev_ack)` of the client's last accepted message."""
        row = self._txn.get(client_id + label, db=self._dbs["cursors"])
        if row is None:
            return None
        client_seq, prev_ack = PAIR.unpack(row)
        return client_seq, prev_ack

    def stream_seq_of(self, label: bytes, client_id: bytes, client_seq: int) -> int | None:
        """Where a client's message is."""
        cursor = self._txn.cursor(self._dbs["by_client"])
        if not cursor.set_range_dup(client_id + label, PAIR.pack(client_seq, 0)):
            return None
        found, stream_seq = PAIR.unpack(cursor.value())
        return int(stream_seq) if found == client_seq else None

    def labels_of_client(self, client_id: bytes) -> Iterator[tuple[bytes, int, int]]:
        """`(label, client_seq, prev_ack)` wherever the client has written."""
        cursor = self._txn.cursor(self._dbs["cursors"])
        if not cursor.set_range(client_id):
            return
        for key, row in cursor:
            if bytes(key[: len(client_id)]) != client_id:
                return
            client_seq, prev_ack = PAIR.unpack(row)
            yield bytes(key[len(client_id) :]), client_seq, prev_ack

    def first_on_or_after(self, label: bytes, day: int) -> int | None:
        """The first stream_seq of the label on that day (since 1970) or a later one."""
        cursor = self._txn.cursor(self._dbs["days"])
        return int(PAIR.unpack(cursor.value())[1]) if cursor.set_range_dup(label, PAIR.pack(day, 0)) else None

    def cap(self, auth_ref: bytes) -> tuple[bytes, int, int, bytes] | None:
        """`(label, stream_seq, issued_at, token)` of an authorised capability."""
        row = self._txn.get(auth_ref, db=self._dbs["caps"])
        return None if row is None else (*CAP.unpack_from(row), bytes(row[CAP.size :]))

    def bucket(self, auth_ref: bytes, label: bytes) -> tuple[int, int] | None:
        row = self._txn.get(auth_ref + label, db=self._dbs["buckets"])
        return None if row is None else PAIR.unpack(row)

    def stream(self, stream_id: bytes) -> tuple[bytes, int] | None:
        """`(label, stream_seq)` of the control entry that registered a stream."""
        row = self._txn.get(stream_id, db=self._dbs["streams"])
        return None if row is None else STREAM.unpack(row)

    def streams(self) -> Iterator[bytes]:
        """Every registered stream_id."""
        for key, _ in self._txn.cursor(self._dbs["streams"]):
            yield bytes(key)

    def admin_events(self) -> Iterator[admin.Event]:
        """Everything the admin streams of the hub's realm have told it."""
        for _, row in self._txn.cursor(self._dbs["admin"]):
            yield admin.read_event(bytes(row))


class WriteRows(Rows):
    """What can be written. The caller commits."""

    def __init__(self, txn: lmdb.Transaction, dbs: dict[str, lmdb._Database], committed: Callable[[], None]) -> None:
        super().__init__(txn, dbs)
        self._committed = committed
        self._heads_change = 0

    def put_number(self, name: str, number: int) -> None:
        self._txn.put(name.encode(), _NUMBER.pack(number), db=self._dbs["meta"])

    def put_head(self, label: bytes, head: Head) -> None:
        before, row = self._txn.get(label, db=self._dbs["heads"]), head.encode()
        self._heads_change ^= _share(label, row) ^ (_share(label, bytes(before)) if before is not None else 0)
        self._txn.put(label, row, db=self._dbs["heads"])

    def put_chunk(self, label: bytes, start_seq: int, end_seq: int) -> None:
        self._txn.put(label, PAIR.pack(start_seq, end_seq), db=self._dbs["chunks"])

    def put_places(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs["places"]).putmulti(rows, dupdata=True)

    def put_clients(self, rows: list[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs["by_client"]).putmulti(rows, dupdata=True)

    def put_cursors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs["cursors"]).putmulti(rows)

    def put_day(self, label: bytes, day: int, stream_seq: int) -> None:
        self._txn.put(label, PAIR.pack(day, stream_seq), db=self._dbs["days"])

    def put_cap(self, auth_ref: bytes, label: bytes, stream_seq: int, issued_at: int, token: bytes) -> None:
        self._txn.put(auth_ref, CAP.pack(label, stream_seq, issued_at) + token, db=self._dbs["caps"])

    def put_buckets(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs["buckets"]).putmulti(rows)

    def put_stream(self, stream_id: bytes, label: bytes, stream_seq: int) -> None:
        self._txn.put(stream_id, STREAM.pack(label, stream_seq), db=self._dbs["streams"])

    def put_admin_event(self, label: bytes, stream_seq: int, event: admin.Event) -> None:
        self._txn.put(STREAM.pack(label, stream_seq), admin.write_event(event), db=self._dbs["admin"])

    def commit(self) -> None:
        if self._heads_change:
            self.put_number("heads_sum", self.number("heads_sum") ^ self._heads_change)
        self._txn.commit()
        self._committed()


def _share(label: bytes, row: bytes) -> int:
    """What a head adds to the sum of all heads, and takes from it again."""
    return int.from_bytes(blake2b(label + row, digest_size=_NUMBER.size).digest(), "big")


def _needed_bytes(env: lmdb.Environment) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def _check_length(env: lmdb.Environment, folder: Path) -> None:
    """A file that ends before its last page would take the process down when that page is touched."""
    for _ in range(_LOOKS):
        needed, size = _needed_bytes(env), (folder / "data.mdb").stat().st_size
        if size >= needed:
            return
        time.sleep(_LOOK_EVERY_S)  # its writer may be about to lengthen it
    env.close()
    raise Malformed("index", f"data.mdb has {size} bytes of {needed}")


def _last_at_or_before(cursor: lmdb.Cursor, key: bytes, value: bytes) -> bool:
    """Put the cursor on the key's last value that is not above `value`."""
    if cursor.set_range_dup(key, value):
        return bool(cursor.value() == value or cursor.prev_dup())
    return bool(cursor.set_key(key) and cursor.last_dup())
