"""The kept fold: bound to one root, refused under any other, and exact at every place."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import lmdb
import pytest

from tests.overlays.logs import LogLine, label_of, log, msg_id, root
from tests.overlays.wallets import MINE, ONLY_MINE, OWNER, REALM, random_event
from veen.core import Malformed, Unavailable, Unverified, mmr
from veen.overlays import AnyOverlay, At, FoldEntry, fold
from veen.overlays.crdt import G_COUNTER, LWW, Increment, Write
from veen.overlays.kept_fold import FANOUT, NODE, STATE, STRIDE, LogPrefix, MemoryRows, Timeline, Tip, cover, extend
from veen.overlays.kept_fold_lmdb import Cache, LmdbRows, discard, folder_of
from veen.overlays.kv import KV, Kv
from veen.overlays.wallet import WALLETS, Wallets
from veen.overlays.wallet_ledger import Open

A, B = bytes(32), b"\xff" * 32


def counted(number: int) -> list[FoldEntry]:
    return log(*(Increment(A if seq % 3 else B, seq) for seq in range(1, number + 1)))


@pytest.mark.parametrize("first", [0, 1, 15, 16, 17, 255, 256, 300])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 240, 256, 257, 600, 5000])
def test_blocks_cover_a_range_in_order_and_are_few(first: int, count: int) -> None:
    blocks = list(cover(first, first + count))
    held = [number * FANOUT**height + place for height, number in blocks for place in range(FANOUT**height)]
    assert held == list(range(first, first + count))
    assert len(blocks) <= 2 * (FANOUT - 1) * 4


def test_a_whole_block_covers_itself() -> None:
    assert list(cover(0, 256)) == [(2, 0)]
    assert list(cover(16, 32)) == [(1, 1)]
    assert list(cover(240, 257)) == [(1, 15), (0, 256)]


def test_rows_on_disk_and_in_memory_are_equal(tmp_path: Path) -> None:
    random = Random(3)
    kept = MemoryRows()
    with lmdb.open(str(tmp_path / "rows")) as env, env.begin(write=True) as txn:
        rows = LmdbRows(txn)
        for _ in range(400):
            key = bytes(random.choices(b"ab\xff", k=random.randrange(1, 4)))
            gone = random.random() < 0.3
            for one in (rows, kept):
                one.delete(key) if gone else one.put(key, bytes([len(key)]))
            prefix, rest = (bytes(random.choices(b"ab\xff", k=random.randrange(2))) for _ in range(2))
            if prefix + rest:
                assert list(rows.scan(prefix, rest)) == list(kept.scan(prefix, rest))
                assert list(rows.back(prefix, rest)) == list(kept.back(prefix, rest))
            assert rows.get(key) == kept.get(key)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_part_with_ordered_events_equals_a_fold(seed: int) -> None:
    random = Random(seed)
    entries = log(Open(MINE, REALM, OWNER, "JPY", 1), *(random_event(random) for _ in range(150)))
    rows = MemoryRows()
    extend(ONLY_MINE, rows, entries, root(entries))
    timeline = Timeline(ONLY_MINE, rows)
    walked = [fold(ONLY_MINE, entries[:place]).state(MINE) for place in range(len(entries) + 1)]
    for place, state in enumerate(walked):
        assert timeline.state(MINE, At(0, place)) == state
        for last in (len(entries), place + 7, place + 40):
            summed = timeline.fold(MINE, At(0, place + 1), At(0, last))
            assert ONLY_MINE.run(state, summed) == walked[min(last, len(entries))]


def test_a_reopened_cache_continues_at_its_last_place(tmp_path: Path) -> None:
    entries = counted(100)
    for end in (1, 2, 40, 99, 100):
        with Cache(tmp_path / "c", G_COUNTER) as cache:
            with cache.reading() as timeline:
                done = timeline.upto()
            start = 0 if done is None else done.stream_seq
            assert cache.extend(entries[start:end], root(entries[:end])) == At(0, end)
    with Cache(tmp_path / "c", G_COUNTER) as cache, cache.reading() as timeline:
        assert dict(timeline.states()) == fold(G_COUNTER, entries).states
        assert timeline.prefixes() == (LogPrefix(label_of(0), 0, 100, root(entries)),)


def test_extending_by_no_entries_changes_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "c", G_COUNTER) as cache:
        assert cache.extend([], bytes(32)) is None
        with cache.reading() as timeline:
            assert timeline.upto() is None
            assert dict(timeline.states()) == {}
            assert timeline.fold(A, At(0, 1), At(0, 9)) == 0


def test_entries_with_an_unsigned_root_are_not_stored(tmp_path: Path) -> None:
    entries = counted(20)
    with Cache(tmp_path / "c", G_COUNTER) as cache:
        cache.extend(entries[:10], root(entries[:10]))
        for signed in (root(entries[:19]), bytes(32)):
            with pytest.raises(Unverified, match="do not have the root"):
                cache.extend(entries[10:], signed)
        with cache.reading() as timeline:
            assert timeline.upto() == At(0, 10)
            assert dict(timeline.states()) == fold(G_COUNTER, entries[:10]).states
        cache.extend(entries[10:], root(entries))


def test_a_cache_with_another_root_than_the_log_is_rejected_and_unchanged(tmp_path: Path) -> None:
    entries, other = counted(20), [replace(entry, msg_id=msg_id(entry.stream_seq, 9)) for entry in counted(20)]
    with Cache(tmp_path / "c", G_COUNTER) as cache:
        cache.extend(entries, root(entries))
        cache.check(lambda bound: root(entries[: bound.upto_seq]))
        for log_now in (other, entries[:19], []):
            with pytest.raises(Unverified, match="the log has another root"):
                cache.check(partial(root_at, log_now))
        with cache.reading() as timeline:
            assert timeline.upto() == At(0, 20)


def root_at(entries: list[FoldEntry], bound: LogPrefix) -> bytes | None:
    return root(entries[: bound.upto_seq]) if len(entries) >= bound.upto_seq else None


@pytest.mark.parametrize("stranger", [LWW, KV])
def test_a_cache_of_another_overlay_is_refused(tmp_path: Path, stranger: AnyOverlay) -> None:
    entries = counted(3)
    with Cache(tmp_path / "c", G_COUNTER) as cache:
        cache.extend(entries, root(entries))
    with pytest.raises(Malformed, match="not built by overlay"):
        Cache(tmp_path / "c", stranger)
    with Cache(tmp_path / "c", G_COUNTER) as cache, cache.reading() as timeline:
        assert timeline.upto() == At(0, 3)


def test_a_cache_of_other_rules_or_settings_is_refused(tmp_path: Path) -> None:
    class Later(Kv):
        VERSION = 2

    class Set(Kv):
        def settings(self) -> bytes:
            return b"other"

    entries = log(Write(b"k", 0, b"v"))
    with Cache(tmp_path / "c", KV) as cache:
        cache.extend(entries, root(entries))
    for changed in (Later(), Set()):
        with pytest.raises(Malformed, match="not built by overlay"):
            Cache(tmp_path / "c", changed)


def test_a_discarded_cache_can_be_made_again(tmp_path: Path) -> None:
    entries = counted(3)
    with Cache(tmp_path / "c", G_COUNTER) as cache:
        cache.extend(entries, root(entries))
    discard(tmp_path / "c")
    with Cache(tmp_path / "c", LWW) as again, again.reading() as timeline:
        assert timeline.upto() is None


def test_each_overlay_setting_and_stream_has_a_folder_of_its_own(tmp_path: Path) -> None:
    kinds: list[AnyOverlay] = [KV, LWW, WALLETS, Wallets(only=A), Wallets(only=B)]
    folders = [folder_of(tmp_path, overlay, stream) for overlay in kinds for stream in (A, B)]
    assert len(set(folders)) == 10
    assert {folder.parent for folder in folders} == {tmp_path}


def test_a_file_that_is_not_a_cache_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data.mdb").write_bytes(b"something else entirely" * 500)
    with pytest.raises(Malformed):
        Cache(tmp_path / "c", G_COUNTER)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.75, 0.99])
def test_a_truncated_cache_is_rejected_or_correct_and_never_crashes(tmp_path: Path, kept: float) -> None:
    entries = counted(600)
    with Cache(tmp_path, G_COUNTER) as cache:
        cache.extend(entries, root(entries))
        with cache.reading() as timeline:
            whole = dict(timeline.states())
    file = tmp_path / "data.mdb"
    with file.open("r+b") as opened:
        opened.truncate(int(file.stat().st_size * kept))
    try:
        with Cache(tmp_path, G_COUNTER) as cache, cache.reading() as timeline:
            assert dict(timeline.states()) == whole
            refused = False
    except Malformed:
        refused = True
    assert refused or kept > 0.9


def test_a_folder_that_cannot_be_created_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(Unavailable):
        Cache(tmp_path / "c", G_COUNTER)


@pytest.mark.parametrize("start", [1, 10, 12])
def test_entries_with_a_gap_raise_a_value_error(start: int) -> None:
    rows, entries = MemoryRows(), counted(20)
    extend(G_COUNTER, rows, entries[:10], root(entries[:10]))
    with pytest.raises(ValueError, match="does not follow entry 10"):
        extend(G_COUNTER, rows, entries[start - 1 :], root(entries))


def test_an_entry_of_another_label_in_the_same_epoch_raises_a_value_error() -> None:
    rows, entries = MemoryRows(), counted(2)
    with pytest.raises(ValueError, match="does not follow"):
        extend(G_COUNTER, rows, [entries[0], replace(entries[1], label=B)], root(entries))


def test_a_stream_continues_under_the_label_of_the_next_epoch() -> None:
    rows, old = MemoryRows(), log(*[Increment(A, 1)] * 20, epoch=4)
    new = log(*[Increment(A, 10)] * 20, LogLine(Increment(A, 1), msg_id(7, 4)), epoch=6)
    extend(G_COUNTER, rows, old[:15], root(old[:15]))
    extend(G_COUNTER, rows, [*old[15:], *new[:5]], root(new[:5]))
    extend(G_COUNTER, rows, new[5:], root(new))
    timeline = Timeline(G_COUNTER, rows)
    assert timeline.state(A) == 220
    assert timeline.state(A, At(4, 20)) == 20
    assert timeline.state(A, At(5, 99)) == 20
    assert timeline.state(A, At(6, 1)) == 30
    assert timeline.fold(A, At(4, 11), At(6, 3)) == 40
    assert [bound.upto_seq for bound in timeline.prefixes()] == [20, 21]
    assert [fault.reason for fault in timeline.faults()] == ["a copy of entry 7 of epoch 4"]
    timeline.check(lambda bound: root(old if bound.epoch == 4 else new))
    with pytest.raises(Unverified, match="label " + label_of(4).hex()):
        timeline.check(lambda bound: bytes(32) if bound.epoch == 4 else root(new))


def test_a_cache_rejects_an_entry_of_an_epoch_that_has_ended() -> None:
    rows, old, new = MemoryRows(), log(*[Increment(A, 1)] * 3), log(Increment(A, 1), epoch=1)
    extend(G_COUNTER, rows, [*old[:2], *new], root(new))
    with pytest.raises(Unverified, match="epoch 0 has a new entry"):
        extend(G_COUNTER, rows, old[2:], root(old))


def test_a_long_part_equals_a_fold_for_every_range() -> None:
    entries, rows = log(*(Increment(A, seq) for seq in range(1, 601))), MemoryRows()
    extend(G_COUNTER, rows, entries, root(entries))
    timeline = Timeline(G_COUNTER, rows)
    for first in (1, 2, 16, 17, 200, 256, 257, 600):
        for last in (1, 15, 16, 17, 255, 256, 272, 599, 600, 9999):
            expected = sum(range(first, min(last, 600) + 1))
            assert timeline.fold(A, At(0, first), At(0, last)) == expected
    assert timeline.fold(B, At(0, 1), At(0, 600)) == 0


class Counting(MemoryRows):
    """Rows that count how often they are asked."""

    asked = 0

    def get(self, key: bytes) -> bytes | None:
        self.asked += 1
        return super().get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(prefix, start):
            self.asked += 1
            yield row

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in super().back(prefix, end):
            self.asked += 1
            yield row


def test_a_read_needs_few_rows_regardless_of_log_length() -> None:
    asked = {}
    for size in (500, 8000):
        entries, rows = log(*(Increment(A, 1) for _ in range(size))), Counting()
        extend(G_COUNTER, rows, entries, root(entries))
        timeline = Timeline(G_COUNTER, rows)
        rows.asked = 0
        assert timeline.state(A, At(0, size - 1)) == size - 1
        assert rows.asked <= STRIDE + 2
        rows.asked = 0
        assert timeline.fold(A, At(0, 2), At(0, size - 1)) == size - 2
        asked[size] = rows.asked
    assert asked[8000] <= 2 * asked[500]


@pytest.mark.parametrize("table", [STATE, NODE])
def test_a_missing_row_is_reported(table: bytes) -> None:
    entries, rows = log(*(Increment(A, 1) for _ in range(40))), MemoryRows()
    extend(G_COUNTER, rows, entries, root(entries))
    kept = MemoryRows()
    for key, row in rows.scan(b""):
        if not key.startswith(table):
            kept.put(key, row)
    timeline = Timeline(G_COUNTER, kept)
    with pytest.raises(Malformed, match="a row is missing"):
        timeline.state(A, At(0, 17)) if table == STATE else timeline.fold(A, At(0, 1), At(0, 40))


def test_a_tip_with_a_wrong_number_of_peaks_does_not_decode() -> None:
    tree = mmr.Mmr()
    for number in range(3):
        tree.append(msg_id(number))
    assert Tip.decode(Tip.of(A, tree).encode()).mmr_root() == tree.root()
    with pytest.raises(ValueError, match="peaks"):
        replace(Tip.of(A, tree), upto_seq=4).encode()
