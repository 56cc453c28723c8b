"""LCLASS0 and META0+: the class of a label and its hints; the registry of schemas and what a stream uses."""

from collections.abc import Mapping

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import CLIENTS, START, LogLine, log, logs, msg_id
from veen.core import naming
from veen.core.hashing import U64_MAX, h
from veen.overlays import AnyOverlay, At, FaultKind, FoldEntry, check_laws, fold
from veen.overlays.crdt import Write
from veen.overlays.kv import Delete
from veen.overlays.stream_catalog import (
    LABEL_CLASSES,
    SCHEMAS,
    LabelClass,
    LabelPolicy,
    RateClass,
    SchemaDescriptor,
    SchemaUse,
    by_name,
    class_of,
    describe,
    descriptor,
    policy,
    uses,
)

A, B = h(b"a"), h(b"b")
classes = st.sampled_from(["user", "wallet", "log", "metric", "admin", "control", "bulk", "else", ""])
classified = st.builds(
    LabelClass,
    st.sampled_from([A, B]),
    classes,
    st.one_of(st.none(), st.sampled_from(["low", "high"])),
    st.one_of(st.none(), st.integers(0, U64_MAX)),
)
described = st.builds(
    SchemaDescriptor,
    st.sampled_from([A, B]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["v1", "v2"]),
    st.one_of(st.none(), st.just("https://example.org/a")),
    st.one_of(st.none(), st.just(CLIENTS[0])),
    st.integers(0, 3),
)


@given(logs(classified))
def test_label_classes_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(LABEL_CLASSES, entries)


@given(logs(described))
def test_a_registry_of_schemas_keeps_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(SCHEMAS, entries)


@given(logs(classified))
def test_the_last_classification_of_a_label_counts(entries: list[FoldEntry]) -> None:
    folded = fold(LABEL_CLASSES, entries)
    wrong = {fault.stream_seq for fault in folded.faults}
    last: dict[bytes, LabelClass] = {}
    for entry in entries:
        if entry.stream_seq not in wrong and entry.body is not None:
            said = LabelClass.decode(entry.body)
            last[said.label] = said
    assert {label: class_of(folded.states, label) for label in (A, B)} == {A: last.get(A), B: last.get(B)}


@given(logs(described))
def test_the_descriptor_of_a_schema_is_the_one_with_the_greatest_time_and_place(entries: list[FoldEntry]) -> None:
    folded = fold(SCHEMAS, entries)
    unread = {fault.stream_seq for fault in folded.faults if fault.kind != FaultKind.REFUSED}
    best: dict[bytes, tuple[int, int, SchemaDescriptor]] = {}
    for entry in entries:
        if entry.stream_seq not in unread and entry.body is not None:
            said = SchemaDescriptor.decode(entry.body)
            one = (said.ts, entry.stream_seq, said)
            best[said.schema_id] = max(best.get(said.schema_id, one), one, key=lambda found: found[:2])
    expected = {schema: found[2] for schema, found in best.items()}
    assert {schema: descriptor(folded.states, schema) for schema in expected} == expected
    assert set(folded.states) == set(expected)


def test_bodies_have_the_keys_of_the_specification() -> None:
    assert cbor2.loads(LabelClass(A, "user", "low", 5).encode()) == {
        "label": A,
        "class": "user",
        "sensitivity": "low",
        "retention_hint": 5,
    }
    assert list(cbor2.loads(LabelClass(A, "user").encode())) == ["label", "class"]
    assert list(cbor2.loads(SchemaDescriptor(A, "n", "v1", "url", B, 9).encode())) == [
        "schema_id", "name", "version", "doc_url", "owner", "ts",
    ]  # fmt: skip
    assert h(b"veen.label.class.v1") == LabelClass.SCHEMA
    assert h(b"veen.meta.schema.v1") == SchemaDescriptor.SCHEMA


def test_an_unclassified_label_has_no_class() -> None:
    assert class_of(fold(LABEL_CLASSES, log(LabelClass(A, "user"))).states, B) is None


def test_a_mirrored_copy_does_not_restore_an_old_class() -> None:
    folded = fold(
        LABEL_CLASSES, log(LabelClass(A, "log"), LabelClass(A, "user"), LogLine(LabelClass(A, "log"), msg_id(1)))
    )
    assert class_of(folded.states, A) == LabelClass(A, "user")
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY]


def test_a_class_is_shown_with_its_place_and_writer() -> None:
    states = fold(LABEL_CLASSES, log(LogLine(LabelClass(A, "bulk", None, 60), client=1))).states
    assert LABEL_CLASSES.plain(A, states[A]) == {
        "label": A,
        "class": "bulk",
        "sensitivity": None,
        "retention_hint": 60,
        "stream_seq": 1,
        "hub_ts": START + 1,
        "client_id": CLIENTS[1],
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, LabelPolicy(None, RateClass.DEFAULT, None)),
        (LabelClass(A, "user"), LabelPolicy(256, RateClass.DEFAULT, None)),
        (LabelClass(A, "user", "low"), LabelPolicy(256, RateClass.DEFAULT, None)),
        (LabelClass(A, "user", "high"), LabelPolicy(1024, RateClass.DEFAULT, None)),
        (LabelClass(A, "wallet", "high", 7), LabelPolicy(1024, RateClass.DEFAULT, 7)),
        (LabelClass(A, "log", "high"), LabelPolicy(0, RateClass.DEFAULT, None)),
        (LabelClass(A, "metric"), LabelPolicy(0, RateClass.DEFAULT, None)),
        (LabelClass(A, "admin"), LabelPolicy(None, RateClass.HIGHER, None)),
        (LabelClass(A, "control", None, 0), LabelPolicy(None, RateClass.HIGHER, 0)),
        (LabelClass(A, "bulk"), LabelPolicy(None, RateClass.TIGHTER, None)),
        (LabelClass(A, "User"), LabelPolicy(None, RateClass.DEFAULT, None)),
        (LabelClass(A, "something else", "high", 9), LabelPolicy(None, RateClass.DEFAULT, 9)),
    ],
)
def test_the_hints_of_a_class_are_those_of_the_specification(said: LabelClass | None, expected: LabelPolicy) -> None:
    assert policy(said) == expected


@given(classified)
def test_hints_never_go_beyond_what_the_specification_allows_a_class(said: LabelClass) -> None:
    hints = policy(said)
    allowed: Mapping[str, set[int | None]] = {"user": {256, 1024}, "wallet": {256, 1024}, "log": {0}, "metric": {0}}
    assert hints.pad_block in allowed.get(said.class_, {None})
    assert hints.retention_sec == said.retention_hint


def test_a_schema_is_registered_under_the_hash_of_its_name() -> None:
    said = describe({}, "kv.delete.v1", "v1", ts=5)
    assert said == SchemaDescriptor(Delete.SCHEMA, "kv.delete.v1", "v1", None, None, 5)
    assert said.fits()


def test_an_id_not_derived_from_its_name_is_accepted_and_reported() -> None:
    states = fold(SCHEMAS, log(SchemaDescriptor(A, "b", "v1", ts=1))).states
    assert descriptor(states, A) is not None
    assert SCHEMAS.plain(A, states[A])["name_fits"] is False


def test_the_names_of_operation_profiles_fit_with_their_prefix() -> None:
    assert SchemaDescriptor(h(b"veen/schema:access.grant.v1"), "access.grant.v1", "v1").fits()
    assert not SchemaDescriptor(h(b"veen/schema:access.grant.v1"), "access.revoke.v1", "v1").fits()
    assert not SchemaDescriptor(h(b"schema:access.grant.v1"), "access.grant.v1", "v1").fits()


def test_a_registration_with_an_earlier_time_is_refused_with_the_place_of_the_later_one() -> None:
    folded = fold(SCHEMAS, log(SchemaDescriptor(A, "a", "v2", ts=9), SchemaDescriptor(A, "a", "v1", ts=8)))
    said = descriptor(folded.states, A)
    assert said is not None
    assert said.version == "v2"
    assert [(fault.kind, fault.reason) for fault in folded.faults] == [(FaultKind.REFUSED, "entry 1 has a later ts")]


def test_the_next_registration_counts_even_if_the_clock_is_behind() -> None:
    folded = fold(SCHEMAS, log(SchemaDescriptor(naming.schema_id("a"), "a", "v1", ts=1 << 60)))
    again = describe(folded.states, "a", "v2", ts=5)
    assert again.ts == 1 << 60
    folded.add(log(again, start=2)[0])
    assert descriptor(folded.states, naming.schema_id("a")) == again


def test_two_ids_that_compete_for_a_name_are_both_found() -> None:
    states = fold(
        SCHEMAS,
        log(SchemaDescriptor(A, "n", "v1"), SchemaDescriptor(B, "n", "v1"), SchemaDescriptor(h(b"c"), "m", "v1")),
    ).states
    assert {said.schema_id for said in by_name(states, "n")} == {A, B}
    assert list(by_name(states, "x")) == []


def test_a_schema_that_is_renamed_is_no_longer_found_under_its_old_name() -> None:
    states = fold(SCHEMAS, log(SchemaDescriptor(A, "old", "v1"), SchemaDescriptor(A, "new", "v1"))).states
    assert list(by_name(states, "old")) == []


def test_a_registry_may_be_empty() -> None:
    assert descriptor({}, A) is None
    assert list(by_name({}, "n")) == []


def test_the_schemas_a_stream_uses_are_counted_with_their_first_and_last_place() -> None:
    entries = log(
        Write(b"k", 0, b"v"),
        LogLine(Write(b"k", 0, b"v"), sealed=True),
        Delete(b"k", 0),
        LogLine(Write(b"k", 0, b"v"), spoil=b"\0"),
        Write(b"k", 0, b"w"),
    )
    assert uses(entries) == {
        Write.SCHEMA: SchemaUse(3, At(0, 1), At(0, 5)),
        None: SchemaUse(1, At(0, 2), At(0, 2)),
        Delete.SCHEMA: SchemaUse(1, At(0, 3), At(0, 3)),
    }
    assert uses([]) == {}
    assert all(uses(entries[place:], uses(entries[:place])) == uses(entries) for place in range(6))


def test_entries_of_other_schemas_are_ignored() -> None:
    overlays: tuple[AnyOverlay, ...] = (LABEL_CLASSES, SCHEMAS)
    for overlay in overlays:
        folded = fold(overlay, log(Write(b"k", 0, b"v")))
        assert (folded.states, folded.faults) == ({}, [])
