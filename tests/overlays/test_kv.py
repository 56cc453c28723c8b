"""KV: get, put, delete, watch, and any key at any place. Spec §11.4."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import LogLine, log, logs, root
from veen.overlays import At, EventFault, Fold, FoldEntry, check_laws, fold
from veen.overlays.crdt import LWW, Write
from veen.overlays.kept_fold_lmdb import Cache
from veen.overlays.kv import KV, Change, Delete, change, delete, get, keys, put

events = st.one_of(
    st.builds(Write, st.sampled_from([b"a", b"ab", b"b"]), st.integers(0, 2), st.binary(max_size=2)),
    st.builds(Delete, st.sampled_from([b"a", b"ab", b"b"]), st.integers(0, 2)),
)


@given(logs(events))
def test_a_map_keeps_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(KV, entries)


def test_a_key_has_the_value_last_put_and_none_once_deleted() -> None:
    fold_ = Fold(KV)
    for event, expected in [
        (put(fold_.states, b"k", b"1"), b"1"),
        (put(fold_.states, b"k", b""), b""),
        (delete(fold_.states, b"k"), None),
        (put(fold_.states, b"k", b"2"), b"2"),
    ]:
        fold_.add(log(event, start=1 if fold_.upto is None else fold_.upto.stream_seq + 1)[0])
        assert get(fold_.states, b"k") == expected


def test_an_unwritten_key_has_no_value() -> None:
    assert get(fold(KV, []).states, b"k") is None
    assert get(fold(KV, log(Delete(b"k", 0))).states, b"k") is None


def test_without_clocks_a_put_after_a_write_from_the_future_still_wins() -> None:
    folded = fold(KV, log(Write(b"k", 1 << 60, b"from the future")))
    event = put(folded.states, b"k", b"now")
    folded.add(log(event, start=2)[0])
    assert get(folded.states, b"k") == b"now"


def test_a_write_with_an_older_time_changes_nothing_and_is_not_a_fault() -> None:
    folded = fold(KV, log(Write(b"k", 9, b"kept"), Write(b"k", 8, b"older"), Delete(b"k", 7)))
    assert get(folded.states, b"k") == b"kept"
    assert folded.faults == []


def test_a_reader_of_plain_registers_sees_every_value_that_was_put() -> None:
    entries = log(Write(b"a", 0, b"1"), Write(b"b", 0, b"2"), Delete(b"b", 0))
    assert fold(LWW, entries).states[b"a"].value == get(fold(KV, entries).states, b"a") == b"1"
    assert fold(LWW, entries).faults == []


def test_keys_are_listed_by_prefix_without_the_deleted_ones() -> None:
    entries = log(*(Write(key, 0, b"") for key in (b"b", b"ab", b"a", b"ac")), Delete(b"ac", 0))
    states = fold(KV, entries).states
    assert list(keys(states)) == [b"a", b"ab", b"b"]
    assert list(keys(states, b"a")) == [b"a", b"ab"]


def test_a_watcher_receives_each_change_and_nothing_else() -> None:
    watched = Fold(KV)
    told = []
    for entry in log(
        Write(b"k", 5, b"1"),
        Write(b"k", 4, b"older"),
        LogLine(Write(b"k", 6, b"x"), spoil=b"\x00"),
        Write(b"other", 0, b"y"),
        Delete(b"k", 5),
    ):
        for outcome in watched.add(entry):
            seen = None if isinstance(outcome, EventFault) else change(outcome)
            if seen is not None and seen.key == b"k":
                told.append((seen.step.at.stream_seq, seen.before, seen.after))
    assert told == [(1, None, b"1"), (5, b"1", None)]
    assert Change.__slots__


def test_one_key_is_read_at_any_place_without_reading_the_log(tmp_path: Path) -> None:
    entries = log(*(Write(b"k%d" % (number % 7), 0, b"%d" % number) for number in range(500)))
    with Cache(tmp_path / "kv", KV) as cache:
        cache.extend(entries, root(entries))
        entries.clear()
        with cache.reading() as timeline:
            for place in range(1, 501):
                newest = max((number for number in range(place) if number % 7 == 3), default=None)
                expected = None if newest is None else b"%d" % newest
                assert get(timeline.states(At(0, place)), b"k3") == expected
            written = [step.event for step in timeline.history(b"k3", last=At(0, 20))]
    assert written == [Write(b"k3", 0, b"3"), Write(b"k3", 0, b"10"), Write(b"k3", 0, b"17")]
