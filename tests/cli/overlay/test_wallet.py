"""`veen wallet`: the nine events, on a shared stream and on a wallet's own; violations are listed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.state_fixture import StateFixture, state_hub
from tests.cli.runner import Veen
from veen.overlays.wallet_ledger import wallet_id, wallet_stream

REALM, MINE, THEIRS = "00" * 32, "ab" * 32, "cd" * 32
A, B = (wallet_id(bytes(32), bytes.fromhex(owner), "JPY").hex() for owner in (MINE, THEIRS))
OWN = {one: wallet_stream(bytes.fromhex(one)).hex() for one in (A, B)}
LEDGER = {"stream": "ledger"}


@pytest.fixture
def wallet_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path, "ledger", *OWN.values()) as made:
        yield made


def opened(wallet_hub: StateFixture, owner: str, stream: str | None = "ledger") -> None:
    named = ("--realm", REALM, "--owner", owner, "--currency", "JPY")
    assert wallet_hub.run("wallet", "open", *named, "--json", stream=stream).json()["taken"]


def test_all_nine_events_are_sent_and_folded(wallet_hub: StateFixture, tmp_path: Path) -> None:
    opened(wallet_hub, MINE)
    opened(wallet_hub, THEIRS)
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
        wallet_hub.run("wallet", *arguments, **LEDGER)
    assert wallet_hub.run("wallet", "balance", A, "--json", **LEDGER).json()["balance"] == 365
    assert wallet_hub.run("wallet", "list", **LEDGER).out.splitlines() == [f"{A}\t365\topen", f"{B}\t30\tclosed"]
    history = wallet_hub.run("wallet", "history", A, "--json", **LEDGER).json()["history"]
    assert [step["balance"] for step in history] == [0, 500, 400, 370, 365, 365, 365, 365]
    assert wallet_hub.run("wallet", "balance", A, "--at", 3, "--json", **LEDGER).json()["balance"] == 500
    offline = wallet_hub.run_offline(
        wallet_hub.data_dir, "wallet", "balance", A, "--prove", "--out", tmp_path / "e", "--json", **LEDGER
    )
    assert offline.json()["balance"] == 365
    folded = wallet_hub.town.veen.done(
        *("fold", "--overlay", "wallet.ledger", "--part", f"hex:{A}", "--evidence", tmp_path / "e"),
        *("--stream", "ledger", "--pin", wallet_hub.town.hub_id, "--json"),
    ).json()
    assert folded["parts"][0]["state"]["balance"] == 365
    assert folded["state_hash"] == offline.json()["state_hash"]


def test_a_rejected_debit_is_not_sent_and_is_a_violation_if_sent_blind(wallet_hub: StateFixture) -> None:
    opened(wallet_hub, MINE)
    ran = wallet_hub.attempt("wallet", "withdraw", A, "1", **LEDGER)
    assert ran.status == 5
    assert "WAL.INSUFFICIENT_FUNDS" in ran.error
    assert wallet_hub.run("wallet", "violations", **LEDGER).out == ""
    wallet_hub.run("wallet", "withdraw", A, "1", "--blind", **LEDGER)
    (line,) = wallet_hub.run("wallet", "violations", **LEDGER).out.splitlines()
    assert line.split("\t") == ["2", "refused", A, "WAL.INSUFFICIENT_FUNDS"]
    assert wallet_hub.run("wallet", "balance", A, "--json", **LEDGER).json()["balance"] == 0
    again = wallet_hub.attempt("wallet", "open", "--realm", REALM, "--owner", MINE, "--currency", "JPY", **LEDGER)
    assert "WAL.ALREADY_OPEN" in again.error


def test_a_transfer_between_two_streams_is_credited_once(wallet_hub: StateFixture) -> None:
    opened(wallet_hub, MINE, None)
    opened(wallet_hub, THEIRS, None)
    wallet_hub.run("wallet", "deposit", A, "100", stream=None)
    answer = wallet_hub.run("wallet", "transfer", A, B, "40", "--json", stream=None)
    assert "also sent to the receiver's stream, as entry 2" in answer.err
    assert wallet_hub.run("wallet", "balance", A, "--json", stream=None).json()["balance"] == 60
    assert wallet_hub.run("wallet", "balance", B, "--json", stream=None).json()["balance"] == 40
    again = wallet_hub.attempt("wallet", "transfer", A, B, "40", "--id", answer.json()["transfer_id"], stream=None)
    assert again.status == 5
    assert "a copy of entry 3" in again.error


def test_wallet_ids_are_computed_without_a_hub(veen: Veen) -> None:
    answer = veen.done("wallet", "id", "--realm", REALM, "--owner", MINE, "--currency", "JPY").facts()
    assert (answer["wallet_id"], answer["stream"]) == (A, OWN[A])
    assert "is not a currency code" in veen("wallet", "id", "--realm", REALM, "--owner", MINE, "--currency", "¥").error
    assert "is not a ctx_id" in veen("wallet", "id", "--realm", REALM, "--owner", "x", "--currency", "JPY").error


def test_an_unknown_wallet_is_an_error(wallet_hub: StateFixture) -> None:
    ran = wallet_hub.attempt("wallet", "balance", A, **LEDGER)
    assert ran.status == 6
    assert "there is no such wallet" in ran.error
    assert "is not a wallet" in wallet_hub.attempt("wallet", "balance", "x", **LEDGER).error


def test_a_balance_of_more_than_64_bits_is_shown_as_a_number(wallet_hub: StateFixture) -> None:
    opened(wallet_hub, MINE)
    most = 2**64 - 1
    for _ in range(2):
        wallet_hub.run("wallet", "deposit", A, most, **LEDGER)
    assert wallet_hub.run("wallet", "balance", A, **LEDGER).facts()["balance"] == str(2 * most)
    answer = wallet_hub.run("wallet", "balance", A, "--json", **LEDGER).json()
    assert (answer["balance"], answer["pending_daily_spent"]) == (2 * most, 0)
    assert wallet_hub.run("wallet", "list", "--json", **LEDGER).json()["wallets"][0]["balance"] == 2 * most


@pytest.mark.parametrize(
    "arguments", [("deposit", A, 2**64), ("adjust", A, "--delta", -(2**64 - 1)), ("limit", A, 10**40)]
)
def test_an_amount_that_is_too_large_is_misuse_and_nothing_is_sent(
    wallet_hub: StateFixture, arguments: tuple[object, ...]
) -> None:
    opened(wallet_hub, MINE)
    ran = wallet_hub.attempt("wallet", *arguments, **LEDGER)
    assert ran.status == 2
    assert "hint" in ran.err
    assert len(wallet_hub.run("wallet", "history", A, "--json", **LEDGER).json()["history"]) == 1
