"""The proof-of-work cookie: valid work, its challenge, and invalid work. 001, spec-2 §5.2."""

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.wire_strategies import wire_objects
from veen.core import Malformed, Unavailable, Unverified
from veen.core.proof_of_work import PowCookie, challenge_of, solve

CHALLENGE = b"what to work on"
BITS = 10


def zero_bits(challenge: bytes, nonce: int) -> int:
    """The number of leading zeros of the digest as a bit string, as in the specification."""
    digest = sha256(b"veen/pow\0" + challenge + nonce.to_bytes(8, "big")).digest()
    return len(bits) - len(bits.lstrip("0")) if (bits := "".join(f"{byte:08b}" for byte in digest)) else 0


@given(st.binary(max_size=64), st.integers(0, (1 << 64) - 1))
def test_work_is_the_zero_bits_that_the_hash_starts_with(challenge: bytes, nonce: int) -> None:
    assert PowCookie(challenge, nonce, 0).work() == zero_bits(challenge, nonce)


@pytest.mark.parametrize("difficulty", range(13))
def test_the_solution_is_the_lowest_nonce_that_does(difficulty: int) -> None:
    cookie = solve(CHALLENGE, difficulty)
    assert cookie == PowCookie(CHALLENGE, cookie.nonce, difficulty)
    assert all(zero_bits(CHALLENGE, nonce) < difficulty for nonce in range(cookie.nonce))
    cookie.verify(CHALLENGE, difficulty)


def test_solving_stops_after_the_maximum_number_of_tries() -> None:
    with pytest.raises(Unavailable, match="tries"):
        solve(CHALLENGE, 200, most_tries=1000)


def test_more_than_was_asked_for_is_enough() -> None:
    solve(CHALLENGE, BITS).verify(CHALLENGE, BITS - 1)
    solve(CHALLENGE, BITS).verify(CHALLENGE, 0)


COOKIE = solve(CHALLENGE, BITS)


@pytest.mark.parametrize(
    ("cookie", "why"),
    [
        (replace(COOKIE, challenge=CHALLENGE + b"."), "another challenge"),
        (replace(COOKIE, challenge=b""), "another challenge"),
        (replace(COOKIE, difficulty=BITS - 1), "below"),
        (replace(COOKIE, difficulty=0), "below"),
        (replace(COOKIE, difficulty=COOKIE.work() + 1), "zero bits"),
        (replace(COOKIE, difficulty=255), "zero bits"),
        (replace(COOKIE, nonce=COOKIE.nonce + 1), "zero bits"),
    ],
)
def test_a_cookie_that_is_none_is_refused(cookie: PowCookie, why: str) -> None:
    assert why != "zero bits" or cookie.work() < cookie.difficulty
    with pytest.raises(Unverified, match=why):
        cookie.verify(CHALLENGE, BITS)


def test_a_challenge_is_of_one_hub_and_one_request() -> None:
    seen = {challenge_of(hub, body) for hub in (bytes(32), b"\x01" * 32) for body in (b"", b"\0", b"request")}
    assert len(seen) == 6
    inner = bytes(32) + sha256(b"request").digest()
    assert challenge_of(bytes(32), b"request") == sha256(b"veen/pow-challenge\0" + inner).digest()


@given(wire_objects(PowCookie))
def test_a_cookie_comes_back_from_its_header(cookie: PowCookie) -> None:
    assert PowCookie.from_header(cookie.header()) == cookie


@pytest.mark.parametrize(
    "text",
    ["", "a", "zz", COOKIE.header().upper(), COOKIE.header() + "00", " " + COOKIE.header(), COOKIE.header()[:-2], "a0"],
)
def test_a_header_that_is_no_cookie_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        PowCookie.from_header(text)


def test_the_schema_is_that_of_the_specification() -> None:
    assert sha256(b"veen.pow.cookie.v1").digest() == PowCookie.SCHEMA
