"""The upload quota: used bytes come back over time, and the memory for owners is bounded."""

import pytest

from veen.hub import uploads
from veen.hub.uploads import UploadQuota


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def bytes_of(time: Time) -> UploadQuota:
    return UploadQuota(10, 100, time)


def test_as_much_as_the_burst_is_granted_at_once_and_no_more(bytes_of: UploadQuota) -> None:
    assert [bytes_of.take(b"a", size) for size in (60, 40, 1)] == [0, 0, 1]


def test_it_fills_again_up_to_the_burst(bytes_of: UploadQuota, time: Time) -> None:
    assert bytes_of.take(b"a", 100) == 0
    time.now = 5.0
    assert bytes_of.take(b"a", 51) == 1
    assert bytes_of.take(b"a", 50) == 0
    time.now = 1000.0
    assert bytes_of.take(b"a", 100) == 0
    assert bytes_of.take(b"a", 1) == 1


@pytest.mark.parametrize(("size", "wait"), [(1, 1), (10, 1), (11, 2), (100, 10)])
def test_it_says_how_long_to_wait_and_that_is_long_enough(
    bytes_of: UploadQuota, time: Time, size: int, wait: int
) -> None:
    bytes_of.take(b"a", 100)
    assert bytes_of.take(b"a", size) == wait
    time.now += wait
    assert bytes_of.take(b"a", size) == 0


def test_asking_for_too_much_costs_nothing(bytes_of: UploadQuota) -> None:
    assert bytes_of.take(b"a", 50) == 0
    for _ in range(10):
        assert bytes_of.take(b"a", 60) > 0
    assert bytes_of.take(b"a", 50) == 0


def test_more_than_the_burst_waits_for_a_full_one_and_is_paid_for_later(bytes_of: UploadQuota, time: Time) -> None:
    assert bytes_of.take(b"a", 300) == 0
    assert bytes_of.take(b"a", 1) == 21
    time.now = 21.0
    assert bytes_of.take(b"a", 1) == 0


def test_an_allowance_that_is_never_filled_again_is_filled_very_slowly(time: Time) -> None:
    bytes_of = UploadQuota(0, 10, time)
    assert bytes_of.take(b"a", 10) == 0
    assert bytes_of.take(b"a", 10) == 10


def test_owners_do_not_share(bytes_of: UploadQuota) -> None:
    assert bytes_of.take(b"a", 100) == bytes_of.take(b"b", 100) == 0


def test_those_that_are_full_again_are_forgotten_and_others_only_if_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, bytes_of: UploadQuota, time: Time
) -> None:
    monkeypatch.setattr(uploads, "_MAX_BUCKETS", 4)
    for number in range(4):
        bytes_of.take(bytes([number]), 10 * (number + 1))
    time.now = 2.0
    bytes_of.take(b"new", 100)
    assert len(bytes_of) == 3
    for number in range(100):
        bytes_of.take(b"flood%d" % number, 100)
    assert len(bytes_of) == 4
    assert bytes_of.take(b"flood99", 1) > 0
