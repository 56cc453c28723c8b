"""The wallet's fold against the algorithm of wallet-spec §6, and its summary against a walk."""

from copy import copy
from dataclasses import replace
from functools import reduce
from random import Random

import pytest

from tests.overlays.wallets import (
    AMOUNTS,
    DAY,
    MINE,
    MONEY,
    ONLY_MINE,
    TIMES,
    Pseudocode,
    obedient_history,
    random_event,
    random_history,
    steps_of,
)
from veen.core import Malformed, cbor
from veen.overlays import AnyOverlay, FaultKind, check_laws, fold, wallet, wallet_ledger
from veen.overlays.wallet import IDENTITY, WALLETS, Control
from veen.overlays.wallet_ledger import Effect, Wallet

HISTORIES = 10_000
CUT_HISTORIES = 150


def test_histories_of_correct_producers_fold_as_in_the_specification() -> None:
    lengths = 0
    for seed in range(HISTORIES):
        history = obedient_history(Random(seed))
        expected = Pseudocode(MINE)
        for entry in history:
            for step in steps_of(entry):
                expected.fold(step.event)
                assert expected.balance >= 0, f"seed {seed}"
        assert fold(ONLY_MINE, history).state(MINE) == expected.state(), f"seed {seed}"
        lengths += len(history)
    assert lengths > 5 * HISTORIES


def test_the_fold_applies_everything_but_copies_and_violations() -> None:
    met = set()
    for seed in range(HISTORIES):
        history = random_history(Random(seed))
        folded = fold(ONLY_MINE, history)
        left_out = {fault.stream_seq: fault for fault in folded.faults}
        expected = Pseudocode(MINE)
        for entry in history:
            fault = left_out.get(entry.stream_seq)
            met.add(fault and (fault.reason if fault.kind == FaultKind.REFUSED else fault.kind))
            for step in steps_of(entry):
                after = copy(expected)
                after.fold(step.event)
                if fault is not None and fault.reason in MONEY:
                    assert after.overspent(), f"seed {seed}"
                elif fault is None or fault.kind == FaultKind.REFUSED:
                    assert fault is None or after == expected, f"seed {seed}"
                    expected = after
                assert expected.balance >= 0, f"seed {seed}"
        assert folded.state(MINE) == expected.state(), f"seed {seed}"
    assert met >= {
        None,
        FaultKind.COPY,
        FaultKind.MALFORMED,
        *MONEY,
        *set(wallet_ledger.WalletCode)
        - {wallet_ledger.WalletCode.INVALID_CURRENCY, wallet_ledger.WalletCode.UNAUTHORIZED_OPERATION},
    }


@pytest.mark.parametrize("overlay", [ONLY_MINE, WALLETS], ids=["one wallet", "all wallets"])
def test_summaries_keep_the_laws_wherever_a_history_is_cut(overlay: AnyOverlay) -> None:
    for seed in range(CUT_HISTORIES):
        check_laws(overlay, random_history(Random(seed), 10))


def any_wallet(random: Random) -> Wallet:
    """Any state at all, reachable or not."""
    ts = random.choice(TIMES)
    limit, spent = random.choice([None, *AMOUNTS]), random.choice(AMOUNTS)
    if random.random() < 0.2:
        return Wallet(daily_limit=limit, last_limit_reset_ts=ts)
    flags = random.random() < 0.2, random.choice([0, 3, 10, 150]), random.random() < 0.3
    return Wallet(True, *flags, limit, spent, ts)


def walked(state: Wallet, run: list[Effect]) -> Wallet | None:
    """The state after a run, None where a debit in it is beyond balance or limit."""
    for done in run:
        code = wallet_ledger.refusal(state, done)
        if code in MONEY:
            return None
        state = wallet_ledger.apply(state, done) if code is None else state
    return state


def test_a_summary_equals_the_fold_from_any_state_and_finds_every_violation() -> None:
    defined = 0
    for seed in range(HISTORIES):
        random = Random(seed)
        steps = [wallet_ledger.effect(MINE, random_event(random)) for _ in range(random.randrange(7))]
        summed = reduce(wallet.compose, map(wallet.lift, steps), IDENTITY)
        for _ in range(4):
            state = any_wallet(random)
            after = walked(state, steps)
            assert wallet.run(state, summed) == after, f"seed {seed}"
            defined += after is not None
    assert HISTORIES < defined < 3.5 * HISTORIES


def test_composition_is_associative_and_has_the_identity() -> None:
    for seed in range(2000):
        random = Random(seed)
        lifted = [wallet.lift(wallet_ledger.effect(MINE, random_event(random))) for _ in range(6)]
        a, b, c = (reduce(wallet.compose, lifted[at : at + 2], IDENTITY) for at in (0, 2, 4))
        left = wallet.compose(wallet.compose(a, b), c)
        assert left == wallet.compose(a, wallet.compose(b, c)) == reduce(wallet.compose, lifted), f"seed {seed}"
        assert wallet.compose(a, IDENTITY) == a == wallet.compose(IDENTITY, a), f"seed {seed}"


def test_an_overdraft_deep_in_a_long_run_shows_in_the_smallest_prefix() -> None:
    deep: list[Effect] = [
        *[wallet_ledger.Credit(10)] * 500,
        wallet_ledger.Debit(5001, 0),
        *[wallet_ledger.Credit(1)] * 500,
    ]
    summed = reduce(wallet.compose, map(wallet.lift, deep), IDENTITY)
    path = summed[Control.OPEN]
    assert (path.delta, path.low) == (5000 - 5001 + 500, -1)
    assert wallet.run(Wallet(exists=True), summed) is None
    rescued = wallet.run(Wallet(exists=True, balance=1), summed)
    assert rescued is not None
    assert rescued.balance == 500


def test_a_summary_stays_small_regardless_of_the_number_of_events() -> None:
    for count in (10, 3000):
        random = Random(count)
        lifted = [wallet.lift(wallet_ledger.effect(MINE, random_event(random))) for _ in range(count)]
        assert len(WALLETS.encode_summary(reduce(wallet.compose, lifted, IDENTITY))) < 600


@pytest.mark.parametrize(
    "spoil",
    [
        lambda paths: paths[:4],
        lambda paths: [*paths, paths[0]],
        lambda paths: 7,
        lambda paths: [7, *paths[1:]],
        lambda paths: [[5, *paths[0][1:]], *paths[1:]],
        lambda paths: [[-1, *paths[0][1:]], *paths[1:]],
        lambda paths: [paths[0][:4], *paths[1:]],
        lambda paths: [[*paths[0][:4], [None] * 3], *paths[1:]],
        lambda paths: [[*paths[0][:4], [None, None, None, 3]], *paths[1:]],
        lambda paths: [[*paths[0][:4], [None, None, None, [None, 3, None]]], *paths[1:]],
        lambda paths: [[*paths[0][:4], [None, None, None, [None, [None, True, 0, 0, None, None], None]]], *paths[1:]],
        lambda paths: [[0, "x", *paths[0][2:]], *paths[1:]],
        lambda paths: [[0, [False, b"\x01"], *paths[0][2:]], *paths[1:]],
        lambda paths: [[*paths[0][:3], True, paths[0][4]], *paths[1:]],
    ],
)
def test_a_summary_has_one_encoding_and_no_other_decodes(spoil) -> None:  # type: ignore[no-untyped-def]
    paths = cbor.decode(WALLETS.encode_summary(IDENTITY))
    assert isinstance(paths, tuple)
    with pytest.raises(Malformed):
        WALLETS.decode_summary(MINE, cbor.encode(spoil([list(path) for path in paths])))


def test_the_pseudocode_here_would_notice_a_change() -> None:
    expected = Pseudocode(MINE, exists=True, balance=10, daily_limit=5, pending_daily_spent=5, last_limit_reset_ts=DAY)
    assert not replace(expected).overspent()
    assert replace(expected, pending_daily_spent=6).overspent()
    assert replace(expected, balance=-1).overspent()
