"""An in-memory model of LMDB: the part of its API that hub and client use, with its rules for crashes.

    commit, sync=True    durable when it returns
    commit, sync=False   atomic; `sync` makes it durable
    kill                 every commit stays, and nothing of an open transaction
    power cut            the last durable commit or a later one, never a mixture

Each commit writes all rows to `data.mdb`, so that copies, renames, removals and damage of that file have the effect
they have on a real environment: a flipped bit is a wrong row, or a file that cannot be read. Rows are not sorted when
the file is read, so that a damaged key stays where the right one was.

Two things differ from LMDB on purpose. A relative move of a cursor after a failed one raises, because no code of ours
may depend on it. A second write transaction raises instead of waiting, because the lab has one thread.
"""

import os
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lmdb

from lab.disk import LMDB_FILE, Platter, SimulatedDisk

Row = tuple[bytes, bytes]

_MAGIC = b"memory lmdb 1\n"
_HEADER = struct.Struct(">14sIH")  # magic, bytes of the file, tables
_TABLE = struct.Struct(">BBI")  # bytes of the name, whether values are sorted, rows
_PAGE_BYTES = 4096
_MAX_KEY_BYTES = 511
_MAIN = b""  # the table without a name


@dataclass(slots=True)
class _Table:
    """The rows of one table, sorted by key and then by value. Never changed once committed."""

    is_dupsort: bool
    rows: list[Row] = field(default_factory=list)
    encoded: bytes = b""  # set by the commit

    def encode(self, name: bytes) -> bytes:
        if not self.encoded:
            parts = [part for row in self.rows for part in row]
            sizes = struct.pack(f">{len(parts)}I", *map(len, parts))
            self.encoded = b"".join([_TABLE.pack(len(name), self.is_dupsort, len(self.rows)), name, sizes, *parts])
        return self.encoded


Tables = dict[bytes, _Table]


@dataclass(eq=False, slots=True)
class _Shared:
    """One data file. All environments of this process that have it open share it."""

    tables: Tables
    data: bytes
    writer: "Transaction | None" = None


class MemoryLmdb:
    """Opens environments in memory: `lmdb_env.opened_by(MemoryLmdb(platter).open)`.

    Commits to files below a platter's root are calls of the process that runs there.
    """

    def __init__(self, *platters: Platter) -> None:
        self._platters = list(platters)
        self._open: dict[tuple[int, int], _Shared] = {}  # by device and inode

    def add(self, platter: Platter) -> None:
        self._platters.append(platter)

    def open(self, path: str, **options: Any) -> Any:
        """As `lmdb.open`. The type is not that of LMDB, but it has all of its methods that are used."""
        return Environment(self, Path(path), **options)

    def shared(self, file: Path) -> _Shared:
        """The content of a file: that of an open environment, unless the file was changed since."""
        found, data = file.stat(), file.read_bytes()
        known = self._open.get((found.st_dev, found.st_ino))
        if known is None or known.data != data:
            known = self._open[found.st_dev, found.st_ino] = _Shared(_read(data), data)
        return known

    def process_at(self, file: Path) -> SimulatedDisk | None:
        """The process that writes a file."""
        return next((platter.process for platter in self._platters if platter.is_below(file)), None)


class Database:
    """A handle of a table."""

    __slots__ = ("name",)

    def __init__(self, name: bytes | None) -> None:
        self.name = name


class Environment:
    """One open environment."""

    def __init__(
        self,
        model: MemoryLmdb,
        folder: Path,
        *,
        map_size: int = 10 << 20,
        max_dbs: int = 0,
        readonly: bool = False,
        create: bool = True,
        sync: bool = True,
        mode: int = 0o755,
        **_: object,
    ) -> None:
        self._file = folder / LMDB_FILE
        self._process = model.process_at(self._file)
        self._max_dbs = max_dbs
        self._map_size = map_size
        self._is_readonly = readonly
        self._sync = sync
        self._opened: dict[bytes, Database] = {}
        self._is_closed = False
        if not self._file.exists():
            if readonly or not create:
                raise lmdb.Error(f"{folder}: No such file or directory")
            with suppress(FileExistsError):
                folder.mkdir(mode | 0o700)
            self._write({}, mode)
        self._shared = model.shared(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True

    def open_db(
        self, key: bytes | None = None, *, create: bool = True, dupsort: bool = False, dupfixed: bool = False
    ) -> Database:
        """The handle of a table, which is created in a transaction of its own if it is missing."""
        self._check_open()
        if key is None:
            return Database(None)
        if key in self._opened:
            return self._opened[key]
        if len(self._opened) >= self._max_dbs:
            raise lmdb.DbsFullError("mdb_dbi_open")
        if key not in self._shared.tables:
            if not create or self._is_readonly:
                raise lmdb.NotFoundError(f"mdb_dbi_open: {key!r}")
            with self.begin(write=True) as txn:
                txn.tables[key] = _Table(dupsort or dupfixed)
                txn.is_changed = True
        return self._opened.setdefault(key, Database(key))

    def begin(self, db: Database | None = None, *, write: bool = False, buffers: bool = False) -> "Transaction":
        self._check_open()
        if write and self._is_readonly:
            raise lmdb.ReadonlyError("mdb_txn_begin")
        assert not buffers, "the model returns bytes"
        if write:
            assert self._shared.writer is None or self._shared.writer.has_died(), "two writers wait for each other"
        txn = Transaction(self, dict(self._shared.tables), db, is_write=write)
        if write:
            self._shared.writer = txn
        return txn

    def sync(self, force: bool = False) -> None:
        """Make every commit durable."""
        self._check_open()
        if self._process:
            self._process.sync_environment(self._file)

    def info(self) -> dict[str, int]:
        return {"map_size": self._map_size, "last_pgno": len(self._shared.data) // _PAGE_BYTES - 1}

    def stat(self) -> dict[str, int]:
        return {"psize": _PAGE_BYTES, "entries": len(self._shared.tables)}

    def reader_check(self) -> int:
        return 0

    def path(self) -> str:
        return str(self._file.parent)

    @property
    def is_dead(self) -> bool:
        """Whether the process that opened it has ended."""
        return self._is_closed or (self._process is not None and self._process.is_dead)

    def commit(self, txn: "Transaction") -> None:
        if txn.is_changed:
            data = self._write(txn.tables)
            self._shared.tables, self._shared.data = txn.tables, data

    def end(self, txn: "Transaction") -> None:
        if self._shared.writer is txn:
            self._shared.writer = None

    def _write(self, tables: Tables, mode: int = 0o644) -> bytes:
        data = _written(tables)
        if len(data) > self._map_size:
            raise lmdb.MapFullError("mdb_put: MDB_MAP_FULL: Environment mapsize limit reached")

        def act() -> None:
            fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode & 0o666)
            try:
                os.pwrite(fd, data, 0)
                os.ftruncate(fd, len(data))
            finally:
                os.close(fd)

        try:
            if self._process:
                self._process.commit(self._file, data, act, durable=self._sync)
            else:
                act()
        except OSError as error:
            kind = lmdb.DiskError if error.errno == ENOSPC else lmdb.Error
            raise kind(f"mdb_txn_commit: {error.strerror}") from None
        return data

    def _check_open(self) -> None:
        if self._is_closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")


class Transaction:
    """A snapshot, and with `write` the changes to it."""

    def __init__(self, env: Environment, tables: Tables, db: Database | None, *, is_write: bool) -> None:
        self._env = env
        self.tables = tables
        self.is_changed = False
        self._db = db
        self._is_write = is_write
        self._own: set[bytes] = set()  # tables whose rows were copied
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and self._is_write and not self._is_over:
            self.commit()
        else:
            self.abort()

    def has_died(self) -> bool:
        """Whether the process of this transaction has ended, which aborts it."""
        return self._is_over or self._env.is_dead

    def commit(self) -> None:
        self._check()
        self._is_over = True
        try:
            self._env.commit(self)
        finally:
            self._env.end(self)

    def abort(self) -> None:
        self._is_over = True
        self._env.end(self)

    def get(self, key: bytes, default: bytes | None = None, db: Database | None = None) -> bytes | None:
        _check_key(key)
        rows = self.rows(db)
        at = bisect_left(rows, (key,))
        return rows[at][1] if at < len(rows) and rows[at][0] == key else default

    def put(self, key: bytes, value: bytes, *, db: Database | None = None) -> bool:
        _check_key(key, _MAX_KEY_BYTES)
        table = self._table(db)
        if table.is_dupsort and not 0 < len(value) <= _MAX_KEY_BYTES:
            raise lmdb.BadValsizeError("mdb_put: MDB_BAD_VALSIZE")
        rows = self._own_rows(db)
        at = bisect_left(rows, (key, value) if table.is_dupsort else (key,))
        if at < len(rows) and (rows[at] == (key, value) if table.is_dupsort else rows[at][0] == key):
            rows[at] = (key, value)
        else:
            rows.insert(at, (key, value))
        return True

    def delete(self, key: bytes, value: bytes = b"", db: Database | None = None) -> bool:
        """Remove a key with all of its values, or one of its values."""
        _check_key(key)
        is_one = bool(value) and self._table(db).is_dupsort
        rows = self.rows(db)
        start = end = bisect_left(rows, (key, value) if is_one else (key,))
        while end < len(rows) and rows[end][0] == key and (not is_one or rows[end][1] == value):
            end += 1
        if end > start:
            del self._own_rows(db)[start:end]
        return end > start

    def cursor(self, db: Database | None = None) -> "Cursor":
        return Cursor(self, db or self._db)

    def stat(self, db: Database) -> dict[str, int]:
        return {"psize": _PAGE_BYTES, "entries": len(self.rows(db))}

    def rows(self, db: Database | None) -> list[Row]:
        """The rows of a table. The main one also has the names of all others."""
        self._check()
        name = (db or self._db or Database(None)).name
        if name is not None:
            return self.tables[name].rows
        own = self.tables[_MAIN].rows if _MAIN in self.tables else []
        return own if self.tables.keys() <= {_MAIN} else sorted([*own, *((key, b"") for key in self.tables if key)])

    def _table(self, db: Database | None) -> _Table:
        self._check()
        return self.tables.setdefault(self._name(db), _Table(is_dupsort=False))

    def _name(self, db: Database | None) -> bytes:
        return (db or self._db or Database(None)).name or _MAIN

    def _own_rows(self, db: Database | None) -> list[Row]:
        """The rows of a table, copied before the first change."""
        if not self._is_write:
            raise lmdb.ReadonlyError("mdb_put: Permission denied")
        table, name = self._table(db), self._name(db)
        self.is_changed = True
        if name not in self._own:
            self._own.add(name)
            table = self.tables[name] = _Table(table.is_dupsort, table.rows.copy())
        return table.rows

    def _check(self) -> None:
        if self._is_over:
            raise lmdb.BadTxnError("Attempt to operate on closed/deleted/dropped object.")


class Cursor:
    """A position among the rows of a table: that of a row, or none."""

    def __init__(self, txn: Transaction, db: Database | None) -> None:
        self._txn = txn
        self._db = db
        self._at: int | None = None
        self._is_new = True  # not moved yet: `next` is the first row, `prev` the last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._at = None

    def __iter__(self) -> Iterator[Row]:
        """All rows from the current one on, or from the first."""
        found = self.first() if self._is_new else self._at is not None
        while found:
            yield self.item()
            found = self.next()

    def iternext_dup(self) -> Iterator[bytes]:
        """The values of the current key, from the current one on."""
        found = self._at is not None
        while found:
            yield self.value()
            found = self.next_dup()

    def item(self) -> Row:
        return (b"", b"") if self._at is None else self._rows[self._at]

    def key(self) -> bytes:
        return self.item()[0]

    def value(self) -> bytes:
        return self.item()[1]

    def first(self) -> bool:
        return self._move(0)

    def last(self) -> bool:
        return self._move(len(self._rows) - 1)

    def next(self) -> bool:
        return self._move(0 if self._is_new else self._here() + 1)

    def prev(self) -> bool:
        return self._move(len(self._rows) - 1 if self._is_new else self._here() - 1)

    def next_dup(self) -> bool:
        return self._move_within(self._here() + 1)

    def prev_dup(self) -> bool:
        return self._move_within(self._here() - 1)

    def last_dup(self) -> bool:
        at, rows = self._here(), self._rows
        while at + 1 < len(rows) and rows[at + 1][0] == rows[at][0]:
            at += 1
        return self._move(at)

    def set_key(self, key: bytes) -> bool:
        _check_key(key)
        at = bisect_left(self._rows, (key,))
        return self._move(at if at < len(self._rows) and self._rows[at][0] == key else -1)

    def set_range(self, key: bytes) -> bool:
        return self._move(bisect_left(self._rows, (key,)))

    def set_range_dup(self, key: bytes, value: bytes) -> bool:
        """Move to the first value of the key that is at least `value`."""
        _check_key(key)
        at = bisect_left(self._rows, (key, value))
        return self._move(at if at < len(self._rows) and self._rows[at][0] == key else -1)

    def putmulti(self, items: Iterable[Row], *, dupdata: bool = True) -> None:
        assert dupdata, "the model has no other way"
        for key, value in items:
            self._txn.put(key, value, db=self._db)
        self._at, self._is_new = None, False

    @property
    def _rows(self) -> list[Row]:
        return self._txn.rows(self._db)

    def _here(self) -> int:
        assert self._at is not None, "a relative move needs a position"
        return self._at

    def _move(self, at: int) -> bool:
        self._is_new = False
        self._at = at if 0 <= at < len(self._rows) else None
        return self._at is not None

    def _move_within(self, at: int) -> bool:
        """Move to a value of the current key. If there is none, the cursor stays."""
        rows, here = self._rows, self._here()
        return 0 <= at < len(rows) and rows[at][0] == rows[here][0] and self._move(at)


def _check_key(key: bytes, most: int = sys.maxsize) -> None:
    if not 0 < len(key) <= most:
        raise lmdb.BadValsizeError("MDB_BAD_VALSIZE: Unsupported size of key/DB name/data, or wrong DUPFIXED size")


# The file.


def _written(tables: Tables) -> bytes:
    parts = [table.encode(name) for name, table in sorted(tables.items())]
    size = _HEADER.size + sum(map(len, parts))
    size += -size % _PAGE_BYTES
    return b"".join([_HEADER.pack(_MAGIC, size, len(tables)), *parts]).ljust(size, b"\0")


def _read(data: bytes) -> Tables:
    """The tables of a file. Damage of the layout is what LMDB reports; damage of rows is not noticed here."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise lmdb.InvalidError("mdb_env_open: MDB_INVALID: File is not an LMDB file")
    _, size, count = _HEADER.unpack_from(data)
    if size != len(data):
        raise lmdb.CorruptedError("mdb_env_open: MDB_CORRUPTED: Located page was wrong type")
    tables: Tables = {}
    at = _HEADER.size
    try:
        for _ in range(count):
            name_bytes, is_dupsort, rows = _TABLE.unpack_from(data, at)
            at += _TABLE.size
            name = data[at : at + name_bytes]
            at += name_bytes
            sizes = struct.unpack_from(f">{2 * rows}I", data, at)
            at += 8 * rows
            parts = []
            for length in sizes:
                parts.append(data[at : at + length])
                at += length
            tables[name] = _Table(bool(is_dupsort), list(zip(parts[::2], parts[1::2], strict=True)))
        if at > size or len(tables) != count:
            raise ValueError
    except (struct.error, ValueError):
        raise lmdb.CorruptedError("mdb_page_get: MDB_CORRUPTED: Located page was wrong type") from None
    return tables
