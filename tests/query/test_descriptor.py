"""A descriptor has one normal form, and a digest one text. 001, query-api-spec §3–5."""

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.query_fixture import WEB, asking
from veen.core import Malformed, canonical_json
from veen.pipeline.engine import EvidencePolicy
from veen.query import descriptor, digest
from veen.query.descriptor import QueryDescriptor, normalise
from veen.query.digest import Position, ResultDigest
from veen.query.query_errors import QueryFault

FIELDS = ("subject_id", "principal_id", "event_time", "origin", "event_type", "payload", "payload.a.b", "receipt_id")
METRICS = ("count", "min(event_time)", "max(payload.n)", "sum(payload.n)", "distinct(origin)")
names = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=8)
moments = st.integers(0, 4_000_000_000_000)


@st.composite
def queries(draw: st.DrawFn) -> dict[str, Any]:
    """Queries as clients write them, in any of the equivalent forms."""
    window = sorted(draw(st.lists(moments, min_size=2, max_size=2)))
    time: dict[str, Any] = {}
    if draw(st.booleans()):
        time["from"] = draw(st.sampled_from([descriptor.time_text(window[0]), None]))
    if draw(st.booleans()):
        time["to"] = descriptor.time_text(window[1])
    kept = {"time": time, "subject_id": draw(st.none() | names), "event_type": draw(st.none() | st.lists(names))}
    made: dict[str, Any] = {
        "scope": draw(st.lists(names, min_size=1)),
        "filter": {name: value for name, value in kept.items() if draw(st.booleans())},
        "projection": draw(st.lists(st.sampled_from(FIELDS), min_size=1, unique=True) | st.just(["*"])),
        "evidence": draw(
            st.sampled_from([{"mode": "none"}, {"mode": "full", "sample_rate": None}])
            | st.floats(0.001, 1).map(lambda rate: {"mode": "spot", "sample_rate": rate})
        ),
    }
    if draw(st.booleans()):
        made["version"] = 1
    if draw(st.booleans()):
        made["meta"] = draw(st.dictionaries(names, st.none() | names | st.integers(-(2**53) + 1, 2**53 - 1)))
    if draw(st.booleans()):
        groups = draw(st.lists(st.sampled_from(FIELDS), unique=True))
        made["aggregate"] = {
            "group_by": groups,
            "metrics": draw(st.lists(st.sampled_from(METRICS), min_size=1, unique=True)),
        }
    return made


@given(query=queries())
def test_the_normal_form_of_a_normal_form_is_itself(query: dict[str, Any]) -> None:
    made = normalise(query, "q-1")
    assert normalise(made.plain(), "other") == made
    assert descriptor.decode(made.text()) == made
    assert canonical_json.encode(json.loads(made.text())).decode() == made.text()


@given(query=queries(), data=st.data())
def test_the_order_of_sets_does_not_matter(query: dict[str, Any], data: st.DataObject) -> None:
    shuffled = {**query, "scope": data.draw(st.permutations(query["scope"] + query["scope"][:1]))}
    names = data.draw(st.permutations(list(shuffled)))
    assert normalise({name: shuffled[name] for name in names}, "q-1") == normalise(query, "q-1")


def test_result_ids_depend_on_the_query_only() -> None:
    first, second = normalise(asking(), "q-1"), normalise(asking(), "q-2")
    assert first.result_id == normalise(asking(), "q-1").result_id
    assert len({first.result_id, second.result_id, normalise(asking(projection=["origin"]), "q-1").result_id}) == 3


def test_the_normal_form_of_an_example_is_this_text() -> None:
    query: Any = {
        "scope": ["b", "a", "b"],
        "filter": {"event_type": ["y", "x"], "time": {"from": "2025-11-19T03:20:00Z"}},
        "projection": ["payload.*", "event_time"],
        "evidence": {"mode": "spot", "sample_rate": 0.10},
    }
    assert normalise(query, "q-1").text() == (
        '{"evidence":{"mode":"spot","sample_rate":0.1},"filter":{"event_type":["x","y"],"subject_id":null,'
        '"time":{"from":"2025-11-19T03:20:00.000Z","to":null}},"projection":["payload","event_time"],'
        '"query_id":"q-1","scope":["a","b"],"version":1}'
    )


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "nothing", normalise(asking(), "q-1").text().replace(",", ", ", 1)],
    ids=["empty", "a list", "no JSON", "spaced"],
)
def test_a_recorded_descriptor_must_be_in_normal_form(text: str) -> None:
    with pytest.raises(Malformed):
        descriptor.decode(text)


def test_a_recorded_descriptor_must_not_omit_defaults() -> None:
    short = canonical_json.encode({**asking(), "query_id": "q-1", "version": 1}).decode()
    assert normalise(json.loads(short), "").query_id == "q-1"
    with pytest.raises(Malformed, match="normal form"):
        descriptor.decode(short)


@pytest.mark.parametrize("meta", [{"n": float("inf")}, {"s": "\ud800"}, {"n": 2**60}], ids=["inf", "half", "large"])
def test_meta_without_canonical_text_is_rejected(meta: dict[str, Any]) -> None:
    with pytest.raises(QueryFault, match="meta"):
        normalise(asking(meta=meta), "q-1")


def test_a_descriptor_too_large_to_record_is_rejected() -> None:
    with pytest.raises(QueryFault, match="more than"):
        normalise(asking(meta={"reason": "x" * descriptor.MAX_DESCRIPTOR_BYTES}), "q-1")


def test_filter_times_are_rounded_up_to_whole_seconds() -> None:
    window = {"from": "1970-01-01T00:00:01.001Z", "to": "1970-01-01T00:00:03Z"}
    query = normalise(asking(filter={"time": window}), "q-1").query()
    assert (query.time_from, query.time_to) == (2, 3)


@given(moment=moments)
def test_times_survive_encoding(moment: int) -> None:
    text = descriptor.time_text(moment)
    assert len(text) == len("2025-11-19T03:20:00.000Z")
    assert descriptor.parse_time(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2025-11-19",
        "2025-11-19T03:20:00",
        "2025-11-19 03:20:00Z",
        "2025-11-19T03:20:00.0000Z",
        "1969-12-31T23:59:59Z",
        "2025-13-01T00:00:00Z",
        "2025-11-19T24:00:00Z",
        "\u0662\u0660\u0662\u0665-11-19T03:20:00Z",
        "2025-11-19T03:20:00.Z",
    ],
)
def test_another_time_format_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        descriptor.parse_time(text)


# Digests

DIGEST = ResultDigest(
    "q-1",
    "r-1",
    3,
    EvidencePolicy("spot", 0.1),
    "a" * 64,
    "b" * 64,
    "2025-11-19T03:20:00.000Z",
    "c" * 64,
    (Position(WEB, "d" * 64, 7),),
    "profile",
    "e" * 64 + ":1",
)


def test_a_digest_survives_encoding_and_ignores_unknown_fields() -> None:
    assert ResultDigest.decode(DIGEST.text()) == DIGEST
    more: Any = {**DIGEST.plain(), "later": True}
    assert ResultDigest.of(more) == DIGEST


@pytest.mark.parametrize("name", sorted(set(DIGEST.plain()) - {"profile_id", "request_receipt_id"}))
@pytest.mark.parametrize("wrong", [None, {}])
def test_a_digest_without_a_field_is_malformed(name: str, wrong: Any) -> None:
    for value in ({key: one for key, one in DIGEST.plain().items() if key != name}, {**DIGEST.plain(), name: wrong}):
        if name == "basis" and wrong == {} and name in value:
            continue  # an empty list is valid here
        with pytest.raises(Malformed):
            ResultDigest.of(value)


def test_digests_are_compared_by_the_fields_shared_between_zones() -> None:
    from dataclasses import replace

    same = replace(DIGEST, executed_at="2026-01-01T00:00:00.000Z", hub_id="f" * 64, profile_id=None, basis=())
    assert DIGEST.differences(same) == ()
    changes: dict[str, Any] = {
        "query_id": "q-2",
        "row_count": 4,
        "rows_hash": "0" * 64,
        "evidence_hash": "0" * 64,
        "evidence_policy": EvidencePolicy("full"),
    }
    for name, value in changes.items():
        assert DIGEST.differences(replace(DIGEST, **{name: value})) == (name,)


def test_an_integer_beyond_double_precision_is_a_string() -> None:
    row = digest.exact_json({"a": 2**53 - 1, "b": 2**53, "c": [-(2**63)], "d": True, "e": 1.5, "f": None})
    assert row == {"a": 2**53 - 1, "b": str(2**53), "c": [str(-(2**63))], "d": True, "e": 1.5, "f": None}


def test_the_hash_of_rows_is_that_of_the_array() -> None:
    rows: list[Any] = [{"b": 1, "a": "é"}, {"a": None}]
    text = '[{"a":"é","b":1},{"a":null}]'
    assert digest.rows_hash(map(digest.row_text, rows)) == sha256(text.encode()).hexdigest()
    assert digest.rows_hash([]) == sha256(b"[]").hexdigest()


def test_names_beyond_the_first_plane_are_sorted_as_in_rfc_8785() -> None:
    """By UTF-16 units, not by UTF-8 bytes: here §3.1 and RFC 8785 differ."""
    assert canonical_json.encode({"\ufb00": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb00":1}'.encode()
    assert QueryDescriptor is type(normalise(asking(), "q-1"))
