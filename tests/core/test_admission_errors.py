"""The admission table of spec §8.2, the statuses of §10.6, and errors encoded and decoded."""

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import admission, wire_json
from veen.core.admission import (
    ADMISSION,
    ADMISSION_STATUS,
    API_STATUS,
    BY_DETAIL,
    BY_FAULT,
    STATUS,
    AdmissionRow,
    AdmissionStage,
)
from veen.core.envelopes import ErrorEnvelope
from veen.core.errors import Fault, Malformed, Refused, Unavailable, Unverified, VeenError
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_DETAIL_BYTES, MAX_TEXT_BYTES

# Spec §8.2, in its order.
TABLE = [
    ("prefilter", "E.SIZE", "SIZE_PREFILTER"),
    ("prefilter", "E.AUTH", "PREFILTER_REJECT"),
    ("structural", "E.FORMAT", "CBOR_INVALID"),
    ("structural", "E.SIZE", "FIELD_SIZE"),
    ("structural", "E.FORMAT", "VERSION"),
    ("structural", "E.FORMAT", "PROFILE"),
    ("structural", "E.FORMAT", "CT_HASH"),
    ("structural", "E.FORMAT", "ATT_ROOT"),
    ("auth", "E.SIG", "SIG_INVALID"),
    ("auth", "E.CAP", "CAP_MISSING"),
    ("auth", "E.CAP", "CAP_INVALID"),
    ("auth", "E.AUTH", "AUTH_REF"),
    ("auth", "E.TIME", "CAP_TTL"),
    ("auth", "E.RATE", "CAP_RATE"),
    ("commit", "E.SEQ", "PREV_ACK"),
    ("commit", "E.SEQ", "DUPLICATE"),
    ("commit", "E.SEQ", "CLIENT_SEQ"),
    ("commit", "E.TIME", "EPOCH"),
]

each_row = pytest.mark.parametrize("row", ADMISSION, ids=lambda row: row.detail_enum)


# The table


def test_the_rows_are_those_of_the_specification_in_its_order() -> None:
    assert [(row.stage.value, row.code, row.detail_enum) for row in ADMISSION] == TABLE


def test_the_stages_are_the_four_of_the_pipeline_in_its_order() -> None:
    assert [stage.value for stage in AdmissionStage] == ["prefilter", "structural", "auth", "commit"]


def test_rows_are_in_the_order_of_their_stages() -> None:
    order = [list(AdmissionStage).index(row.stage) for row in ADMISSION]
    assert order == sorted(order)


def test_each_detail_enum_names_one_row() -> None:
    assert list(BY_DETAIL.values()) == list(ADMISSION)
    assert [row.detail_enum for row in BY_DETAIL.values()] == list(BY_DETAIL)


@each_row
def test_each_row_says_what_failed_and_what_to_do(row: AdmissionRow) -> None:
    assert row.failure.strip()
    assert row.advice.strip()
    assert not row.failure.endswith(".")
    assert not row.advice.endswith(".")


# Statuses


def test_each_admission_code_has_its_status() -> None:
    assert ADMISSION_STATUS == {
        "E.FORMAT": 400,
        "E.TIME": 400,
        "E.AUTH": 403,
        "E.CAP": 403,
        "E.SIG": 409,
        "E.SEQ": 409,
        "E.SIZE": 413,
        "E.RATE": 429,
    }


def test_each_api_code_has_the_status_of_the_specification() -> None:
    assert API_STATUS == {
        "E.BAD_REQUEST": 400,
        "E.UNAUTHORIZED": 401,
        "E.FORBIDDEN": 403,
        "E.NOT_FOUND": 404,
        "E.CONFLICT": 409,
        "E.LIMIT": 413,
        "E.UNAVAILABLE": 503,
        "E.VERSION": 400,
    }


def test_every_code_of_the_table_has_a_status_and_no_other_has() -> None:
    assert {row.code for row in ADMISSION} == set(ADMISSION_STATUS)


def test_no_code_has_two_statuses() -> None:
    assert set(ADMISSION_STATUS).isdisjoint(API_STATUS)
    assert STATUS == {**ADMISSION_STATUS, **API_STATUS}


@pytest.mark.parametrize("code", STATUS)
def test_every_status_is_that_of_an_error(code: str) -> None:
    assert 400 <= STATUS[code] < 600


# Malformed messages


@pytest.mark.parametrize(
    ("fault", "code", "detail_enum"),
    [
        (Fault.CBOR, "E.FORMAT", "CBOR_INVALID"),
        (Fault.SIZE, "E.SIZE", "FIELD_SIZE"),
        (Fault.VERSION, "E.FORMAT", "VERSION"),
    ],
)
def test_a_malformed_message_is_refused_by_the_row_of_its_fault(fault: Fault, code: str, detail_enum: str) -> None:
    refused = admission.refused_structure(Malformed("msg", "the reason", fault))
    assert (refused.code, refused.stage, refused.detail_enum) == (code, "structural", detail_enum)
    assert refused.message == "the reason"


def test_every_fault_has_a_structural_row() -> None:
    assert set(BY_FAULT) == set(Fault)
    assert {row.stage for row in BY_FAULT.values()} == {AdmissionStage.STRUCTURAL}


def test_faults_are_checked_in_the_order_of_their_rows() -> None:
    assert [BY_FAULT[fault] for fault in sorted(Fault)] == [row for row in ADMISSION if row in BY_FAULT.values()]


def test_a_malformed_object_is_a_fault_of_cbor_unless_it_says_otherwise() -> None:
    assert Malformed("msg", "the reason").fault is Fault.CBOR


# Rejections


@each_row
def test_a_rows_refusal_carries_its_code_stage_and_detail_enum(row: AdmissionRow) -> None:
    refused = row.refused("too bad", retry_after=7, stream_seq=9)
    assert (refused.code, refused.stage, refused.detail_enum) == (row.code, row.stage, row.detail_enum)
    assert (refused.message, refused.retry_after, refused.detail) == ("too bad", 7, {"stream_seq": 9})
    assert str(refused) == f"{row.code}/{row.detail_enum}: too bad"


def test_a_refusal_without_a_detail_enum_shows_none() -> None:
    assert str(Refused("E.NOT_FOUND", "no such label")) == "E.NOT_FOUND: no such label"


def test_two_refusals_do_not_share_their_detail() -> None:
    first, second = Refused("E.LIMIT", "a"), Refused("E.LIMIT", "b")
    first.detail["max_allowed"] = 1
    assert second.detail == {}


def same(one: Refused, other: Refused) -> bool:
    return vars(one) == vars(other) and str(one) == str(other)


@each_row
def test_a_refusal_survives_the_wire_in_cbor_and_in_json(row: AdmissionRow) -> None:
    refused = row.refused("too bad", retry_after=0, field="ttl", max_allowed=5)
    envelope = ErrorEnvelope.of(refused, "request-1")
    assert envelope.request_id == "request-1"
    for received in (
        ErrorEnvelope.decode(envelope.encode()),
        wire_json.decode_canonical(ErrorEnvelope, wire_json.encode(envelope)),
    ):
        assert received == envelope
        assert same(received.refused(), refused)


DETAILS = st.dictionaries(
    st.text(max_size=20).filter(lambda key: key not in ("stage", "detail_enum")),
    st.integers(0, U64_MAX) | st.text(max_size=20),
    max_size=5,
)
TEXTS = st.text(max_size=40)


@given(
    code=TEXTS,
    message=TEXTS,
    stage=st.none() | TEXTS,
    detail_enum=st.none() | TEXTS,
    detail=DETAILS,
    retry_after=st.none() | st.integers(0, U64_MAX),
    request_id=st.none() | TEXTS,
)
def test_any_refusal_survives_the_wire_in_cbor_and_in_json(
    code: str,
    message: str,
    stage: str | None,
    detail_enum: str | None,
    detail: dict[str, int | str],
    retry_after: int | None,
    request_id: str | None,
) -> None:
    refused = Refused(code, message, stage=stage, detail_enum=detail_enum, detail=dict(detail), retry_after=retry_after)
    envelope = ErrorEnvelope.of(refused, request_id)
    assert ErrorEnvelope.decode(envelope.encode()) == envelope
    assert wire_json.decode_canonical(ErrorEnvelope, wire_json.encode(envelope)) == envelope
    assert same(ErrorEnvelope.decode(envelope.encode()).refused(), refused)


def test_stage_and_detail_enum_travel_within_the_detail() -> None:
    envelope = ErrorEnvelope.of(BY_DETAIL["CAP_RATE"].refused("slow down", retry_after=3, label="00"), "r")
    detail = {"label": "00", "stage": "auth", "detail_enum": "CAP_RATE"}
    expected = {1: 1, 2: "E.RATE", 3: "slow down", 4: detail, 5: 3, 6: "r"}
    assert cbor2.loads(envelope.encode()) == expected


def test_what_is_absent_is_omitted() -> None:
    envelope = ErrorEnvelope.of(Refused("E.NOT_FOUND", "no such label"))
    assert envelope.encode() == cbor2.dumps({1: 1, 2: "E.NOT_FOUND", 3: "no such label"})
    assert wire_json.encode(envelope) == b'{"code":"E.NOT_FOUND","message":"no such label","ver":1}'


def test_an_envelope_does_not_change_the_detail_of_the_refusal() -> None:
    refused = BY_DETAIL["DUPLICATE"].refused("twice", stream_seq=4)
    ErrorEnvelope.of(refused)
    assert refused.detail == {"stream_seq": 4}


# Malformed error envelopes


ENVELOPE = {1: 1, 2: "E.RATE", 3: "slow down", 4: {"stage": "auth"}, 5: 3, 6: "r"}
DAMAGE: dict[str, tuple[dict[int, Any], Fault]] = {
    "version 0": ({1: 0}, Fault.VERSION),
    "version 2": ({1: 2}, Fault.VERSION),
    "a code of bytes": ({2: b"E.RATE"}, Fault.CBOR),
    "a code that is null": ({2: None}, Fault.CBOR),
    "a long code": ({2: "E" * (MAX_TEXT_BYTES + 1)}, Fault.SIZE),
    "a long message": ({3: "m" * (MAX_TEXT_BYTES + 1)}, Fault.SIZE),
    "a message too long in bytes only": ({3: "é" * (MAX_TEXT_BYTES // 2 + 1)}, Fault.SIZE),
    "a detail that is null": ({4: None}, Fault.CBOR),
    "a detail that is a list": ({4: ["stage"]}, Fault.CBOR),
    "a detail with an integer key": ({4: {1: "auth"}}, Fault.CBOR),
    "a detail with a negative integer": ({4: {"actual": -1}}, Fault.CBOR),
    "a detail with bytes": ({4: {"label": bytes(32)}}, Fault.CBOR),
    "a detail with true": ({4: {"ok": True}}, Fault.CBOR),
    "a detail with null": ({4: {"field": None}}, Fault.CBOR),
    "a nested detail": ({4: {"inner": {"stage": "auth"}}}, Fault.CBOR),
    "a detail with a float": ({4: {"actual": 0.5}}, Fault.CBOR),
    "a long detail": ({4: {"field": "f" * MAX_DETAIL_BYTES}}, Fault.SIZE),
    "unsorted details": ({4: {"stage": "auth", "field": 1, "a": 1}}, Fault.CBOR),
    "a negative retry_after": ({5: -1}, Fault.CBOR),
    "a retry_after that is null": ({5: None}, Fault.CBOR),
    "a retry_after of text": ({5: "3"}, Fault.CBOR),
    "a request_id of bytes": ({6: b"r"}, Fault.CBOR),
    "a long request_id": ({6: "r" * (MAX_TEXT_BYTES + 1)}, Fault.SIZE),
    "an unknown key": ({7: 0}, Fault.CBOR),
}


def test_the_envelope_used_below_is_valid() -> None:
    assert ErrorEnvelope.decode(cbor2.dumps(ENVELOPE)).encode() == cbor2.dumps(ENVELOPE)


@pytest.mark.parametrize(("change", "fault"), DAMAGE.values(), ids=DAMAGE.keys())
def test_an_envelope_that_breaks_its_table_is_malformed(change: dict[int, Any], fault: Fault) -> None:
    data = cbor2.dumps({**ENVELOPE, **change})
    with pytest.raises(Malformed) as caught:
        ErrorEnvelope.decode(data)
    assert (caught.value.what, caught.value.fault) == ("error", fault)


@pytest.mark.parametrize("key", [1, 2, 3])
def test_an_envelope_that_lacks_a_required_field_is_malformed(key: int) -> None:
    data = cbor2.dumps({other: field for other, field in ENVELOPE.items() if other != key})
    with pytest.raises(Malformed):
        ErrorEnvelope.decode(data)


@pytest.mark.parametrize(
    "text",
    [
        b'{"code":"E.X","message":"m"}',
        b'{"code":"E.X","ver":1}',
        b'{"code":"E.X","detail":null,"message":"m","ver":1}',
        b'{"code":"E.X","detail":{"a":-1},"message":"m","ver":1}',
        b'{"code":"E.X","detail":{"a":true},"message":"m","ver":1}',
        b'{"code":"E.X","detail":{"a":1.5},"message":"m","ver":1}',
        b'{"code":"E.X","message":"m","retry_after":null,"ver":1}',
        b'{"code":"E.X","message":"m","status":400,"ver":1}',
        b'{"code":"E.X","message":"m","ver":2}',
    ],
)
def test_an_envelope_that_breaks_its_table_is_malformed_in_json_too(text: bytes) -> None:
    with pytest.raises(Malformed):
        wire_json.decode(ErrorEnvelope, text)


@pytest.mark.parametrize("size", [MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES])
def test_a_message_as_long_as_the_limit_is_written(size: int) -> None:
    envelope = ErrorEnvelope.of(Refused("E.LIMIT", "m" * size))
    assert ErrorEnvelope.decode(envelope.encode()) == envelope


def test_a_message_above_the_limit_is_not_written() -> None:
    with pytest.raises(ValueError, match="message"):
        ErrorEnvelope.of(Refused("E.LIMIT", "m" * (MAX_TEXT_BYTES + 1))).encode()


# The error tree


@pytest.mark.parametrize("kind", [Malformed, Unverified, Refused, Unavailable])
def test_each_error_is_one_of_ours_and_no_other_kind(kind: type[VeenError]) -> None:
    assert kind.__bases__ == (VeenError,)
    assert not issubclass(kind, ValueError | OSError)


def test_the_tree_has_four_branches() -> None:
    ours = {kind for kind in VeenError.__subclasses__() if kind.__module__.startswith("veen.core")}
    assert ours == {Malformed, Unverified, Refused, Unavailable}
    assert VeenError.__bases__ == (Exception,)


def test_an_error_says_what_and_why() -> None:
    for error in (Malformed("receipt", "too short"), Unverified("receipt", "too short")):
        assert str(error) == "receipt: too short"
        assert (error.what, error.reason) == ("receipt", "too short")


@pytest.mark.parametrize("entry", [-1, True, None, b"bytes", [1], {"a": 1}])
def test_invalid_details_are_not_encoded(entry: object) -> None:
    envelope = ErrorEnvelope("E.FORMAT", "message", {"field": entry})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="detail"):
        envelope.encode()
