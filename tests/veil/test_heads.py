"""CBOR heads are shortest, and the reader accepts nothing else."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbing import cbor_heads
from plumbing.cbor_heads import ARRAY, BSTR, TEXT, UINT
from tests.veil.builders import EDGES
from veil import Malformed
from veil.codec import Reader

MOST = (1 << 64) - 1
numbers = st.one_of(st.sampled_from([*EDGES, 1 << 32, MOST]), st.integers(0, MOST))


@given(numbers)
def test_a_number_is_encoded_as_cbor2_does_and_decoded(value: int) -> None:
    assert cbor_heads.write_items(value) == cbor2.dumps(value)
    assert len(cbor_heads.write_items(value)) == cbor_heads.head_bytes(value)
    reader = Reader(cbor_heads.write_items(value), "number")
    assert reader.uint(MOST) == value
    reader.end()


@given(st.binary(max_size=300))
def test_bytes_are_encoded_as_cbor2_does_and_decoded(data: bytes) -> None:
    assert cbor_heads.write_bstr(data) == cbor2.dumps(data)
    assert Reader(cbor_heads.write_bstr(data), "bytes").byte_string(300) == data


def test_text_is_encoded_as_cbor2_does() -> None:
    assert cbor_heads.write_text("namespace") == cbor2.dumps("namespace")


@pytest.mark.parametrize(
    "data",
    [
        "",
        "18",
        "1817",
        "19",
        "1900",
        "1900ff",
        "1a00",
        "1a0000ffff",
        "1b00000000ffffffff",
        "1b00",
        "1c",
        "1d",
        "1e",
        "1f",
    ],
)
def test_a_head_that_is_cut_short_or_longer_than_needed_is_refused(data: str) -> None:
    with pytest.raises(Malformed):
        Reader(bytes.fromhex(data), "number").uint(MOST)


@pytest.mark.parametrize("major", [major for major in range(8) if major != UINT])
def test_another_type_than_asked_for_is_refused(major: int) -> None:
    with pytest.raises(Malformed):
        Reader(cbor_heads.write_head(major, 1), "number").uint(MOST)


@pytest.mark.parametrize("edge", EDGES)
def test_more_than_the_bound_is_refused(edge: int) -> None:
    assert Reader(cbor_heads.write_items(edge), "number").uint(edge) == edge
    with pytest.raises(Malformed):
        Reader(cbor_heads.write_items(edge + 1), "number").uint(edge)


@pytest.mark.parametrize("major", [BSTR, TEXT, ARRAY])
def test_an_indefinite_length_is_refused(major: int) -> None:
    with pytest.raises(Malformed):
        Reader(bytes((major << 5 | 31, 0x41, 0, 0xFF)), "data").head(major, MOST)


def test_a_length_beyond_the_data_is_refused_before_anything_is_taken() -> None:
    reader = Reader(cbor_heads.write_head(BSTR, 1 << 40), "bytes")
    with pytest.raises(Malformed):
        reader.byte_string(MOST)


def test_fewer_or_more_bytes_than_fixed_are_refused() -> None:
    for length in (31, 33):
        with pytest.raises(Malformed):
            Reader(cbor_heads.write_bstr(bytes(length)), "hash").fixed(32)


def test_trailing_bytes_are_rejected() -> None:
    reader = Reader(cbor_heads.write_items(1) + b"\x00", "number")
    assert reader.uint(1) == 1
    with pytest.raises(Malformed):
        reader.end()
