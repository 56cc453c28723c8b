"""The field kinds of overlays: signed integers, numbers of any size, open values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import Malformed, cbor
from veen.core.cbor import DeferredFaults, heads
from veen.core.hashing import U64_MAX
from veen.overlays.event import Int, Number, ValueItem, ascending, number_of, number_value, optional_map

EDGES = [0, 1, -1, 23, 24, -24, -25, U64_MAX, -1 - U64_MAX]
BEYOND = [U64_MAX + 1, -2 - U64_MAX, 1 << 200, -(1 << 200)]


@pytest.mark.parametrize("number", EDGES)
def test_an_integer_of_64_bits_comes_back(number: int) -> None:
    data = Int(name="n").write(number)
    assert Int(name="n").read(data, 0, DeferredFaults()) == (number, len(data))
    assert Number(name="n").write(number) == data


@pytest.mark.parametrize("number", [*BEYOND, True, "1", None])
def test_a_value_outside_the_range_cannot_be_written_as_an_integer(number: object) -> None:
    with pytest.raises(ValueError, match="n is"):
        Int(name="n").write(number)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"\xf5", b"\x41a", b"\x61a", b"\x80", b"\xf6", b"\x18\x01", b"\x38\x01", b""])
def test_a_value_of_another_type_is_not_read_as_an_integer(data: bytes) -> None:
    with pytest.raises(Malformed):
        Int(name="n").read(data, 0, DeferredFaults())


@given(st.one_of(st.integers(), st.sampled_from(EDGES + BEYOND)))
def test_a_number_of_any_size_has_one_encoding(number: int) -> None:
    data = Number(name="n").write(number)
    assert Number(name="n").read(data, 0, DeferredFaults()) == (number, len(data))
    assert number_of(cbor.decode(data)) == number


@pytest.mark.parametrize(
    "value",
    [
        True,
        "1",
        b"1",
        None,
        (),
        (False,),
        (False, b""),
        (False, b"\x01"),
        (True, b"\xff" * 8),
        (False, b"\xff" * 8),
        (False, b"\x00" + b"\xff" * 9),
        (0, b"\xff" * 9),
        (False, b"\xff" * 9, 0),
    ],
)
def test_another_encoding_of_a_number_is_rejected(value: cbor.Value) -> None:
    with pytest.raises(Malformed):
        number_of(value)


def test_a_number_is_a_plain_integer_if_it_fits() -> None:
    assert number_value(-1 - U64_MAX) == -1 - U64_MAX
    assert number_value(U64_MAX + 1) == (False, b"\x01" + bytes(8))
    assert number_value(-2 - U64_MAX) == (True, b"\x01" + bytes(7) + b"\x01")


@pytest.mark.parametrize("data", [b"\x00", b"\xf6", b"\xa1\x61a\x80", b"\x20", b"\x40"])
def test_an_open_value_is_kept_as_its_bytes(data: bytes) -> None:
    assert ValueItem(name="x").read(b"\xff" + data + b"\x00", 1, DeferredFaults()) == (data, 1 + len(data))
    assert ValueItem(name="x").write(data) == data


@pytest.mark.parametrize(
    "data", [b"", b"\x18\x01", b"\xc1\x00", b"\xfa\x00\x00\x00\x00", b"\xa2\x61b\x00\x61a\x00", b"\x9f\xff"]
)
def test_an_open_value_that_is_not_deterministic_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        ValueItem(name="x").read(data, 0, DeferredFaults())
    with pytest.raises(ValueError, match="x"):
        ValueItem(name="x").write(data)


def test_an_open_value_can_be_restricted_to_one_type() -> None:
    assert optional_map(name="m").optional
    assert optional_map(name="m").read(b"\xa0", 0, DeferredFaults()) == (b"\xa0", 1)
    with pytest.raises(Malformed, match="not a map"):
        optional_map(name="m").read(b"\x80", 0, DeferredFaults())
    with pytest.raises(ValueError, match="not an array or a map"):
        ValueItem(heads.ARRAY, heads.MAP, name="m").write(b"\x00")


@pytest.mark.parametrize(
    ("items", "expected"),
    [([], True), ([b"a"], True), ([b"a", b"b"], True), ([b"a", b"a"], False), ([b"b", b"a"], False)],
)
def test_order_is_strict(items: list[bytes], expected: bool) -> None:
    assert ascending(items) is expected
