"""Heads and index rows: values round-trip, and look-ups find the last row at or before a place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import Malformed, Unavailable
from veen.storage.index import PAIR, PLACE, Index, LabelHead

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index", durable=False)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20), st.integers(0, 1 << 62))
def test_a_head_comes_back_as_it_went_in(size: int, in_chunk: int, number: int) -> None:
    entries = min(size, in_chunk)
    head = LabelHead(size, number, size - entries + 1, number, number, number)
    head.peaks = [bytes([n]) * 32 for n in range(size.bit_count())]
    head.hash_peaks = [bytes([n + 100]) * 32 for n in range(entries.bit_count())]
    assert LabelHead.decode(head.encode()) == head
    assert head.copy() == head
    assert head.copy().peaks is not head.peaks


@pytest.mark.parametrize("cut", [0, 1, 49, 50, 81, 83])
def test_a_head_of_another_length_is_malformed(cut: int) -> None:
    row = LabelHead(1, 5, 1, 9, 1, 0, [A], [B]).encode()
    with pytest.raises(Malformed):
        LabelHead.decode(row[:cut])


def test_a_head_whose_peaks_are_not_of_its_size_is_malformed() -> None:
    row = LabelHead(3, 5, 1, 9, 1, 0, [A], [B]).encode()
    with pytest.raises(Malformed, match="peaks"):
        LabelHead.decode(row)


def test_rows_come_back_as_they_went_in(index: Index) -> None:
    head = LabelHead(1, 5, 1, 9, 1, 0, [A], [B])
    with index.write() as rows:
        rows.put_number("applied", 7)
        rows.put_head(A, head)
        rows.put_chunk(A, 1, 10)
        rows.put_chunk(A, 11, 20)
        rows.put_cap(A, B, 3, 4, b"token")
        rows.put_buckets([(A + B, PAIR.pack(5, 6))])
        rows.put_stream(C, B, 9)
        rows.commit()
    with index.read() as rows:
        assert rows.number("applied") == 7
        assert rows.number("nothing") == 0
        assert rows.head(A) == head
        assert rows.head(B) is None
        assert [rows.chunk_end(A, start) for start in (1, 2, 11, 21)] == [10, None, 20, None]
        assert rows.chunk_end(B, 1) is None
        assert rows.cap(A) == (B, 3, 4, b"token")
        assert rows.cap(B) is None
        assert rows.bucket(A, B) == (5, 6)
        assert rows.bucket(B, A) is None
        assert rows.stream(C) == (B, 9)
        assert list(rows.streams()) == [C]
        assert rows.label_count() == 1
    index.close()


def test_what_is_not_committed_was_never_there(index: Index) -> None:
    with index.write() as rows:
        rows.put_number("applied", 7)
    with index.read() as rows:
        assert rows.number("applied") == 0
    index.close()


def test_a_place_is_that_of_the_last_indexed_entry_at_or_before(index: Index) -> None:
    places = [(1, 1, 0), (33, 1, 900), (40, 40, 0), (300, 40, 5000)]
    with index.write() as rows:
        rows.put_places((label, PLACE.pack(*place)) for label in (A, C) for place in places)
        rows.commit()
    with index.read() as rows:
        for seq in range(1, 400):
            assert rows.place(A, seq) == max(place for place in places if place[0] <= seq)
        assert rows.place(A, 0) is None
        assert rows.place(B, 5) is None
    index.close()


def test_a_clients_messages_and_labels_are_found(index: Index) -> None:
    with index.write() as rows:
        rows.put_clients([(A + B, PAIR.pack(seq, seq * 10)) for seq in range(1, 100)])
        rows.put_cursors([(A + B, PAIR.pack(99, 7)), (A + C, PAIR.pack(1, 0)), (B + C, PAIR.pack(2, 1))])
        rows.commit()
    with index.read() as rows:
        assert [rows.stream_seq_of(B, A, seq) for seq in (0, 1, 50, 99, 100)] == [None, 10, 500, 990, None]
        assert rows.stream_seq_of(C, A, 1) is None
        assert rows.client_cursor(B, A) == (99, 7)
        assert rows.client_cursor(A, B) is None
    index.close()


def test_a_day_begins_with_its_first_entry_or_the_next_days(index: Index) -> None:
    with index.write() as rows:
        for day, seq in ((10, 1), (11, 50), (15, 90)):
            rows.put_day(A, day, seq)
        rows.commit()
    with index.read() as rows:
        found = [rows.first_on_or_after(A, day) for day in (0, 10, 11, 12, 15, 16)]
        assert found == [1, 1, 50, 90, 90, None]
        assert rows.first_on_or_after(B, 10) is None
    index.close()


def test_labels_are_listed_in_order_and_from_any_point(index: Index) -> None:
    with index.write() as rows:
        for label in (C, A, B):
            rows.put_head(label, LabelHead())
        rows.commit()
    with index.read() as rows:
        assert [label for label, _ in rows.labels()] == [A, B, C]
        assert [label for label, _ in rows.labels(after=A)] == [B, C]
        assert [label for label, _ in rows.labels(after=C)] == []
    index.close()


def test_a_reader_keeps_its_view_while_the_writer_goes_on(index: Index, tmp_path: Path) -> None:
    with index.read() as before:
        with index.write() as rows:
            rows.put_number("applied", 1)
            rows.commit()
        assert before.number("applied") == 0
    with index.read() as after:
        assert after.number("applied") == 1
    index.close()


def test_there_is_nothing_to_read_where_no_index_is(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        Index(tmp_path / "none", readonly=True)


def test_what_is_no_index_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"x" * 100_000)
    with pytest.raises(Malformed):
        Index(tmp_path)


def test_pages_that_were_taken_and_given_back_in_one_go_are_no_damage(place: Path) -> None:
    """LMDB counts these pages but never writes them, so its file would end before its last page."""
    for number in range(10):
        index = Index(place / "index")
        with index.write() as rows:
            meta = rows._dbs["meta"]
            rows._txn.put(b"large", bytes(1 << 18), db=meta)
            rows._txn.delete(b"large", db=meta)
            rows.put_number("applied", number)
            rows.commit()
        index.close()
    again = Index(place / "index")
    with again.read() as rows:
        assert rows.number("applied") == 9
    again.close()
