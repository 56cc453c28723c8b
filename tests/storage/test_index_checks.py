"""Every wrong bit in an index row that a hub decides by is detected before the row is used."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import lmdb
import pytest

from veen.core import Malformed, Unavailable
from veen.core.admin import Revocation, RevocationKind
from veen.storage.index import PAIR, SUMMED, Index, IndexRows, LabelHead

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))
KEYS = [bytes([number]) * 32 for number in range(10, 60, 10)]
CHECKSUMMED: dict[str, Callable[[IndexRows, bytes], object]] = {
    "caps": lambda rows, key: rows.cap(key),
    "buckets": lambda rows, key: rows.bucket(key[:32], key[32:]),
    "streams": lambda rows, key: rows.stream(key),
    "cursors": lambda rows, key: rows.client_cursor(key[32:], key[:32]),
}


@pytest.fixture
def index(place: Path) -> Iterator[Index]:
    made = Index(place / "index", durable=False)
    yield made
    made.close()


def fill(index: Index) -> None:
    with index.write() as rows:
        rows.put_number("applied", 7)
        rows.put_number("hub_ts", 1_700_000_000)
        rows.put_number("format", 4)
        for key in KEYS:
            rows.put_head(key, LabelHead(1, 5, 1, 9, 1, 0, [A], [B]))
            rows.put_cap(key, A, 3, 4, b"token" + key)
            rows.put_buckets([(key + A, PAIR.pack(5, 6))])
            rows.put_stream(key, A, 9)
            rows.put_clients([(key + A, PAIR.pack(seq, seq)) for seq in (1, 2)])
            rows.put_cursors([(key + A, PAIR.pack(2, 1))])
            rows.put_admin_event(A, key[0], Revocation(RevocationKind.CLIENT_ID, key, "lost", 5, None))
        rows.commit()


def all_of(index: Index, table: str) -> list[tuple[bytes, bytes]]:
    with index.read() as rows:
        return list(rows.all_rows(table))


def written_raw(index: Index, table: str, rows: list[tuple[bytes, bytes]]) -> None:
    with index._env.begin(write=True) as txn:
        txn.drop(index._dbs[table], delete=False)
        for row in rows:
            txn.put(*row, db=index._dbs[table])


def flips(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize("table", CHECKSUMMED)
@pytest.mark.parametrize("at", [0, 2, 4], ids=["first", "middle", "last"])
def test_every_wrong_bit_in_a_row_with_checksum_is_found_when_it_is_read(index: Index, table: str, at: int) -> None:
    fill(index)
    key, row = all_of(index, table)[at]
    cut = [row[:size] for size in range(len(row))]
    for wrong in [*flips(row), *cut, row + b"\0", all_of(index, table)[1][1] + row]:
        with index._env.begin(write=True) as txn:
            txn.put(key, wrong, db=index._dbs[table])
        with index.read() as rows, pytest.raises(Malformed, match="index: the checksum of a row of"):
            CHECKSUMMED[table](rows, key)


@pytest.mark.parametrize("table", ["caps", "buckets", "streams"])
@pytest.mark.parametrize("at", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_row_with_a_wrong_key_is_found_from_its_place(index: Index, table: str, at: int) -> None:
    """A page keeps its order, so the changed key bit must not change it."""
    fill(index)
    rows = all_of(index, table)
    key, row = rows[at]
    for wrong in flips(key):
        if all(wrong > below for below, _ in rows[:at]) and all(wrong < above for above, _ in rows[at + 1 :]):
            written_raw(index, table, [*rows[:at], (wrong, row), *rows[at + 1 :]])
            with index.read() as found, pytest.raises(Malformed, match="index: the checksum of a row of"):
                CHECKSUMMED[table](found, key)


@pytest.mark.parametrize("table", CHECKSUMMED)
@pytest.mark.parametrize("filled", [True, False])
def test_what_was_never_written_is_not_there(index: Index, table: str, filled: bool) -> None:
    if filled:
        fill(index)
    length = 64 if table in ("buckets", "cursors") else 32
    with index.read() as rows:
        for number in range(0, 256, 5):
            key = (bytes([number]) * 32 + A)[:length]
            assert (CHECKSUMMED[table](rows, key) is None) == (not filled or key[:32] not in KEYS)


def test_a_cursor_without_entries_and_entries_without_a_cursor_are_found(index: Index) -> None:
    fill(index)
    with index._env.begin(write=True) as txn:
        txn.delete(KEYS[0] + A, db=index._dbs["cursors"])
        txn.delete(KEYS[1] + A, db=index._dbs["by_client"])
        txn.delete(KEYS[2] + A, PAIR.pack(2, 2), db=index._dbs["by_client"])
    with index.read() as rows:
        for key in KEYS[:3]:
            with pytest.raises(Malformed, match="does not match the client's last entry"):
                rows.client_cursor(A, key)
        assert rows.client_cursor(A, KEYS[3]) == (2, 1)
        assert rows.client_cursor(A, B) is None


@pytest.mark.parametrize("table", SUMMED)
def test_every_wrong_bit_in_rows_that_a_start_relies_on_is_found(index: Index, table: str) -> None:
    fill(index)
    true = all_of(index, table)
    with index.read() as rows:
        assert rows.sum_matches()
    for at, (key, row) in enumerate(true):
        rest = [*true[:at], *true[at + 1 :]]
        for wrong in [(key, bad) for bad in flips(row)] + [(bad, row) for bad in flips(key)]:
            if wrong[0] not in dict(rest):
                written_raw(index, table, [*rest, wrong])
                assert not _holds(index)
        written_raw(index, table, rest)
        assert not _holds(index)
        written_raw(index, table, [*true, (C, row)])
        assert not _holds(index)
    written_raw(index, table, true)
    assert _holds(index)


def _holds(index: Index) -> bool:
    """A number of the wrong length is not a number."""
    with index.read() as rows:
        return rows.sum_matches()


def test_a_head_is_not_one_of_another_table(index: Index) -> None:
    """The sum depends on the table of a row."""
    fill(index)
    rows = all_of(index, "heads")
    written_raw(index, "heads", rows[1:])
    written_raw(index, "admin", [*all_of(index, "admin"), rows[0]])
    assert not _holds(index)


def test_the_sum_follows_rows_that_change(index: Index) -> None:
    for number in range(3):
        with index.write() as rows:
            rows.put_number("applied", number)
            rows.put_number("applied", number + 1)
            rows.put_head(A, LabelHead(1, number, 1, 9, 1, 0, [A], [B]))
            rows.put_head(A, LabelHead(1, number + 1, 1, 9, 1, 0, [A], [B]))
            rows.put_admin_event(A, 1, Revocation(RevocationKind.CLIENT_ID, bytes([number]) * 32, "lost", 5, None))
            rows.commit()
        assert _holds(index)


def test_a_number_of_another_length_is_malformed(index: Index) -> None:
    written_raw(index, "meta", [(b"applied", b"1234567"), (b"hub_ts", b""), (b"sum", bytes(9))])
    with index.read() as rows:
        for name in ("applied", "hub_ts", "sum"):
            with pytest.raises(Malformed, match="bytes, not 8"):
                rows.number(name)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Malformed("index", "wrong"), True),
        (lmdb.CorruptedError("page"), True),
        (lmdb.PageNotFoundError("page"), True),
        (Malformed("log", "wrong"), False),
        (Unavailable("later"), False),
        (lmdb.MapFullError("full"), False),
        (ValueError("ours"), False),
        (None, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["read", "write"])
def test_only_damage_of_the_index_is_reported(index: Index, mode: str, error: Exception | None, told: bool) -> None:
    heard: list[Exception] = []
    index.on_damage = heard.append
    with pytest.raises(type(error)) if error else nullcontext(), index.read() if mode == "read" else index.write():
        if error:
            raise error
    assert heard == ([error] if told else [])


def test_there_are_no_more_rows_than_the_file_has_room_for(index: Index) -> None:
    """Pages that share child pages would have endless rows."""
    fill(index)
    count = sum(len(all_of(index, table)) for table in SUMMED)
    with index.read() as rows:
        assert count <= index.most_rows()
        assert rows.sum_matches(count)
        assert not rows.sum_matches(count - 1)


def test_the_seats_of_readers_have_their_room_before_anyone_sits(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB writes the lock file through a map: without disk space that would crash the process."""
    Index(place / "index").close()
    assert (place / "index" / "lock.mdb").stat().st_blocks * 512 >= 8192

    def full(fd: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Unavailable, match="No space left"):
        Index(place / "other")
