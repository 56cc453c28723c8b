"""`veen wallet`: the nine events, on a shared stream and on a wallet's own; violations are listed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.people import People, people
from tests.cli.runner import Veen
from veen.overlays.wallet import wallet_id, wallet_stream

REALM, MINE, THEIRS = "00" * 32, "ab" * 32, "cd" * 32
A, B = (wallet_id(bytes(32), bytes.fromhex(owner), "JPY").hex() for owner in (MINE, THEIRS))
OWN = {one: wallet_stream(bytes.fromhex(one)).hex() for one in (A, B)}
LEDGER = {"stream": "ledger"}


@pytest.fixture
def bank(veen: Veen, tmp_path: Path) -> Iterator[People]:
    with people(veen, tmp_path, "ledger", *OWN.values()) as made:
        yield made


def opened(bank: People, owner: str, stream: str | None = "ledger") -> None:
    named = ("--realm", REALM, "--owner", owner, "--currency", "JPY")
    assert bank.does("wallet", "open", *named, "--json", stream=stream).json()["taken"]


def test_all_nine_events_are_sent_and_folded(bank: People, tmp_path: Path) -> None:
    opened(bank, MINE)
    opened(bank, THEIRS)
    for arguments in [
        ("deposit", A, "500", "--ref", "inv-7"),
        ("withdraw", A, "100", "--ref", "w-1"),
        ("transfer", A, B, "30"),
        ("adjust", A, "--delta", "-5", "--reason", "fee"),
        ("limit", A, "1000"),
        ("freeze", A, "--reason", "lost"),
        ("unfreeze", A),
        ("close", B),
    ]:
        bank.does("wallet", *arguments, **LEDGER)
    assert bank.does("wallet", "balance", A, "--json", **LEDGER).json()["balance"] == 365
    assert bank.does("wallet", "list", **LEDGER).out.splitlines() == [f"{A}\t365\topen", f"{B}\t30\tclosed"]
    history = bank.does("wallet", "history", A, "--json", **LEDGER).json()["history"]
    assert [step["balance"] for step in history] == [0, 500, 400, 370, 365, 365, 365, 365]
    assert bank.does("wallet", "balance", A, "--at", 3, "--json", **LEDGER).json()["balance"] == 500
    offline = bank.reads(bank.data_dir, "wallet", "balance", A, "--prove", "--out", tmp_path / "e", "--json", **LEDGER)
    assert offline.json()["balance"] == 365
    folded = bank.town.veen.done(
        *("fold", "--overlay", "wallet.ledger", "--part", f"hex:{A}", "--evidence", tmp_path / "e"),
        *("--stream", "ledger", "--pin", bank.town.hub_id, "--json"),
    ).json()
    assert folded["parts"][0]["state"]["balance"] == 365
    assert folded["state_hash"] == offline.json()["state_hash"]


def test_what_the_rules_refuse_is_not_sent_and_what_is_sent_all_the_same_is_a_violation(bank: People) -> None:
    opened(bank, MINE)
    ran = bank.tries("wallet", "withdraw", A, "1", **LEDGER)
    assert ran.status == 5
    assert "WAL.INSUFFICIENT_FUNDS" in ran.error
    assert bank.does("wallet", "violations", **LEDGER).out == ""
    bank.does("wallet", "withdraw", A, "1", "--blind", **LEDGER)
    (line,) = bank.does("wallet", "violations", **LEDGER).out.splitlines()
    assert line.split("\t") == ["2", "refused", A, "WAL.INSUFFICIENT_FUNDS"]
    assert bank.does("wallet", "balance", A, "--json", **LEDGER).json()["balance"] == 0
    again = bank.tries("wallet", "open", "--realm", REALM, "--owner", MINE, "--currency", "JPY", **LEDGER)
    assert "WAL.ALREADY_OPEN" in again.error


def test_a_transfer_between_wallets_with_streams_of_their_own_is_credited_once(bank: People) -> None:
    opened(bank, MINE, None)
    opened(bank, THEIRS, None)
    bank.does("wallet", "deposit", A, "100", stream=None)
    told = bank.does("wallet", "transfer", A, B, "40", "--json", stream=None)
    assert "the receiver's stream has it as entry 2" in told.err
    assert bank.does("wallet", "balance", A, "--json", stream=None).json()["balance"] == 60
    assert bank.does("wallet", "balance", B, "--json", stream=None).json()["balance"] == 40
    again = bank.tries("wallet", "transfer", A, B, "40", "--id", told.json()["transfer_id"], stream=None)
    assert again.status == 5
    assert "a copy of entry 3" in again.error


def test_the_names_of_a_wallet_are_told_without_a_hub(veen: Veen) -> None:
    told = veen.done("wallet", "id", "--realm", REALM, "--owner", MINE, "--currency", "JPY").facts()
    assert (told["wallet_id"], told["stream"]) == (A, OWN[A])
    assert "no currency" in veen("wallet", "id", "--realm", REALM, "--owner", MINE, "--currency", "¥").error
    assert "is not a ctx_id" in veen("wallet", "id", "--realm", REALM, "--owner", "x", "--currency", "JPY").error


def test_a_wallet_that_is_not_there_is_said_not_to_be(bank: People) -> None:
    ran = bank.tries("wallet", "balance", A, **LEDGER)
    assert ran.status == 6
    assert "there is no such wallet" in ran.error
    assert "is not a wallet" in bank.tries("wallet", "balance", "x", **LEDGER).error


def test_a_balance_of_more_than_64_bits_is_shown_as_a_number(bank: People) -> None:
    opened(bank, MINE)
    most = 2**64 - 1
    for _ in range(2):
        bank.does("wallet", "deposit", A, most, **LEDGER)
    assert bank.does("wallet", "balance", A, **LEDGER).facts()["balance"] == str(2 * most)
    told = bank.does("wallet", "balance", A, "--json", **LEDGER).json()
    assert (told["balance"], told["pending_daily_spent"]) == (2 * most, 0)
    assert bank.does("wallet", "list", "--json", **LEDGER).json()["wallets"][0]["balance"] == 2 * most


@pytest.mark.parametrize(
    "arguments", [("deposit", A, 2**64), ("adjust", A, "--delta", -(2**64 - 1)), ("limit", A, 10**40)]
)
def test_an_amount_that_no_event_can_hold_is_refused_and_nothing_is_sent(
    bank: People, arguments: tuple[object, ...]
) -> None:
    opened(bank, MINE)
    ran = bank.tries("wallet", *arguments, **LEDGER)
    assert ran.status == 2
    assert "hint" in ran.err
    assert len(bank.does("wallet", "history", A, "--json", **LEDGER).json()["history"]) == 1
