"""Durations: accepted forms, rejected forms, and their error messages."""

from pathlib import Path

import pytest

from plumbing.cli import durations
from tests.cli.runner import Veen
from veen.client import ClientDir, cbor_sequence
from veen.core import CapToken


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 90),
        (60, 60),  # a default
        ("90s", 90),
        ("15m", 900),
        ("36h", 129_600),
        ("7d", 604_800),
        ("1.5h", 5_400),
        ("0.5m", 30),
        ("0090", 90),
        ("9" * 30, int("9" * 30)),
    ],
)
def test_a_duration_is_seconds_or_a_number_with_a_unit(written: str | int, seconds: int) -> None:
    assert durations.whole_seconds(written, 0) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *("", "d", "1w", "1y", "1D", "1 d", " 1d", "1d ", "1d\n", "-5", "+5", "1e3", "1d2h", ".5h", "1.h", "1_000"),
        *("inf", "nan", "\u0661d", "\uff11d", "9" * 31),
    ],
)
def test_any_other_text_is_rejected_and_the_error_says_what_is_accepted(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; give seconds, or a number with s, m, h or d"):
        durations.whole_seconds(written, 0)


@pytest.mark.parametrize("written", ["1.5", "0.9s", "0.001m"])
def test_a_fraction_of_a_second_is_rejected_where_seconds_are_whole(written: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number of seconds"):
        durations.whole_seconds(written, 0)


def test_bounds_are_in_seconds_for_every_unit() -> None:
    assert durations.whole_seconds("1m", 60, 60) == 60
    with pytest.raises(ValueError, match="'59s' is less than 60 seconds"):
        durations.whole_seconds("59s", 60)
    with pytest.raises(ValueError, match="'1d' is more than 86399 seconds"):
        durations.whole_seconds("1d", 0, 86_399)
    with pytest.raises(ValueError, match=r"'0m' is less than 1 second$"):
        durations.whole_seconds("0m", 1)


def test_a_capability_issued_for_a_day_has_that_ttl(veen: Veen, tmp_path: Path) -> None:
    ClientDir.create(tmp_path / "operator", None, 1).close()
    for ttl, seconds in (("1d", 86_400), ("86400", 86_400), ("90m", 5_400)):
        out = tmp_path / f"{ttl}.cap"
        options = ("--issuer", tmp_path / "operator", "--subject", "ab" * 32, "--stream", "doors", "--bare")
        veen.done("cap", "issue", *options, "--ttl", ttl, "--out", out)
        assert {token.allow.ttl for token in cbor_sequence.decode(CapToken, out.read_bytes())} == {seconds}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cap", "issue", "--ttl", "1w"], "invalid value for '--ttl': '1w' is not a duration; give seconds, or"),
        (["cap", "issue", "--ttl", "-5"], "invalid value for '--ttl': '-5' is not a duration; give seconds, or"),
        (["cap", "issue", "--ttl", "0h"], "invalid value for '--ttl': '0h' is less than 1 second"),
        (["top", "--interval", "1ms"], "invalid value for '--interval': '1ms' is not a duration"),
        (["top", "--interval", "0.01s"], "invalid value for '--interval': '0.01s' is less than 0.05 seconds"),
        (["hub", "init", "--epoch-sec", "0.5"], "invalid value for '--epoch-sec': '0.5' is not a whole number of"),
        (["id", "auth", "challenge", "--lasts", "6m"], "invalid value for '--lasts': '6m' is more than 300 seconds"),
        (["id", "auth", "verify", "a", "b", "--issued-at", "1d"], "invalid value for '--issued-at': '1d' is neither"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_an_option_rejects_a_bad_duration_with_its_name(arguments: list[str], message: str, veen: Veen) -> None:
    ran = veen(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.error.startswith(message)
