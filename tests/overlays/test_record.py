"""The recorder's events, and what its administrator says: laws, refusals, one encoding."""

from dataclasses import replace

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import CLIENTS, LogLine, log, logs, msg_id
from veen.core import Malformed, canonical_json
from veen.core.hashing import U64_MAX, h
from veen.overlays import FaultKind, FoldEntry, check_laws, fold
from veen.overlays.record import (
    CHANGES,
    MAX_POSITION_BYTES,
    PRINCIPAL,
    RECORD_TALLIES,
    RECORDER_CHANGES,
    SOURCE,
    SUBJECT,
    TYPE,
    MapType,
    Migration,
    Producer,
    RecorderProfile,
    RecordEvent,
    place_key,
    producer_of,
    producers,
    profile_of,
    stream_flaw,
    stream_of,
    types_of,
)

EVENT = RecordEvent("alice", "login", 5, "shop", '{"ok":true}', "file", 7)
WEB, SLOW, JOBS = "record/app/web", "record/app/slow", "record/app/jobs"
KEYS = tuple(sorted(h(bytes([number])) for number in range(3)))
SHOP = Producer("shop", KEYS[:1], ("shop",), (WEB,))
PROFILE = RecorderProfile(bytes(32), bytes(32), (WEB, CHANGES), 100, 1, 300)

names = st.sampled_from(["a", "b", "ü"])
places = st.one_of(
    st.just((None, None)), st.tuples(names, st.one_of(st.integers(0, 3), st.binary(min_size=1, max_size=2)))
)
events = st.builds(
    lambda subject, kind, time, origin, value, place: RecordEvent(
        subject, kind, time, origin, canonical_json.encode(value).decode(), *place
    ),
    names,
    names,
    st.integers(0, U64_MAX),
    names,
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False), names
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=2)),
        max_leaves=4,
    ),
    places,
)
streams = st.sampled_from([WEB, SLOW, JOBS])
types = st.lists(names, min_size=1, max_size=3, unique=True).map(lambda listed: tuple(sorted(listed)))
changes = st.one_of(
    st.builds(MapType, names, streams),
    st.builds(Migration, st.sampled_from(Migration.KINDS), st.just(WEB), st.sampled_from([SLOW, JOBS]), types),
    st.builds(Migration, st.just("split"), st.sampled_from([SLOW, JOBS]), st.just(WEB), types, st.just("why")),
    st.builds(
        Producer,
        names,
        st.lists(st.sampled_from(KEYS), min_size=1, unique=True).map(lambda listed: tuple(sorted(listed))),
        types,
        st.just((WEB,)),
    ),
    st.builds(
        RecorderProfile,
        st.just(bytes(32)),
        st.just(bytes(32)),
        st.just((WEB, CHANGES)),
        st.integers(1, 9),
        st.just(1),
        st.integers(1, 3),
    ),
)


@given(logs(events))
def test_tallies_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(RECORD_TALLIES, entries)


@given(logs(changes))
def test_changes_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(RECORDER_CHANGES, entries)


@given(logs(changes))
def test_an_event_type_has_at_most_one_stream_and_only_a_migration_moves_it(entries: list[FoldEntry]) -> None:
    before: dict[str, str | None] = {}
    for upto in range(len(entries) + 1):
        states = fold(RECORDER_CHANGES, entries[:upto]).states
        now = {one: stream_of(states, one) for one in types_of(states)}
        for event_type, stream in before.items():
            if now[event_type] != stream:
                body = entries[upto - 1].body
                assert body is not None
                moved = Migration.decode(body)
                assert (moved.from_stream, moved.to_stream) == (stream, now[event_type])
        before = now


@given(events)
def test_an_event_has_one_encoding(event: RecordEvent) -> None:
    assert RecordEvent.decode(event.encode()) == event
    assert canonical_json.encode(event.value()).decode() == event.content


def test_the_keys_are_those_of_the_specification_in_order() -> None:
    keys = ["subject_id", "event_type", "event_time", "origin", "payload", "source", "position"]
    assert list(cbor2.loads(EVENT.encode())) == keys


def test_an_event_counts_once_for_each_of_its_names() -> None:
    folded = fold(RECORD_TALLIES, log(EVENT, replace(EVENT, position=8, event_time=3)))
    for kind, name in ((SUBJECT, "alice"), (TYPE, "login"), (SOURCE, "file"), (PRINCIPAL, CLIENTS[0])):
        found = folded.state(kind + (name if isinstance(name, bytes) else name.encode()))
        assert (found.events, found.first_event_time, found.last_event_time) == (2, 3, 5)


@pytest.mark.parametrize(
    "again",
    [EVENT, replace(EVENT, content='{"ok":false}'), replace(EVENT, event_time=9)],
)
def test_a_second_event_of_the_same_source_and_position_is_a_copy(again: RecordEvent) -> None:
    folded = fold(RECORD_TALLIES, log(EVENT, LogLine(again, client=0)))
    assert folded.state(SOURCE + b"file").events == 1
    assert {fault.kind for fault in folded.faults} == {FaultKind.COPY}


@pytest.mark.parametrize(
    "other",
    [
        replace(EVENT, position=8),
        replace(EVENT, source="other"),
        replace(EVENT, position=b"\x07"),
        replace(EVENT, source=None, position=None),
    ],
)
def test_an_event_of_another_position_is_not_a_copy(other: RecordEvent) -> None:
    folded = fold(RECORD_TALLIES, log(EVENT, other))
    assert folded.state(SUBJECT + b"alice").events == 2
    assert place_key(EVENT) != place_key(other)


def test_a_mirrored_event_counts_once() -> None:
    plain = replace(EVENT, source=None, position=None)
    folded = fold(RECORD_TALLIES, log(plain, LogLine(plain, parent_id=msg_id(1), client=1)))
    assert folded.state(TYPE + b"login").events == 1


@pytest.mark.parametrize(
    "wrong",
    [
        replace(EVENT, subject_id=""),
        replace(EVENT, event_type=""),
        replace(EVENT, origin=""),
        replace(EVENT, source=None),
        replace(EVENT, position=None),
        replace(EVENT, position=b""),
        replace(EVENT, position=bytes(MAX_POSITION_BYTES + 1)),
        replace(EVENT, position=U64_MAX + 1),
        replace(EVENT, event_time=-1),
        replace(EVENT, subject_id="x" * 1_025),
        *(
            replace(EVENT, content=text)
            for text in ("", "{", '{"a": 1}', '{"b":1,"a":2}', "1.0", "01", "NaN", '"\\u0061"')
        ),
        *(
            replace(EVENT, content=text)
            for text in ('{"a":1,"a":2}', "9007199254740993", "1e2", " 1", "1 ", '"\\ud800"')
        ),
    ],
)
def test_an_invalid_event_is_neither_written_nor_read(wrong: RecordEvent) -> None:
    with pytest.raises(ValueError, match=r"record\.event\.v1|position|event_time|subject_id"):
        wrong.encode()


@pytest.mark.parametrize("text", ['{"ok": true}', '{"ok":1.0}', '{"ok":tru}', "\t"])
def test_a_payload_that_is_not_canonical_json_is_malformed(text: str) -> None:
    body = EVENT.encode()
    spoiled = body.replace(b"\x6b" + b'{"ok":true}', bytes([0x60 + len(text)]) + text.encode())
    assert spoiled != body
    with pytest.raises(Malformed) as caught:
        RecordEvent.decode(spoiled)
    assert "payload" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "record", "record/", "record/app", "app/web/x", "record//web", "record/app/", "Record/app/web"]
)
def test_a_stream_outside_the_namespace_is_rejected(name: str) -> None:
    assert stream_flaw(name) is not None


@pytest.mark.parametrize("name", ["record/app/web", "record/infrastructure/changes", "record/app/web/eu"])
def test_a_stream_of_the_namespace_is_accepted(name: str) -> None:
    assert stream_flaw(name) is None


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([MapType("a", WEB), MapType("a", SLOW)], "a is mapped to record/app/web; use a migration to move it"),
        ([MapType("a", WEB), MapType("a", WEB)], "a is already mapped to record/app/web"),
        ([Migration("split", WEB, SLOW, ("a",))], "a is mapped to no stream, not to record/app/web"),
        (
            [MapType("a", SLOW), Migration("rename", WEB, SLOW, ("a",))],
            "a is mapped to record/app/slow, not to record/app/web",
        ),
        ([SHOP, replace(SHOP, name="bank")], f"client key {KEYS[0].hex()[:16]}… belongs to producer shop"),
    ],
)
def test_an_event_that_the_state_does_not_allow_is_refused(events: list[MapType], reason: str) -> None:
    folded = fold(RECORDER_CHANGES, log(*events))
    assert [fault.reason for fault in folded.faults] == [reason]
    assert [fault.kind for fault in folded.faults] == [FaultKind.REFUSED]


def test_an_administrator_key_cannot_be_a_producer_key() -> None:
    folded = fold(RECORDER_CHANGES, log(replace(SHOP, client_ids=(CLIENTS[0],))))
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


@pytest.mark.parametrize(
    "wrong",
    [
        MapType("", WEB),
        MapType("a", "app/web"),
        Migration("merge", WEB, SLOW, ("a",)),
        Migration("split", WEB, WEB, ("a",)),
        Migration("split", WEB, SLOW, ()),
        Migration("split", WEB, SLOW, ("b", "a")),
        Migration("split", "web", SLOW, ("a",)),
        replace(SHOP, name=""),
        replace(SHOP, client_ids=()),
        replace(SHOP, client_ids=KEYS[::-1]),
        replace(SHOP, origins=()),
        replace(SHOP, streams=(CHANGES,)),
        replace(SHOP, streams=("export/web",)),
        replace(PROFILE, every_sec=None),
        replace(PROFILE, streams=(WEB,)),
        replace(PROFILE, streams=(CHANGES, WEB)),
        replace(PROFILE, max_payload_bytes=0),
        replace(PROFILE, every_events=0),
    ],
)
def test_an_event_that_breaks_its_rules_cannot_be_encoded(wrong: MapType) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        wrong.encode()


def test_the_views_return_the_current_settings() -> None:
    moved = Migration("rename", WEB, SLOW, ("a", "b"))
    states = fold(RECORDER_CHANGES, log(MapType("a", WEB), MapType("b", WEB), moved, SHOP, PROFILE)).states
    assert types_of(states) == types_of(states, SLOW) == ("a", "b")
    assert types_of(states, WEB) == ()
    assert producer_of(states, KEYS[0]) == SHOP
    assert producer_of(states, KEYS[1]) is None
    assert producers(states) == (SHOP,)
    assert profile_of(states) == PROFILE
    again = fold(RECORDER_CHANGES, log(SHOP, replace(SHOP, client_ids=KEYS[1:2]))).states
    assert producer_of(again, KEYS[0]) is None  # the key was taken from it


def test_the_profile_id_changes_with_every_field() -> None:
    others = [
        replace(PROFILE, hub_id=h(b"")),
        replace(PROFILE, admin_pk=h(b"")),
        replace(PROFILE, streams=(SLOW, WEB, CHANGES)),
        replace(PROFILE, max_payload_bytes=101),
        replace(PROFILE, retention_sec=2),
        replace(PROFILE, every_sec=301),
        replace(PROFILE, every_events=300),
    ]
    assert len({one.profile_id() for one in (PROFILE, *others)}) == len(others) + 1
