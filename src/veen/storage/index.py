"""The index: an LMDB environment that locates entries, and files of tree nodes. All of it can be rebuilt from the log.

    meta        name                     number: format, applied (journal group), hub_ts (last entry), marked, sum;
                                         newest (the last entry's label)
    heads       label                    LabelHead
    chunks      label                    start_seq, end_seq                  closed ones
    places      label                    stream_seq, chunk_start, offset     one row per block of entries, not per entry
    by_client   client_id, label         client_seq, stream_seq              one row per entry
    cursors     client_id, label         client_seq, prev_ack                checksum
    days        label                    day, first stream_seq
    caps        auth_ref                 label, stream_seq of the control entry, issued_at, token
                                         or presentation                     checksum
    buckets     auth_ref, label          tokens, hub_ts                      checksum
    streams     stream_id                label, stream_seq of the control entry                      checksum
    labels      label                    stream_id, epoch                    if there are epochs; checksum
    admin       label, stream_seq        schema, body                        checksum; of a realm or the operator

Tables with several values per key keep them sorted and packed, so a look-up is O(log n) and a row costs its own bytes.

Rows that decide admission are checked before use. The rows of meta, heads and admin are covered by one sum, checked at
every start. Rows marked `checksum` are checked on every read; if a row is not found, its neighbours are checked too,
because a row with a damaged key is still stored at the place of the right key. A cursor is compared with the client's
last row in by_client, also if there is no cursor.
"""

import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import lmdb

from plumbing import lmdb_env
from veen.core import Malformed, Unavailable, admin, mmr
from veen.core.hashing import HASH_BYTES
from veen.core.profile import LimitRegistry
from veen.core.retention import RetentionRules
from veen.storage import safe_open

_FIXED = struct.Struct(">QQQQQQBB")
SECONDS_PER_DAY = 86_400
_LIMITS = b"limits"  # a row of `meta`
_RETENTION = b"retention"  # another


@dataclass(slots=True)
class LabelHead:
    """The state of a label's log files after the last entry in them: all that is needed to append, in one row."""

    size: int = 0  # entries in the log: the last stream_seq
    hub_ts: int = 0  # of the last entry
    chunk_start: int = 1  # stream_seq of the open chunk's first entry
    chunk_bytes: int = 0  # valid bytes of the open chunk's file
    place_seq: int = 0  # the last entry with a row in `places`
    place_offset: int = 0  # its offset in the open chunk
    peaks: list[bytes] = field(default_factory=list)
    hash_peaks: list[bytes] = field(default_factory=list)  # of the tree over the open chunk's entry hashes

    @property
    def chunk_entries(self) -> int:
        return self.size - self.chunk_start + 1

    def copy(self) -> "LabelHead":
        return LabelHead(
            self.size,
            self.hub_ts,
            self.chunk_start,
            self.chunk_bytes,
            self.place_seq,
            self.place_offset,
            list(self.peaks),
            list(self.hash_peaks),
        )

    def encode(self) -> bytes:
        fixed = _FIXED.pack(
            self.size,
            self.hub_ts,
            self.chunk_start,
            self.chunk_bytes,
            self.place_seq,
            self.place_offset,
            len(self.peaks),
            len(self.hash_peaks),
        )
        return fixed + b"".join(self.peaks) + b"".join(self.hash_peaks)

    @classmethod
    def decode(cls, row: bytes) -> Self:
        if len(row) < _FIXED.size:
            raise Malformed("index", "a head is shorter than its fixed part")
        size, hub_ts, start, used, seq, offset, peaks, hash_peaks = _FIXED.unpack_from(row)
        hashes = [row[at : at + HASH_BYTES] for at in range(_FIXED.size, len(row), HASH_BYTES)]
        if len(row) != _FIXED.size + HASH_BYTES * (peaks + hash_peaks):
            raise Malformed("index", "the length of a head does not match its peaks")
        head = cls(size, hub_ts, start, used, seq, offset, hashes[:peaks], hashes[peaks:])
        if len(head.peaks) != head.size.bit_count() or len(head.hash_peaks) != head.chunk_entries.bit_count():
            raise Malformed("index", "the peaks of a head do not match its size")
        return head


def values_descending(cursor: lmdb.Cursor, key: bytes) -> Iterator[bytes]:
    """The values of a key in descending order."""
    found = cursor.set_key(key) and cursor.last_dup()
    while found:
        yield bytes(cursor.value())
        found = cursor.prev_dup()


def last_at_or_before(cursor: lmdb.Cursor, key: bytes, value: bytes) -> bool:
    """Move the cursor to the last value of the key that is at most `value`."""
    if cursor.set_range_dup(key, value):
        return bool(cursor.value() == value or cursor.prev_dup())
    return bool(cursor.set_key(key) and cursor.last_dup())


SUM = "sum"  # key of the row in meta that stores the sum; the row is not part of the sum
_SUM_BYTES = 8
_CHECKSUM_BYTES = 4
_LmdbBytes = bytes | memoryview  # the type that py-lmdb declares for keys and values


def share(table: str, key: bytes, row: bytes) -> int:
    """The share of a row in the sum. Shares are combined with XOR, so a row is removed like it is added."""
    if (table, key) == ("meta", SUM.encode()):
        return 0
    return int.from_bytes(blake2b(key + row, digest_size=_SUM_BYTES, person=table.encode()).digest(), "big")


def with_checksum(table: str, key: bytes, row: bytes) -> bytes:
    """Append the row's checksum, which covers table, key and row."""
    return row + crc32(row, crc32(key, crc32(table.encode()))).to_bytes(_CHECKSUM_BYTES, "big")


def without_checksum(table: str, key: _LmdbBytes, stored: _LmdbBytes) -> bytes:
    """Strip and verify the checksum. Raises `Malformed` if it does not match."""
    row = bytes(stored[:-_CHECKSUM_BYTES])
    if with_checksum(table, bytes(key), row) != stored:
        raise Malformed("index", f"the checksum of a row of {table} does not match")
    return row


def unpacked(layout: struct.Struct, row: _LmdbBytes) -> tuple[Any, ...]:
    """Unpack a row of fixed length. Raises `Malformed` if the length is wrong."""
    if len(row) != layout.size:
        raise Malformed("index", f"a row has {len(row)} bytes, not {layout.size}")
    return layout.unpack(row)


_LENGTH_CHECKS, _LENGTH_CHECK_DELAY_S = 20, 0.005
_LOCK_BYTES = 8192  # enough for LMDB's default number of readers
_MODE = 0o755  # the mode that LMDB uses
_LEAST_ROW_BYTES = 16
FORMAT = 4
MARKED = "marked"  # number in meta: 1 if the data directory must have a journal mark
MAP_BYTES = 1 << 40  # address space, not disk
_MAX_DBS = 16
_NUMBER = struct.Struct(">Q")
PLACE = struct.Struct(">QQQ")
PAIR = struct.Struct(">QQ")
CAP = struct.Struct(">32sQQ")
STREAM = struct.Struct(">32sQ")

_PLAIN = ("meta", "heads", "cursors", "caps", "buckets", "streams", "labels", "admin")
_PACKED = ("chunks", "places", "by_client", "days")
TABLES = _PLAIN + _PACKED
SUMMED = ("meta", "heads", "admin")  # few rows, or read completely at every start anyway
# LMDB errors that mean damaged pages.
DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.PageFullError)


class Index:
    """One LMDB environment. Any number of readers in any process; one writer."""

    def __init__(self, folder: Path, *, readonly: bool = False, durable: bool = True, lock: bool = True) -> None:
        """Raises `Malformed` if it is damaged, `Unavailable` if there is none.

        With `durable` False only `sync` makes commits durable. With `lock` False no other process may have it open.
        """
        # Called on any thread when damaged rows were read.
        self.on_damage: Callable[[Exception], None] | None = None
        try:
            check_files(folder)
            if lock and not readonly:
                _reserve_lock(folder)
            self._env = lmdb_env.open_environment(
                folder,
                map_size=MAP_BYTES,
                max_dbs=_MAX_DBS,
                readonly=readonly,
                create=not readonly,
                readahead=False,
                max_spare_txns=4,
                sync=durable,
                lock=lock,
            )
            self._folder = folder
            self._check_length()
            self._env.reader_check()  # free the reader slots of killed processes
            self._dbs = {name: self._env.open_db(name.encode(), create=not readonly) for name in _PLAIN}
            for name in _PACKED:
                self._dbs[name] = self._env.open_db(name.encode(), dupsort=True, dupfixed=True, create=not readonly)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise Malformed("index", str(error)) from None
        except lmdb.NotFoundError:
            raise Unavailable("there is no index: no hub has run on this data directory yet") from None
        except (lmdb.Error, OSError) as error:
            raise Unavailable(f"the index cannot be opened: {error}") from None

    def close(self) -> None:
        self._env.close()

    def read(self) -> "IndexRows":
        """A consistent read transaction."""
        return IndexRows(self._env.begin(buffers=False), self._dbs, self.on_damage)

    def write(self) -> "WriteRows":
        """A write transaction: atomic, and synced by `commit`."""
        return WriteRows(self._env.begin(write=True), self._dbs, self.on_damage, self.extend_file)

    def sync(self) -> None:
        """When this returns, every commit is on disk."""
        self._env.sync(True)

    def most_rows(self) -> int:
        """An upper bound for the rows of all tables in an undamaged file."""
        return lmdb_env.needed_bytes(self._env) // _LEAST_ROW_BYTES

    def extend_file(self) -> None:
        """The last step of `commit`; if it fails, the transaction is committed nevertheless.

        A file that is too short was therefore truncated, unless a crash came right before this. In both cases the index
        is rebuilt.
        """
        lmdb_env.extend_file(self._env, self._folder)

    def _check_length(self) -> None:
        """Raise `Malformed` if the file ends before its last page: touching that page would crash the process."""
        for _ in range(_LENGTH_CHECKS):
            needed, size = lmdb_env.needed_bytes(self._env), (self._folder / "data.mdb").stat().st_size
            if size >= needed:
                return
            time.sleep(_LENGTH_CHECK_DELAY_S)  # its writer may be about to extend it
        self._env.close()
        raise Malformed("index", f"data.mdb has {size} bytes of {needed}")


def check_files(folder: Path) -> None:
    """Raise `Malformed` if a file is a link or FIFO: LMDB opens by name, and would follow or block."""
    for name in ("data.mdb", "lock.mdb"):
        safe_open.check_file(folder / name)


def _reserve_lock(folder: Path) -> None:
    """Allocate the lock file. LMDB writes it through a map, so a full disk would crash the process."""
    folder.mkdir(_MODE, exist_ok=True)
    fd = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


class IndexRows:
    """Look-ups in one transaction."""

    def __init__(
        self, txn: lmdb.Transaction, dbs: dict[str, lmdb._Database], on_damage: Callable[[Exception], None] | None
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self._on_damage = on_damage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._txn.abort()
        if self._on_damage and (isinstance(error, DAMAGE) or (isinstance(error, Malformed) and error.what == "index")):
            self._on_damage(error)

    def all_rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Every row of a table, by key and then by value."""
        for key, row in self._txn.cursor(self._dbs[table]):
            yield bytes(key), bytes(row)

    def number(self, name: str) -> int:
        row = self._txn.get(name.encode(), db=self._dbs["meta"])
        return 0 if row is None else int(unpacked(_NUMBER, row)[0])

    def head(self, label: bytes) -> LabelHead | None:
        row = self._txn.get(label, db=self._dbs["heads"])
        return None if row is None else LabelHead.decode(bytes(row))

    def labels(self, after: bytes = b"") -> Iterator[tuple[bytes, LabelHead]]:
        """Every label after `after` and its head, in ascending order."""
        cursor = self._txn.cursor(self._dbs["heads"])
        if not cursor.set_range(after + b"\0" if after else b""):
            return
        for label, row in cursor:
            yield bytes(label), LabelHead.decode(bytes(row))

    def next_label(self, after: bytes = b"") -> bytes | None:
        """The first label after `after`, also if its head is damaged."""
        cursor = self._txn.cursor(self._dbs["heads"])
        return bytes(cursor.key()) if cursor.set_range(after + b"\0" if after else b"") else None

    def sum_matches(self, max_rows: int = sys.maxsize) -> bool:
        """Whether the sum matches. Gives up after `max_rows` rows: damaged pages can form a cycle."""
        total, left = 0, max_rows
        for table in SUMMED:
            for key, row in self._txn.cursor(self._dbs[table]):
                left -= 1
                if left < 0:
                    return False  # damaged pages that form a cycle
                total ^= share(table, bytes(key), bytes(row))
        return total == self.number(SUM)

    def label_count(self) -> int:
        return int(self._txn.stat(self._dbs["heads"])["entries"])

    def entry_count(self) -> int:
        return int(self._txn.stat(self._dbs["by_client"])["entries"])

    def newest(self) -> bytes | None:
        """The label with the newest entry; of several, the greatest."""
        row = self._txn.get(b"newest", db=self._dbs["meta"])
        return None if row is None else bytes(row)

    def limits(self) -> LimitRegistry | None:
        """The limit registry after the last event that lowered limits; None if there is none."""
        row = self._txn.get(_LIMITS, db=self._dbs["meta"])
        return None if row is None else LimitRegistry.decode(bytes(row))

    def retention(self) -> RetentionRules:
        """The policies and holds after the last event that changed them."""
        row = self._txn.get(_RETENTION, db=self._dbs["meta"])
        return RetentionRules() if row is None else RetentionRules.decode(bytes(row))

    def chunk_end(self, label: bytes, start_seq: int) -> int | None:
        """The last entry of the closed chunk that starts at `start_seq`."""
        cursor = self._txn.cursor(self._dbs["chunks"])
        if not cursor.set_range_dup(label, PAIR.pack(start_seq, 0)):
            return None
        start, end = unpacked(PAIR, cursor.value())
        return int(end) if start == start_seq else None

    def closed_chunks(self, label: bytes) -> list[tuple[int, int]]:
        """First and last entry of every closed chunk of a label, in order."""
        cursor = self._txn.cursor(self._dbs["chunks"])
        rows = cursor.iternext_dup() if cursor.set_key(label) else ()
        return [(int(start), int(end)) for start, end in (unpacked(PAIR, row) for row in rows)]

    def chunk_ends(self, label: bytes, from_seq: int | None, max_rows: int) -> list[int]:
        """Ends of closed chunks, ascending: the last `max_rows`, or those from the chunk with `from_seq` on."""
        cursor = self._txn.cursor(self._dbs["chunks"])
        if from_seq is None:
            rows = [*islice(values_descending(cursor, label), max_rows)][::-1]
        elif last_at_or_before(cursor, label, PAIR.pack(from_seq, (1 << 64) - 1)) or cursor.set_key(label):
            reached = unpacked(PAIR, cursor.value())[1] >= from_seq
            rows = [bytes(row) for row in islice(cursor.iternext_dup(), not reached, max_rows + (not reached))]
        else:
            rows = []
        return [int(unpacked(PAIR, row)[1]) for row in rows]

    def place(self, label: bytes, stream_seq: int) -> tuple[int, int, int] | None:
        """`(stream_seq, chunk_start, offset)` of the last indexed entry at or before this one."""
        cursor = self._txn.cursor(self._dbs["places"])
        if not last_at_or_before(cursor, label, PLACE.pack(stream_seq, (1 << 64) - 1, (1 << 64) - 1)):
            return None
        seq, start, offset = unpacked(PLACE, cursor.value())
        return seq, start, offset

    def client_cursor(self, label: bytes, client_id: bytes) -> tuple[int, int] | None:
        """`(client_seq, prev_ack)` of the client's last accepted message. `Malformed` if by_client disagrees."""
        key = client_id + label
        row = self._txn.get(key, db=self._dbs["cursors"])
        client_seq, prev_ack = (0, 0) if row is None else PAIR.unpack(without_checksum("cursors", key, row))
        cursor = self._txn.cursor(self._dbs["by_client"])
        last = cursor.set_key(key) and cursor.last_dup()
        if client_seq != (unpacked(PAIR, cursor.value())[0] if last else 0):
            raise Malformed("index", "a cursor does not match the client's last entry")
        return (client_seq, prev_ack) if row is not None else None

    def stream_seq_of(self, label: bytes, client_id: bytes, client_seq: int) -> int | None:
        """The place of a client's message."""
        cursor = self._txn.cursor(self._dbs["by_client"])
        if not cursor.set_range_dup(client_id + label, PAIR.pack(client_seq, 0)):
            return None
        found, stream_seq = unpacked(PAIR, cursor.value())
        return int(stream_seq) if found == client_seq else None

    def first_on_or_after(self, label: bytes, day: int) -> int | None:
        """The first stream_seq of the label on that day (since 1970) or later."""
        cursor = self._txn.cursor(self._dbs["days"])
        return int(unpacked(PAIR, cursor.value())[1]) if cursor.set_range_dup(label, PAIR.pack(day, 0)) else None

    def cap(self, auth_ref: bytes) -> tuple[bytes, int, int, bytes] | None:
        """`(label, stream_seq, issued_at, the logged token or presentation)` of an authorised capability."""
        row = self._checked_row("caps", auth_ref)
        return None if row is None else (*CAP.unpack_from(row), row[CAP.size :])

    def bucket(self, auth_ref: bytes, label: bytes) -> tuple[int, int] | None:
        row = self._checked_row("buckets", auth_ref + label)
        return None if row is None else PAIR.unpack(row)

    def stream(self, stream_id: bytes) -> tuple[bytes, int] | None:
        """`(label, stream_seq)` of the control entry that registered a stream."""
        row = self._checked_row("streams", stream_id)
        return None if row is None else STREAM.unpack(row)

    def streams(self, after: bytes = b"") -> Iterator[bytes]:
        """Every registered stream_id after `after`, in ascending order."""
        cursor = self._txn.cursor(self._dbs["streams"])
        if not cursor.set_range(after + b"\0" if after else b""):
            return
        for key, row in cursor:
            without_checksum("streams", key, row)
            yield bytes(key)

    def stream_and_epoch(self, label: bytes) -> tuple[bytes, int] | None:
        """`(stream_id, epoch)` of a label that has entries."""
        row = self._checked_row("labels", label)
        return None if row is None else STREAM.unpack(row)

    def label_epochs(self, after: bytes = b"") -> Iterator[tuple[bytes, bytes, int]]:
        """Label, stream_id and epoch of every label after `after` that has entries, in ascending order."""
        cursor = self._txn.cursor(self._dbs["labels"])
        if not cursor.set_range(after + b"\0" if after else b""):
            return
        for key, row in cursor:
            stream, epoch = STREAM.unpack(without_checksum("labels", key, row))
            yield bytes(key), stream, epoch

    def admin_events(self) -> Iterator[admin.Event]:
        """Every event of the realm's admin streams and every revocation by the operator."""
        for key, row in self._txn.cursor(self._dbs["admin"]):
            yield admin.read_event(without_checksum("admin", key, row))

    def _checked_row(self, table: str, key: bytes) -> bytes | None:
        """A row of a table with checksums; None if it does not exist and the neighbouring rows are intact."""
        row = self._txn.get(key, db=self._dbs[table])
        if row is not None:
            return without_checksum(table, key, row)
        cursor = self._txn.cursor(self._dbs[table])
        above = cursor.set_range(key)
        in_order = not above or bytes(cursor.key()) > key
        if above:
            without_checksum(table, cursor.key(), cursor.value())
        if cursor.prev() if above else cursor.last():
            in_order &= bytes(cursor.key()) < key
            without_checksum(table, cursor.key(), cursor.value())
        if not in_order:
            raise Malformed("index", f"the rows of {table} are not in order")
        return None


class WriteRows(IndexRows):
    """A write transaction. The caller commits."""

    def __init__(
        self,
        txn: lmdb.Transaction,
        dbs: dict[str, lmdb._Database],
        on_damage: Callable[[Exception], None] | None,
        committed: Callable[[], None],
    ) -> None:
        super().__init__(txn, dbs, on_damage)
        self._committed = committed
        self._change = 0  # XOR of old and new sum

    def put_number(self, name: str, number: int) -> None:
        self._put_summed("meta", name.encode(), _NUMBER.pack(number))

    def put_newest(self, hub_ts: int, label: bytes) -> None:
        """Update the newest entry, if this one is newer."""
        if (hub_ts, label) > (self.number("hub_ts"), self.newest() or b""):
            self.put_number("hub_ts", hub_ts)
            self._put_summed("meta", b"newest", label)

    def put_limits(self, registry: LimitRegistry) -> None:
        self._put_summed("meta", _LIMITS, registry.encode())

    def put_retention(self, rules: RetentionRules) -> None:
        self._put_summed("meta", _RETENTION, rules.encode())

    def put_head(self, label: bytes, head: LabelHead) -> None:
        self._put_summed("heads", label, head.encode())

    def put_chunk(self, label: bytes, start_seq: int, end_seq: int) -> None:
        self._txn.put(label, PAIR.pack(start_seq, end_seq), db=self._dbs["chunks"])

    def put_places(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs["places"]).putmulti(rows, dupdata=True)

    def put_clients(self, rows: list[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs["by_client"]).putmulti(rows, dupdata=True)

    def put_cursors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._put_with_checksum("cursors", rows)

    def put_day(self, label: bytes, day: int, stream_seq: int) -> None:
        self._txn.put(label, PAIR.pack(day, stream_seq), db=self._dbs["days"])

    def put_cap(self, auth_ref: bytes, label: bytes, stream_seq: int, issued_at: int, token: bytes) -> None:
        self._put_with_checksum("caps", [(auth_ref, CAP.pack(label, stream_seq, issued_at) + token)])

    def put_buckets(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._put_with_checksum("buckets", rows)

    def put_stream(self, stream_id: bytes, label: bytes, stream_seq: int) -> None:
        self._put_with_checksum("streams", [(stream_id, STREAM.pack(label, stream_seq))])

    def put_label(self, label: bytes, stream_id: bytes, epoch: int) -> None:
        self._put_with_checksum("labels", [(label, STREAM.pack(stream_id, epoch))])

    def put_admin_event(self, label: bytes, stream_seq: int, event: admin.Event) -> None:
        key = STREAM.pack(label, stream_seq)
        self._put_summed("admin", key, with_checksum("admin", key, admin.write_event(event)))

    def commit(self) -> None:
        if self._change:
            self._txn.put(SUM.encode(), _NUMBER.pack(self.number(SUM) ^ self._change), db=self._dbs["meta"])
        self._txn.commit()
        self._committed()

    def _put_summed(self, table: str, key: bytes, row: bytes) -> None:
        before = self._txn.get(key, db=self._dbs[table])
        self._change ^= share(table, key, row) ^ (share(table, key, bytes(before)) if before is not None else 0)
        self._txn.put(key, row, db=self._dbs[table])

    def _put_with_checksum(self, table: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._txn.cursor(self._dbs[table]).putmulti([(key, with_checksum(table, key, row)) for key, row in rows])


class NodeFile:
    """The tree nodes of one label, 32 bytes each by position, so that any proof is O(log n) reads.

    Nodes that are not in the log yet are not in it.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = safe_open.open_file(path)

    def __enter__(self) -> "NodeFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, position: int) -> bytes:
        node = os.pread(self._fd, HASH_BYTES, position * HASH_BYTES)
        if len(node) != HASH_BYTES:
            raise Malformed("nodes", f"{self._path.name} ends before node {position}")
        return node


def check_peaks(path: Path, head: LabelHead) -> None:
    """Raise `Malformed` if a label's nodes do not match the peaks of its head. O(log n) reads."""
    try:
        with NodeFile(path) as nodes:
            found = mmr.peaks_at(nodes.read, head.size)
    except FileNotFoundError:
        raise Malformed("index", f"{path.name} is missing") from None
    except OSError:
        return  # unreadable now, which does not mean that it is wrong
    except Malformed as error:
        raise Malformed("index", error.reason) from None
    if found != head.peaks:
        raise Malformed("index", f"{path.name} does not match the peaks of the label's head")
