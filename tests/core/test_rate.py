"""The rate bucket: a pure function of the times of accepted messages."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cap_token
from veen.core.cap_token import Bucket, Rate

START = 1_700_000_000

RATES = st.builds(Rate, per_sec=st.integers(0, 4), burst=st.integers(0, 6))
# The times at which messages arrive: often in the same second, seldom far apart.
ARRIVALS = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 5, 1000]), max_size=60).map(
    lambda gaps: [START + elapsed for elapsed in accumulate(gaps)]
)


def simulated(of: Rate, arrivals: list[int]) -> list[int]:
    """The accepted messages, simulated second by second: every second adds `per_sec`, up to `burst`."""
    accepted: list[int] = []
    tokens, now = of.burst, START
    for arrival in arrivals:
        while now < arrival:
            tokens, now = min(of.burst, tokens + of.per_sec), now + 1
        if tokens > 0:
            tokens -= 1
            accepted.append(arrival)
    return accepted


def stepped(of: Rate, arrivals: list[int]) -> tuple[list[int], Bucket | None]:
    """The accepted messages and the final bucket, computed as a hub does. A rejection does not change the bucket."""
    accepted: list[int] = []
    bucket: Bucket | None = None
    for arrival in arrivals:
        taken = (bucket or Bucket.full(of, arrival)).take(of, arrival)
        if taken:
            bucket = taken
            accepted.append(arrival)
    return accepted, bucket


@given(RATES, ARRIVALS)
def test_a_bucket_accepts_what_a_simulation_second_by_second_accepts(of: Rate, arrivals: list[int]) -> None:
    assert stepped(of, arrivals)[0] == simulated(of, arrivals)


@given(RATES, ARRIVALS)
def test_no_window_holds_more_than_burst_and_what_it_refills(of: Rate, arrivals: list[int]) -> None:
    accepted, _ = stepped(of, arrivals)
    for first, start in enumerate(accepted):
        for last in range(first, len(accepted)):
            assert last - first + 1 <= of.burst + of.per_sec * (accepted[last] - start)


@given(RATES, ARRIVALS)
def test_replaying_what_was_accepted_gives_the_bucket_that_stepping_gave(of: Rate, arrivals: list[int]) -> None:
    accepted, bucket = stepped(of, arrivals)
    assert cap_token.replay(of, accepted) == bucket


@given(RATES, ARRIVALS, st.integers(0, 60))
def test_a_replay_may_be_cut_anywhere(of: Rate, arrivals: list[int], cut: int) -> None:
    accepted, whole = stepped(of, arrivals)
    bucket = cap_token.replay(of, accepted[:cut])
    for hub_ts in accepted[cut:]:
        bucket = (bucket or Bucket.full(of, hub_ts)).take(of, hub_ts)
    assert bucket == whole


@given(RATES, ARRIVALS)
def test_a_hub_that_never_saw_the_refused_messages_decides_the_same(of: Rate, arrivals: list[int]) -> None:
    accepted, bucket = stepped(of, arrivals)
    assert stepped(of, accepted) == (accepted, bucket)


@given(RATES, st.integers(0, 6), st.integers(0, 2000), st.integers(0, 2000))
def test_refilling_in_two_steps_is_refilling_in_one(of: Rate, tokens: int, first: int, second: int) -> None:
    bucket = Bucket(min(tokens, of.burst), START)
    halfway = bucket.refilled(of, START + first)
    assert halfway.refilled(of, START + first + second) == bucket.refilled(of, START + first + second)


@given(RATES)
def test_a_bucket_starts_with_burst_tokens(of: Rate) -> None:
    assert Bucket.full(of, START) == Bucket(of.burst, START)


@given(RATES, st.integers(0, 2000))
def test_a_full_bucket_stays_full_however_long_it_waits(of: Rate, elapsed: int) -> None:
    assert Bucket.full(of, START).refilled(of, START + elapsed).tokens == of.burst


@pytest.mark.parametrize("back", [1, 5, START])
def test_time_that_runs_back_gives_nothing_and_takes_nothing(back: int) -> None:
    bucket = Bucket(1, START)
    assert bucket.refilled(Rate(5, 20), START - back) == bucket


def test_a_message_stamped_in_the_past_is_counted_at_the_time_of_the_bucket() -> None:
    assert Bucket(1, START).take(Rate(5, 20), START - 10) == Bucket(0, START)


def test_an_empty_bucket_stays_empty_when_time_runs_back() -> None:
    assert Bucket(0, START).take(Rate(5, 20), START - 10) is None


def test_time_that_ran_back_is_not_counted_again() -> None:
    of = Rate(per_sec=1, burst=2)
    emptied = cap_token.replay(of, [START, START])
    assert emptied == Bucket(0, START)
    assert emptied.refilled(of, START - 100).refilled(of, START).tokens == 0


@pytest.mark.parametrize("burst", [1, 2, 7])
def test_burst_messages_are_accepted_at_once_and_no_more(burst: int) -> None:
    of = Rate(per_sec=1, burst=burst)
    accepted, bucket = stepped(of, [START] * (burst + 1))
    assert len(accepted) == burst
    assert bucket == Bucket(0, START)


@pytest.mark.parametrize("per_sec", [0, 1, 1000])
def test_a_burst_of_zero_never_admits(per_sec: int) -> None:
    of = Rate(per_sec, burst=0)
    assert Bucket.full(of, START).take(of, START) is None
    assert Bucket.full(of, START).take(of, START + 1_000_000) is None


def test_without_refill_the_burst_is_all_there_ever_is() -> None:
    of = Rate(per_sec=0, burst=3)
    bucket = cap_token.replay(of, [START, START + 1, START + 2])
    assert bucket is not None
    assert bucket.take(of, START + 1_000_000) is None


def test_one_second_gives_back_per_sec_tokens() -> None:
    of = Rate(per_sec=3, burst=10)
    assert Bucket(0, START).refilled(of, START + 1) == Bucket(3, START + 1)


def test_within_the_same_second_nothing_comes_back() -> None:
    of = Rate(per_sec=3, burst=10)
    assert Bucket(0, START).take(of, START) is None


def test_what_does_not_fit_spills_over() -> None:
    of = Rate(per_sec=3, burst=10)
    assert Bucket(9, START).refilled(of, START + 1).tokens == 10


@pytest.mark.parametrize(
    ("bucket", "of", "expected"),
    [
        (Bucket(1, START), Rate(1, 1), 0),
        (Bucket(3, START), Rate(0, 3), 0),
        (Bucket(0, START), Rate(1, 1), 1),
        (Bucket(0, START), Rate(1000, 1), 1),
        (Bucket(0, START), Rate(0, 3), None),
        (Bucket(0, START), Rate(5, 0), None),
        (Bucket(0, START), Rate(0, 0), None),
    ],
)
def test_retry_after_is_when_a_token_is_back(bucket: Bucket, of: Rate, expected: int | None) -> None:
    assert bucket.retry_after(of) == expected


@given(RATES, ARRIVALS)
def test_retry_after_is_the_least_wait_that_admits(of: Rate, arrivals: list[int]) -> None:
    bucket = stepped(of, arrivals)[1] or Bucket.full(of, START)
    wait = bucket.retry_after(of)
    if wait is None:
        assert bucket.take(of, bucket.hub_ts + 1_000_000) is None
    else:
        assert bucket.take(of, bucket.hub_ts + wait) is not None
        assert wait == 0 or bucket.take(of, bucket.hub_ts + wait - 1) is None


def test_before_the_first_message_there_is_no_bucket() -> None:
    assert cap_token.replay(Rate(1, 1), []) is None


@pytest.mark.parametrize(
    ("of", "history"),
    [
        (Rate(1, 0), [START]),
        (Rate(1, 1), [START, START]),
        (Rate(0, 2), [START, START + 10, START + 20]),
        (Rate(2, 2), [START, START, START + 1, START + 1, START + 1]),
        (Rate(5, 1), [START, START - 1]),
    ],
)
def test_a_history_that_the_rate_does_not_allow_is_refused(of: Rate, history: list[int]) -> None:
    with pytest.raises(ValueError, match=f"the message at hub_ts {history[-1]} exceeds this rate"):
        cap_token.replay(of, history)


@given(RATES, ARRIVALS)
def test_one_message_more_than_the_bucket_has_makes_a_history_impossible(of: Rate, arrivals: list[int]) -> None:
    accepted, bucket = stepped(of, arrivals)
    at = accepted[-1] if accepted else START
    left = bucket.tokens if bucket else of.burst
    full = [*accepted, *[at] * left]
    cap_token.replay(of, full)
    with pytest.raises(ValueError, match="cannot have been accepted"):
        cap_token.replay(of, [*full, at])
