"""The erasure code gives the known bytes, and any k of n rows give all of them."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil import oracle
from tests.veil.vector_files import DIALECT, unhex
from veil import erasure_code
from veil.profiles import PROFILES
from veil.veil_limits import MAX_SHARDS

KNOWN = DIALECT["reed_solomon"]
CODES = [(profile.k, profile.n) for profile in PROFILES]


def encode(data: bytes, k: int, n: int) -> list[bytes]:
    return list(map(bytes, erasure_code.encode(data, k, n)))


elements = st.integers(0, 255)


@given(elements, elements)
def test_products_are_those_of_the_field(a: int, b: int) -> None:
    assert erasure_code.mul(a, b) == oracle.times(a, b)


@pytest.mark.parametrize("a", range(1, 256))
def test_every_element_but_zero_has_an_inverse(a: int) -> None:
    assert oracle.times(a, erasure_code.inverse(a)) == 1


def test_zero_has_no_inverse() -> None:
    with pytest.raises(ZeroDivisionError):
        erasure_code.inverse(0)


@pytest.mark.parametrize("code", DIALECT["parity_rows"])
def test_the_parity_rows_are_the_known_ones(code: str) -> None:
    k, n = map(int, code.split(","))
    assert (k, n) in CODES
    assert [row.hex() for row in erasure_code.parity_rows(k, n)] == DIALECT["parity_rows"][code]


def test_the_known_data_has_the_known_parity() -> None:
    blocks = [unhex(block) for block in KNOWN["data"]]
    rows = encode(b"".join(blocks), KNOWN["k"], KNOWN["n"])
    assert rows == [*blocks, *(unhex(block) for block in KNOWN["parity"])]


@given(st.data(), st.integers(1, MAX_SHARDS), st.integers(1, 40))
def test_a_slow_second_implementation_agrees(data: st.DataObject, n: int, size: int) -> None:
    k = data.draw(st.integers(1, n))
    seed = data.draw(st.integers(0, 1 << 32))
    blocks = [Random(seed + index).randbytes(size) for index in range(k)]
    rows = encode(b"".join(blocks), k, n)
    assert rows == oracle.encode(blocks, n)
    chosen = data.draw(st.permutations(range(n)))[:k]
    assert erasure_code.decode({index: rows[index] for index in chosen}, k) == b"".join(blocks)


@pytest.mark.parametrize(("k", "n"), CODES)
def test_each_choice_of_k_rows_gives_the_data(k: int, n: int) -> None:
    data = Random(k).randbytes(3 * k)
    rows = encode(data, k, n)
    choices = list(combinations(range(n), k))
    for chosen in choices if len(choices) < 1_000 else Random(n).sample(choices, 1_000):
        assert erasure_code.decode({index: rows[index] for index in chosen}, k) == data


@pytest.mark.parametrize(("k", "n"), CODES)
def test_one_wrong_byte_in_a_row_changes_the_data(k: int, n: int) -> None:
    data = Random(k).randbytes(3 * k)
    rows = dict(enumerate(encode(data, k, n)))
    for index in rows:
        others = [other for other in rows if other != index][: k - 1]
        corrupted = {other: rows[other] for other in others} | {index: b"\xff" + rows[index][1:]}
        wrong = erasure_code.decode(corrupted, k) != data
        assert wrong == (rows[index][:1] != b"\xff")


@pytest.mark.parametrize("count", [5, 7])
def test_other_than_k_rows_are_our_own_mistake(count: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        erasure_code.decode(dict.fromkeys(range(count), b"x"), 6)


@pytest.mark.parametrize("size", [0, 5, 7])
def test_data_that_is_not_k_blocks_is_our_own_mistake(size: int) -> None:
    with pytest.raises(ValueError, match="blocks"):
        erasure_code.encode(bytes(size), 6, 10)
