"""Deterministic CBOR without a field table: heads and untyped values. Spec §3.1, RFC 8949 §4.2.1 and appendix A."""

import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.wire_strategies import HEAD_EDGES, mutate, uints
from veen.core import cbor
from veen.core.cbor import Value, heads
from veen.core.errors import Fault, Malformed
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_VALUE_DEPTH

# RFC 8949, appendix A: the examples that our subset has.
TAKEN: dict[str, Any] = {
    "00": 0,
    "01": 1,
    "0a": 10,
    "17": 23,
    "1818": 24,
    "1819": 25,
    "1864": 100,
    "1903e8": 1000,
    "1a000f4240": 1000000,
    "1b000000e8d4a51000": 1000000000000,
    "1bffffffffffffffff": 18446744073709551615,
    "3bffffffffffffffff": -18446744073709551616,
    "20": -1,
    "29": -10,
    "3863": -100,
    "3903e7": -1000,
    "f4": False,
    "f5": True,
    "f6": None,
    "40": b"",
    "4401020304": b"\x01\x02\x03\x04",
    "60": "",
    "6161": "a",
    "6449455446": "IETF",
    "62225c": '"\\',
    "62c3bc": "\u00fc",
    "63e6b0b4": "\u6c34",
    "64f0908591": "\U00010151",
    "80": (),
    "83010203": (1, 2, 3),
    "8301820203820405": (1, (2, 3), (4, 5)),
    "98190102030405060708090a0b0c0d0e0f101112131415161718181819": tuple(range(1, 26)),
    "a0": {},
    "a201020304": {1: 2, 3: 4},
    "a26161016162820203": {"a": 1, "b": (2, 3)},
    "826161a161626163": ("a", {"b": "c"}),
    "a56161614161626142616361436164614461656145": {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"},
}

# The other examples of appendix A: bignums, floats, simple values, tags, indefinite lengths.
NOT_TAKEN: dict[str, str] = {
    "c249010000000000000000": "18446744073709551616",
    "c349010000000000000000": "-18446744073709551617",
    "f90000": "0.0",
    "f98000": "-0.0",
    "f93c00": "1.0",
    "fb3ff199999999999a": "1.1",
    "f93e00": "1.5",
    "f97bff": "65504.0",
    "fa47c35000": "100000.0",
    "fa7f7fffff": "3.4028234663852886e+38",
    "fb7e37e43c8800759c": "1.0e+300",
    "f90001": "5.960464477539063e-8",
    "f90400": "0.00006103515625",
    "f9c400": "-4.0",
    "fbc010666666666666": "-4.1",
    "f97c00": "Infinity",
    "f97e00": "NaN",
    "f9fc00": "-Infinity",
    "fa7f800000": "Infinity",
    "fa7fc00000": "NaN",
    "faff800000": "-Infinity",
    "fb7ff0000000000000": "Infinity",
    "fb7ff8000000000000": "NaN",
    "fbfff0000000000000": "-Infinity",
    "f7": "undefined",
    "f0": "simple(16)",
    "f8ff": "simple(255)",
    "c074323031332d30332d32315432303a30343a30305a": '0("2013-03-21T20:04:00Z")',
    "c11a514b67b0": "1(1363896240)",
    "c1fb41d452d9ec200000": "1(1363896240.5)",
    "d74401020304": "23(h'01020304')",
    "d818456449455446": "24(h'6449455446')",
    "d82076687474703a2f2f7777772e6578616d706c652e636f6d": '32("http://www.example.com")',
    "5f42010243030405ff": "(_ h'0102', h'030405')",
    "7f657374726561646d696e67ff": '(_ "strea", "ming")',
    "9fff": "[_ ]",
    "9f018202039f0405ffff": "[_ 1, [2, 3], [_ 4, 5]]",
    "9f01820203820405ff": "[_ 1, [2, 3], [4, 5]]",
    "83018202039f0405ff": "[1, [2, 3], [_ 4, 5]]",
    "83019f0203ff820405": "[1, [_ 2, 3], [4, 5]]",
    "9f0102030405060708090a0b0c0d0e0f101112131415161718181819ff": "[_ 1, 2, ..., 25]",
    "bf61610161629f0203ffff": '{_ "a": 1, "b": [_ 2, 3]}',
    "826161bf61626163ff": '["a", {_ "b": "c"}]',
    "bf6346756ef563416d7421ff": '{_ "Fun": true, "Amt": -2}',
}

EXAMPLES_IN_APPENDIX_A = 81


def assert_rejected(data: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        cbor.decode(data)
    assert caught.value.fault is Fault.CBOR
    assert caught.value.what == "value"
    return caught.value


def with_peak(decode: Callable[[bytes], Malformed], data: bytes) -> tuple[Malformed, int]:
    """The result, and the peak of allocated memory."""
    tracemalloc.start()
    try:
        return decode(data), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Heads


@pytest.mark.parametrize("argument", HEAD_EDGES)
@pytest.mark.parametrize("major", range(7))
def test_a_head_is_as_short_as_it_can_be_and_comes_back(major: int, argument: int) -> None:
    head = heads.write_head(major, argument)
    further = next(width for width in (0, 1, 2, 4, 8) if argument < (24 if width == 0 else 1 << 8 * width))
    assert len(head) == 1 + further
    assert heads.read_head(head, 0) == (major, argument, len(head))


@pytest.mark.parametrize("argument", [1 << 64, 1 << 100])
def test_an_argument_above_64_bits_has_no_head(argument: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        heads.write_head(heads.UINT, argument)


@pytest.mark.parametrize("major", range(7))
@pytest.mark.parametrize(("info", "first"), [(24, 24), (25, 1 << 8), (26, 1 << 16), (27, 1 << 32)])
def test_a_head_that_is_not_minimal_is_rejected_up_to_the_last_such_argument(major: int, info: int, first: int) -> None:
    initial, width = bytes((major << 5 | info,)), 1 << info - 24
    assert heads.read_head(initial + first.to_bytes(width, "big"), 0)[1] == first
    for argument in (0, 1, first - 1):
        with pytest.raises(Malformed, match="is not minimal"):
            heads.read_head(initial + argument.to_bytes(width, "big"), 0)


@pytest.mark.parametrize("major", range(8))
@pytest.mark.parametrize("info", [28, 29, 30, 31])
def test_a_reserved_or_indefinite_head_is_refused(major: int, info: int) -> None:
    for rest in (b"", b"\xff", bytes(16)):
        assert_rejected(bytes((major << 5 | info,)) + rest)


@pytest.mark.parametrize("argument", [edge for edge in HEAD_EDGES if edge >= 24])
def test_a_head_cut_short_is_refused(argument: int) -> None:
    head = heads.write_head(heads.UINT, argument)
    for end in range(len(head)):
        assert_rejected(head[:end])


@pytest.mark.parametrize("initial", [0x5B, 0x7B, 0x9B, 0xBB, 0x5A, 0x7A, 0x9A, 0xBA])
@pytest.mark.parametrize("rest", [0, 100])
def test_a_length_beyond_the_data_is_refused_before_anything_is_allocated(initial: int, rest: int) -> None:
    width = 8 if initial & 1 else 4
    for claim in (b"\xff" * width, b"\x80" + bytes(width - 1), b"\x7f" + b"\xff" * (width - 1)):
        error, peak = with_peak(assert_rejected, bytes((initial,)) + claim + bytes(rest))
        assert f"{rest} bytes are left" in error.reason or f"{rest} are left" in error.reason
        assert peak < 100_000


@pytest.mark.parametrize("major", [heads.BSTR, heads.TEXT])
@pytest.mark.parametrize("length", [1, 23, 24, 255, 256])
def test_a_string_one_byte_short_is_refused(major: int, length: int) -> None:
    data = heads.write_head(major, length) + b"a" * length
    assert cbor.encode(cbor.decode(data)) == data
    assert_rejected(data[:-1])


@pytest.mark.parametrize("major", [heads.ARRAY, heads.MAP])
def test_a_count_one_above_what_is_there_is_refused(major: int) -> None:
    for count in (1, 5, 23, 24, 255, 256):
        entries = (b"\x00" if major == heads.ARRAY else heads.write_head(heads.UINT, i) + b"\x00" for i in range(count))
        body = b"".join(entries)
        assert cbor.decode(heads.write_head(major, count) + body)
        assert_rejected(heads.write_head(major, count + 1) + body)
        assert_rejected(heads.write_head(major, count - 1) + body)


# Values


@pytest.mark.parametrize(("encoded", "value"), TAKEN.items())
def test_an_example_of_the_rfc_in_our_subset_is_read_and_written(encoded: str, value: Any) -> None:
    assert cbor.decode(bytes.fromhex(encoded)) == value
    assert type(cbor.decode(bytes.fromhex(encoded))) is type(value)
    assert cbor.encode(value).hex() == encoded


@pytest.mark.parametrize("encoded", NOT_TAKEN, ids=NOT_TAKEN.get)
def test_an_example_of_the_rfc_outside_our_subset_is_refused(encoded: str) -> None:
    cbor2.loads(bytes.fromhex(encoded))  # valid CBOR, but outside our subset
    assert_rejected(bytes.fromhex(encoded))


def test_the_two_tables_are_the_whole_appendix() -> None:
    assert len(TAKEN) + len(NOT_TAKEN) == EXAMPLES_IN_APPENDIX_A


def test_the_error_uses_the_given_name() -> None:
    with pytest.raises(Malformed) as caught:
        cbor.decode(b"", "rpc arguments")
    assert caught.value.what == "rpc arguments"


@pytest.mark.parametrize("edge", HEAD_EDGES)
def test_integers_at_the_edges_come_back_and_agree_with_another_library(edge: int) -> None:
    for number in (edge, -1 - edge):
        assert cbor.encode(number) == cbor2.dumps(number)
        assert cbor.decode(cbor2.dumps(number)) == number


@pytest.mark.parametrize("number", [1 << 64, -(1 << 64) - 1, 1 << 200])
def test_an_integer_above_64_bits_is_not_written(number: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        cbor.encode(number)


def nested(depth: int, empty: bytes, around: bytes) -> bytes:
    return around * (depth - 1) + empty


@pytest.mark.parametrize(("empty", "around"), [(b"\x80", b"\x81"), (b"\xa0", b"\xa1\x00"), (b"\xa0", b"\x81")])
def test_a_value_is_nested_no_deeper_than_the_limit(empty: bytes, around: bytes) -> None:
    data = nested(MAX_VALUE_DEPTH, empty, around)
    assert cbor.encode(cbor.decode(data)) == data
    assert "too deep" in assert_rejected(nested(MAX_VALUE_DEPTH + 1, empty, around)).reason
    assert "too deep" in assert_rejected(nested(100_000, empty, around)).reason


@pytest.mark.parametrize("wrap", [lambda value: (value,), lambda value: {1: value}], ids=["array", "map"])
def test_a_value_nested_deeper_than_the_limit_is_not_written(wrap: Callable[[Value], Value]) -> None:
    value: Value = ()
    for _ in range(MAX_VALUE_DEPTH - 1):
        value = wrap(value)
    assert cbor.decode(cbor.encode(value)) == value
    with pytest.raises(ValueError, match="deeper"):
        cbor.encode(wrap(value))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"a\x80",
    ],
    ids=bytes.hex,
)
def test_text_that_is_not_utf_8_is_refused(raw: bytes) -> None:
    text = heads.write_head(heads.TEXT, len(raw)) + raw
    assert "UTF-8" in assert_rejected(text).reason
    assert_rejected(b"\x81" + text)
    assert_rejected(b"\xa1" + text + b"\x00")


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"], ids=ascii)
def test_half_a_surrogate_pair_is_not_written(text: str) -> None:
    for value in (text, (text,), {text: 1}):
        with pytest.raises(ValueError, match="surrogates"):
            cbor.encode(value)


# In the order of their encoded bytes: a longer head sorts after a shorter one, and text after every number.
KEYS: list[int | str] = [*HEAD_EDGES, "", "b", "aa", "ab", "a" * 23, "a" * 24, "a" * 256]


def entry(key: int | str) -> bytes:
    return cbor.encode(key) + b"\x00"


def test_map_keys_are_written_in_the_order_of_their_bytes() -> None:
    shuffled = Random(1).sample(KEYS, len(KEYS))
    data = cbor.encode(dict.fromkeys(shuffled, 0))
    assert data == heads.write_head(heads.MAP, len(KEYS)) + b"".join(map(entry, KEYS))
    assert cbor.decode(data) == dict.fromkeys(KEYS, 0)


@pytest.mark.parametrize(("low", "high"), list(pairwise(KEYS)), ids=ascii)
def test_map_keys_out_of_order_or_twice_are_refused(low: int | str, high: int | str) -> None:
    assert cbor.decode(b"\xa2" + entry(low) + entry(high)) == {low: 0, high: 0}
    assert_rejected(b"\xa2" + entry(high) + entry(low))
    assert_rejected(b"\xa2" + entry(low) + entry(low))
    assert_rejected(b"\xa2" + entry(low) + cbor.encode(low) + b"\x01")


@pytest.mark.parametrize("key", ["20", "40", "f4", "f6", "80", "a0", "c100", "f93c00", "1800", "7f6161ff"])
def test_a_map_key_is_an_unsigned_integer_or_text(key: str) -> None:
    assert_rejected(b"\xa1" + bytes.fromhex(key) + b"\x00")


@pytest.mark.parametrize("key", [-1, True, False, None, b"a", 1.0, (), (1,), frozenset()], ids=repr)
def test_another_map_key_is_not_written(key: Any) -> None:
    with pytest.raises(ValueError, match="map key"):
        cbor.encode({key: 0})


# Python treats a bytearray as a sequence of numbers; it must not be encoded as one.
STRANGE = [
    1.0,
    0.5,
    float("nan"),
    {1},
    frozenset(),
    object(),
    1j,
    iter(()),
    range(2),
    bytearray(b"a"),
    memoryview(b"a"),
]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
def test_values_without_a_deterministic_encoding_are_rejected(value: Any) -> None:
    for held in (value, (value,), {1: value}):
        with pytest.raises(ValueError, match="no deterministic encoding"):
            cbor.encode(held)


def test_a_list_is_written_like_a_tuple_and_read_as_one() -> None:
    assert cbor.encode([1, [2]]) == cbor.encode((1, (2,)))
    assert cbor.decode(cbor.encode([1, [2]])) == (1, (2,))


scalars = (
    st.none()
    | st.booleans()
    | uints()
    | uints().map(lambda number: -1 - number)
    | st.binary(max_size=30)
    | st.text(max_size=10)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple) | st.dictionaries(uints() | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


def sorted_by_bytes(value: Any) -> Any:
    """The value with every map in the order of its encoded keys, which cbor2 then keeps."""
    if isinstance(value, tuple):
        return [sorted_by_bytes(item) for item in value]
    if isinstance(value, dict):
        return {key: sorted_by_bytes(value[key]) for key in sorted(value, key=cbor2.dumps)}
    return value


@given(values)
def test_a_value_comes_back_and_agrees_with_another_library(value: Any) -> None:
    data = cbor.encode(value)
    assert cbor.decode(data) == value
    assert data == cbor2.dumps(sorted_by_bytes(value))


@given(values, values, st.integers(0, U64_MAX))
def test_any_bytes_fail_to_decode_or_encode_back_to_themselves(value: Any, other: Any, seed: int) -> None:
    data, spliced = cbor.encode((value,)), cbor.encode((other,))
    rng = Random(seed)
    for _ in range(30):
        mutated = mutate(rng, data, spliced)
        try:
            decoded = cbor.decode(mutated)
        except Malformed:
            continue
        assert cbor.encode(decoded) == mutated


@given(values)
def test_a_value_cut_short_or_with_bytes_after_it_is_refused(value: Any) -> None:
    data = cbor.encode(value)
    for end in range(len(data)):
        assert_rejected(data[:end])
    assert_rejected(data + b"\x00")
    assert_rejected(data + data)
