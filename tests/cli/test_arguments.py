"""Misplaced arguments, and values that start with a dash."""

from pathlib import Path

import pytest

from tests.cli.overlay.state_fixture import state_hub
from tests.cli.runner import Veen

WALLET = "ab" * 32


@pytest.mark.parametrize("amount", ["-5", "-500", "-5.5", "5.5", "1e3", "1_000", "five", "", "\u0665", "9" * 101])
@pytest.mark.parametrize("command", [("deposit", WALLET), ("transfer", WALLET, WALLET), ("limit", WALLET)])
def test_an_invalid_amount_is_a_usage_error(command: tuple[str, ...], amount: str, veen: Veen) -> None:
    ran = veen("wallet", *command, amount, "--stream", "ledger")
    assert (ran.status, ran.out) == (2, "")
    assert f"'AMOUNT': {amount!r} is not an amount: give a whole number of the smallest unit, 0 or more" in ran.error


@pytest.mark.parametrize("written", ["-x", "-5x", "--5", "-", "-.5", "--no-such"])
def test_a_word_with_a_dash_that_is_not_a_number_is_an_option(written: str, veen: Veen) -> None:
    ran = veen("wallet", "deposit", WALLET, written)
    assert ran.status == 2
    assert "no such option" in ran.error or written == "-"


def test_an_unknown_option_after_a_negative_number_is_reported(veen: Veen) -> None:
    assert "no such option: --foo" in veen("wallet", "deposit", WALLET, "-5", "--foo").error
    assert "unexpected extra argument(s) (-5)" in veen("version", "-5").error


def test_a_negative_number_can_be_a_value(veen: Veen, tmp_path: Path) -> None:
    with state_hub(veen, tmp_path) as made:
        for value in ("-5", "-0.5"):
            made.run("kv", "put", "cellar", value)
            assert made.run("kv", "get", "cellar").out == f"{value}\n"


def test_a_file_name_after_lines_gets_a_hint_to_standard_input(veen: Veen) -> None:
    ran = veen("send", "--stream", "doors", "--lines", "door.log")
    assert ran.status == 2
    assert ran.error == "--lines reads standard input, not 'door.log'"
    assert ran.err.splitlines()[1:] == ["veen: hint: veen send … --lines < door.log"]
    assert "veen send … --lines < 'my log'\n" in veen("send", "--lines", "my log", "--stream", "doors").err


def test_a_word_without_an_option_gets_a_hint_to_body(veen: Veen) -> None:
    ran = veen("send", "--stream", "doors", "hello")
    assert (ran.status, ran.error) == (2, "unexpected argument 'hello'")
    assert "--body TEXT" in ran.err
    assert "WORD" not in veen.done("send", "--help").out
