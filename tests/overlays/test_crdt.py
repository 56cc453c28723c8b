"""CRDT0: registers, sets and counters. 001, spec-1 §25."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import LogLine, cuts, log, logs, msg_id
from veen.core.hashing import U64_MAX
from veen.overlays import FaultKind, FoldEntry, FoldStep, check_laws, fold
from veen.overlays.crdt import G_COUNTER, LWW, OR_SET, Add, Increment, Remove, Write, elements, has, live_ids, total

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))

writes = st.builds(Write, st.sampled_from([b"", b"k", b"other"]), st.integers(0, 3), st.binary(max_size=3))
set_events = st.one_of(
    st.builds(Add, st.sampled_from([A, B, C]), st.sampled_from([b"x", b"y", b""])),
    st.builds(Remove, st.lists(st.sampled_from([A, B, C]), max_size=3).map(tuple)),
)
increments = st.builds(Increment, st.sampled_from([A, B]), st.sampled_from([0, 1, 5, U64_MAX]))


def test_the_schema_ids_are_the_hashes_of_their_names() -> None:
    schemas = (Write.SCHEMA, Add.SCHEMA, Remove.SCHEMA, Increment.SCHEMA)
    names = (b"crdt.lww.v1", b"crdt.orset.v1", b"crdt.orset.v1", b"crdt.gcnt.v1")
    assert schemas == tuple(sha256(name).digest() for name in names)


def test_bodies_are_text_keyed_maps_in_the_listed_order() -> None:
    assert Write(b"k", 7, b"v").encode() == b"\xa3\x63key\x41k\x62ts\x07\x65value\x41v"
    assert Add(A, b"x").encode() == b"\xa2\x62id\x58\x20" + A + b"\x64elem\x41x"
    assert Remove((A,)).encode() == b"\xa1\x64tomb\x81\x58\x20" + A
    assert Increment(A, 300).encode() == b"\xa2\x65shard\x58\x20" + A + b"\x65delta\x19\x01\x2c"


@given(logs(writes))
def test_registers_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(LWW, entries)


@given(logs(set_events))
def test_sets_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(OR_SET, entries)


@given(logs(increments))
def test_counters_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(G_COUNTER, entries)


def test_the_write_with_the_greatest_time_wins_at_any_place() -> None:
    for order in ([1, 2, 3], [3, 2, 1], [2, 3, 1]):
        entries = log(*(Write(b"k", ts, b"%d" % ts) for ts in order))
        assert fold(LWW, entries).states[b"k"].value == b"3"


def test_with_equal_times_the_later_place_wins() -> None:
    entries = log(Write(b"k", 5, b"first"), Write(b"k", 5, b"second"), Write(b"k", 4, b"third"))
    state = fold(LWW, entries).states[b"k"]
    assert (state.value, state.ts, state.stream_seq) == (b"second", 5, 2)


def test_a_mirrored_copy_of_a_write_does_not_override_later_writes() -> None:
    entries = log(Write(b"k", 5, b"first"), Write(b"k", 5, b"second"), LogLine(Write(b"k", 5, b"first"), msg_id(1)))
    folded = fold(LWW, entries)
    assert folded.states[b"k"].value == b"second"
    assert [(fault.stream_seq, fault.kind, fault.reason) for fault in folded.faults] == [
        (3, FaultKind.COPY, "a copy of entry 1")
    ]


def test_a_write_in_a_later_epoch_wins_over_one_with_a_greater_number() -> None:
    entries = [*log(*[Write(b"k", 0, b"old")] * 3), *log(Write(b"k", 0, b"new"), epoch=1)]
    assert fold(LWW, entries).states[b"k"].value == b"new"


def test_an_empty_value_is_a_value() -> None:
    assert fold(LWW, log(Write(b"", 0, b""))).states[b""].value == b""


def test_an_element_is_in_the_set_while_one_of_its_ids_is_not_removed() -> None:
    entries = log(Add(A, b"x"), Add(B, b"x"), Add(C, b"y"), Remove((A, C)))
    states = fold(OR_SET, entries).states
    assert list(elements(states)) == [b"x"]
    assert live_ids(states, b"x") == (B,)
    assert not has(states, b"y")
    assert not has(states, b"z")


def test_a_removed_id_stays_removed_if_the_remove_came_first() -> None:
    assert not has(fold(OR_SET, log(Remove((A,)), Add(A, b"x"))).states, b"x")


def test_a_removed_element_can_be_added_again_under_another_id() -> None:
    assert has(fold(OR_SET, log(Add(A, b"x"), Remove((A,)), Add(B, b"x"))).states, b"x")


@given(logs(set_events))
def test_the_set_equals_the_definition(entries: list[FoldEntry]) -> None:
    events = [step.event for entry in entries for step in _steps(entry)]
    tombs = {one for event in events if isinstance(event, Remove) for one in event.tomb}
    present = {event.elem for event in events if isinstance(event, Add) and event.id not in tombs}
    assert set(elements(fold(OR_SET, entries).states)) == present


def test_an_empty_remove_is_not_a_fault() -> None:
    folded = fold(OR_SET, log(Remove(())))
    assert (folded.states, folded.faults) == ({}, [])


def test_a_counter_is_the_sum_of_its_shards_beyond_64_bits() -> None:
    folded = fold(G_COUNTER, log(*[Increment(A, U64_MAX)] * 3, Increment(B, 1)))
    assert total(folded.states) == 3 * U64_MAX + 1
    assert folded.states[A] == 3 * U64_MAX


def test_a_mirrored_increment_counts_once() -> None:
    entries = log(Increment(A, 5), LogLine(Increment(A, 5), msg_id(1)), LogLine(Increment(A, 5), msg_id(77)))
    assert total(fold(G_COUNTER, entries).states) == 10


@given(logs(increments))
def test_a_counter_never_decreases_and_ignores_shard_order(entries: list[FoldEntry]) -> None:
    totals = [total(fold(G_COUNTER, head).states) for head, _ in cuts(entries)]
    assert totals == sorted(totals)


def _steps(entry: FoldEntry) -> tuple[FoldStep, ...]:
    found = OR_SET.read(entry)
    return found if isinstance(found, tuple) else ()
