"""Canonical JSON: each value has one text, and no other text decodes."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import Malformed, canonical_json
from veen.core.limits import MAX_EXACT_INT, MAX_JSON_DEPTH

exact = st.integers(-MAX_EXACT_INT, MAX_EXACT_INT)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.one_of(st.none(), st.booleans(), exact, st.floats(allow_nan=False, allow_infinity=False), texts)
values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3))
)


@given(values)
def test_a_value_comes_back_from_its_text(value: canonical_json.Plain) -> None:
    text = canonical_json.encode(value)
    assert canonical_json.decode(text, "x") == value
    assert canonical_json.encode(canonical_json.decode(text, "x")) == text


@given(values)
def test_the_same_value_spelled_otherwise_is_parsed_and_not_decoded(value: canonical_json.Plain) -> None:
    text = canonical_json.encode(value)
    other = json.dumps(canonical_json.parse(text, "x"), indent=1).encode() + b"\n"
    assert canonical_json.encode(canonical_json.parse(other, "x")) == text
    with pytest.raises(Malformed, match="canonical"):
        canonical_json.decode(other, "x")


# RFC 8785, appendix B.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
    ],
)
def test_a_number_is_written_as_the_rfc_has_it(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json.encode(number) == text.encode()
    assert canonical_json.decode(text.encode(), "x") == number


def test_names_are_sorted_by_their_utf_16_code_units() -> None:
    assert canonical_json.encode({"\U00010000": 1, "\uffff": 2, "a": 3}) == '{"a":3,"\U00010000":1,"\uffff":2}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"\xff",
        b"1 2",
        b"1e400",
        b"1" + b"0" * 400,
        b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1),
        b"[" * 100_000,
    ],
)
def test_text_that_is_not_json_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        canonical_json.parse(text, "x")


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\u0061"', b'{"b":1,"a":1}', b"-0", b"1.0", b"1E2"])
def test_valid_json_may_not_be_canonical(text: bytes) -> None:
    with pytest.raises(Malformed):
        canonical_json.decode(text, "x")


def _nested(depth: int) -> canonical_json.Plain:
    value: canonical_json.Plain = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nesting_is_bounded_alike_both_ways() -> None:
    deepest = canonical_json.encode(_nested(MAX_JSON_DEPTH))
    assert canonical_json.decode(deepest, "x") == _nested(MAX_JSON_DEPTH)
    with pytest.raises(ValueError, match="deeper"):
        canonical_json.encode(_nested(MAX_JSON_DEPTH + 1))
    with pytest.raises(Malformed, match="deeper"):
        canonical_json.decode(b"[" + deepest + b"]", "x")
    many = canonical_json.encode(["[[["] * MAX_JSON_DEPTH)
    assert canonical_json.decode(many, "x") == ["[[["] * MAX_JSON_DEPTH  # brackets in strings are not nesting


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, -(2**53), "\ud800", {1: 2}, {"\ud800": 1}, b"x"])
def test_a_value_without_canonical_text_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        canonical_json.encode(value)  # type: ignore[arg-type]


def test_a_large_integer_is_rounded_to_a_double_unless_exact() -> None:
    assert canonical_json.parse(b"9007199254740993", "x") == 9007199254740992.0
    assert canonical_json.parse(b"9007199254740993", "x", exact=True) == 9007199254740993
    with pytest.raises(Malformed):
        canonical_json.decode(b"9007199254740993", "x")
