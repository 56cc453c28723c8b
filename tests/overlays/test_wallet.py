"""WAL: names, bodies, and every rule of wallet-spec by itself."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.overlays.logs import LogLine, log, msg_id, root
from tests.overlays.wallets import DAY, MINE, ONLY_MINE, OTHER, OWNER, REALM, THEIRS
from veen.core import Malformed, cbor
from veen.core.hashing import U64_MAX
from veen.overlays import At, Event, FaultKind, Fold, FoldEntry, FoldStep, fold, state_hash
from veen.overlays.kept_fold_lmdb import Cache
from veen.overlays.wallet import WALLETS, Wallets, violations
from veen.overlays.wallet_ledger import (
    WALLET_EVENTS,
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Wallet,
    WalletCode,
    Withdraw,
    approval_hash,
    transfer_id,
    wallet_id,
    wallet_stream,
)

# H(name), as another implementation has them.
SCHEMAS = {
    Open: "f1b37e207e51e78a9f83b076ad5d14edf9b811a9805d2dc403e2082f9c924aea",
    Close: "5d1356a5493844febcda7efe7ef837fc220629b61dd99e7c6894940a57b61212",
    Deposit: "ed055113927b800be6ce91f71a5fa939cfd55e0142e37bff205e12fadde2020e",
    Withdraw: "9d29f9cf926c268be8fd5b5cbd0ddbb58d4433142f38674cd9f506decc6c125e",
    Transfer: "5350cf85e6e0438ed34db22694c3f142903719135aed659f2401fcbaff983911",
    Adjust: "df4af996179e4a2f9723f7dbdd8c62ff0a8831fc6e3865f550b8b25adfcf3ea0",
    Limit: "61758374a8474b4154f301603c3519d7cbd8eb1f760aed05dddf57b6133c3979",
    Freeze: "25914e04bfb5420b60c52a1fcd597501deafa771b8ce84aca081e3fd29051d36",
    Unfreeze: "756d26e8117efc3327584092d73c34d441ea1a0ee8c53b0566abb00611027312",
}
OPENED = Open(MINE, REALM, OWNER, "JPY", 3 * DAY)
TODAY = 5 * DAY
X1, X2 = b"\x11" * 32, b"\x12" * 32


def after(*said: Event | LogLine) -> Fold:  # type: ignore[type-arg]
    return fold(ONLY_MINE, log(*said))


def mine(*said: Event | LogLine) -> Wallet:
    state = after(*said).state(MINE)
    assert isinstance(state, Wallet)
    return state


def codes(*said: Event | LogLine) -> list[tuple[int, str]]:
    return [(fault.stream_seq, fault.reason) for fault in after(*said).faults]


def test_the_nine_events_have_their_schemas() -> None:
    assert {event: event.SCHEMA.hex() for event in WALLET_EVENTS} == SCHEMAS


def test_names_are_derived_as_written() -> None:
    assert wallet_id(REALM, OWNER, "JPY") == sha256(b"wallet/id\x00" + REALM + OWNER + b"JPY").digest()
    assert wallet_stream(MINE) == sha256(b"wallet/stream\x00" + MINE).digest()
    assert transfer_id(X1) == sha256(b"wallet/xfer\x00" + X1).digest()
    hashed = MINE + THEIRS + (500).to_bytes(8, "big") + (7).to_bytes(8, "big") + X1
    assert approval_hash(MINE, THEIRS, 500, 7, X1) == sha256(b"wallet/approval\x00" + hashed).digest()


def test_a_wallet_is_of_one_realm_owner_and_currency() -> None:
    assert len({wallet_id(a, b, c) for a in (REALM, OTHER) for b in (REALM, OTHER) for c in ("JPY", "USD")}) == 8


def test_bodies_have_the_listed_keys_in_the_listed_order() -> None:
    id_, to, ref = b"\x58\x20" + MINE, b"\x58\x20" + THEIRS, b"\x63ref\x41r"
    start = b"\x69wallet_id" + id_
    assert OPENED.encode() == (
        b"\xa5" + start + b"\x68realm_id\x58\x20" + REALM + b"\x66ctx_id\x58\x20" + OWNER
        + b"\x68currency\x63JPY\x6acreated_at\x1a" + (3 * DAY).to_bytes(4, "big")
    )  # fmt: skip
    assert Close(MINE, 1).encode() == b"\xa2" + start + b"\x62ts\x01"
    assert Deposit(MINE, 5, 1, b"r").encode() == b"\xa4" + start + b"\x66amount\x05\x62ts\x01" + ref
    assert Withdraw(MINE, 5, 1).encode() == b"\xa3" + start + b"\x66amount\x05\x62ts\x01"
    transfer = Transfer(MINE, THEIRS, 5, 1, X1, cbor.encode({"note": "x"}))
    assert transfer.encode() == (
        b"\xa6" + start + b"\x6cto_wallet_id" + to + b"\x66amount\x05\x62ts\x01\x6btransfer_id\x58\x20" + X1
        + b"\x68metadata\xa1\x64note\x61x"
    )  # fmt: skip
    assert Adjust(MINE, -5, 1, "why").encode() == b"\xa4" + start + b"\x65delta\x24\x62ts\x01\x66reason\x63why"
    assert Limit(MINE, 9, 1).encode() == b"\xa3" + start + b"\x6bdaily_limit\x09\x62ts\x01"
    assert Limit(MINE, None, 1).encode() == b"\xa2" + start + b"\x62ts\x01"
    assert Freeze(MINE, 1, "x").encode() == b"\xa3" + start + b"\x62ts\x01\x66reason\x61x"
    assert Unfreeze(MINE, 1).encode() == b"\xa2" + start + b"\x62ts\x01"


@pytest.mark.parametrize(
    "event",
    [
        replace(OPENED, wallet_id=THEIRS),
        replace(OPENED, realm_id=OTHER),
        replace(OPENED, currency="USD"),
        replace(OPENED, currency="¥"),
    ],
)
def test_an_open_whose_wallet_id_is_not_its_own_does_not_decode(event: Open) -> None:
    with pytest.raises(ValueError, match=r"wallet\.open\.v1"):
        event.encode()
    body = event.LAYOUT.write(event.LAYOUT.fields_of(event))
    with pytest.raises(Malformed):
        Open.decode(body)
    (entry,) = log(OPENED)
    folded = fold(WALLETS, [replace(entry, body=body)])
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


@pytest.mark.parametrize("metadata", [b"\x80", b"\x01", b"\x61a", b"\xf6", b"\xa1\x61a\xf9\x00\x00", b"\xa0\x00"])
def test_metadata_is_a_map_or_is_not_there(metadata: bytes) -> None:
    with pytest.raises(ValueError, match="metadata"):
        Transfer(MINE, THEIRS, 5, 1, X1, metadata).encode()


@pytest.mark.parametrize("delta", [-1 - U64_MAX, -1, 0, 1, U64_MAX])
def test_a_correction_is_any_signed_integer_of_64_bits(delta: int) -> None:
    event = Adjust(MINE, delta, 1, "")
    assert Adjust.decode(event.encode()) == event


@pytest.mark.parametrize("delta", [-2 - U64_MAX, U64_MAX + 1])
def test_a_correction_beyond_64_bits_cannot_be_sent(delta: int) -> None:
    with pytest.raises(ValueError, match="delta"):
        Adjust(MINE, delta, 1, "").encode()


def test_an_opened_wallet_is_empty_and_its_limit_runs_from_when_it_was_made() -> None:
    assert mine(OPENED) == Wallet(exists=True, last_limit_reset_ts=3 * DAY)


def test_opening_again_changes_nothing() -> None:
    again = replace(OPENED, created_at=9 * DAY)
    assert mine(OPENED, Deposit(MINE, 5, TODAY), again) == mine(OPENED, Deposit(MINE, 5, TODAY))
    assert codes(OPENED, again) == [(2, WalletCode.ALREADY_OPEN)]


@pytest.mark.parametrize(
    "event",
    [
        Close(MINE, 1),
        Deposit(MINE, 1, 1),
        Withdraw(MINE, 0, 1),
        Transfer(MINE, THEIRS, 0, 1, X1),
        Transfer(THEIRS, MINE, 1, 1, X1),
        Adjust(MINE, 1, 1, ""),
        Freeze(MINE, 1),
        Unfreeze(MINE, 1),
    ],
)
def test_an_unopened_wallet_accepts_only_a_limit(event: Event) -> None:
    assert codes(event) == [(1, WalletCode.NO_WALLET)]
    assert after(event).states == {}
    assert mine(Limit(MINE, 5, 7)) == Wallet(daily_limit=5, last_limit_reset_ts=7)
    assert mine(Limit(MINE, 5, 7), OPENED) == mine(OPENED)


@pytest.mark.parametrize(
    "event",
    [
        Deposit(MINE, 1, 1),
        Withdraw(MINE, 0, 1),
        Transfer(MINE, THEIRS, 0, 1, X1),
        Transfer(THEIRS, MINE, 1, 1, X1),
        Adjust(MINE, 1, 1, ""),
    ],
)
def test_a_closed_wallet_moves_no_money(event: Event) -> None:
    closed = (OPENED, Deposit(MINE, 10, 1), Close(MINE, 2))
    assert codes(*closed, event) == [(4, WalletCode.CLOSED)]
    assert mine(*closed, event) == mine(*closed) == replace(mine(*closed[:2]), closed=True)


def test_a_closed_wallet_can_still_be_frozen_and_limited_and_never_opens_again() -> None:
    state = mine(OPENED, Close(MINE, 1), Freeze(MINE, 1), Limit(MINE, 3, 1), OPENED)
    assert (state.closed, state.frozen, state.daily_limit) == (True, True, 3)


def test_a_frozen_wallet_accepts_credits_but_no_debits() -> None:
    frozen = (OPENED, Deposit(MINE, 10, 1), Freeze(MINE, 2))
    assert codes(*frozen, Withdraw(MINE, 1, 3)) == [(4, WalletCode.FROZEN)]
    assert codes(*frozen, Transfer(MINE, THEIRS, 1, 3, X1)) == [(4, WalletCode.FROZEN)]
    taken = (*frozen, Deposit(MINE, 1, 3), Transfer(THEIRS, MINE, 2, 3, X1), Adjust(MINE, -5, 3, "fee"))
    assert mine(*taken).balance == 8
    assert codes(*taken, Unfreeze(MINE, 4), Withdraw(MINE, 8, 5)) == []


@pytest.mark.parametrize(
    ("debit", "enough"),
    [
        (lambda amount: Withdraw(MINE, amount, TODAY), 10),
        (lambda amount: Transfer(MINE, THEIRS, amount, TODAY, X1), 10),
        (lambda amount: Adjust(MINE, -amount, TODAY, ""), 10),
    ],
)
def test_a_balance_is_never_overdrawn(debit, enough: int) -> None:  # type: ignore[no-untyped-def]
    funded = (OPENED, Deposit(MINE, enough, TODAY))
    assert mine(*funded, debit(enough)).balance == 0
    assert codes(*funded, debit(enough + 1)) == [(3, WalletCode.INSUFFICIENT_FUNDS)]
    assert mine(*funded, debit(enough + 1)) == mine(*funded)
    assert [fault.stream_seq for fault in violations(after(*funded, debit(enough + 1)).faults)] == [3]


def test_a_daily_limit_counts_what_goes_out_until_the_day_changes() -> None:
    start = (OPENED, Deposit(MINE, 1000, TODAY), Limit(MINE, 10, TODAY))
    spent = (*start, Withdraw(MINE, 4, TODAY), Transfer(MINE, THEIRS, 6, TODAY + DAY - 1, X1))
    assert (mine(*spent).pending_daily_spent, mine(*spent).last_limit_reset_ts) == (10, TODAY)
    assert codes(*spent, Withdraw(MINE, 1, TODAY + 1)) == [(6, WalletCode.DAILY_LIMIT_EXCEEDED)]
    tomorrow = (*spent, Withdraw(MINE, 10, TODAY + DAY))
    assert (mine(*tomorrow).pending_daily_spent, mine(*tomorrow).last_limit_reset_ts) == (10, TODAY + DAY)
    assert codes(*start, Withdraw(MINE, 11, TODAY)) == [(4, WalletCode.DAILY_LIMIT_EXCEEDED)]


def test_a_debit_above_the_limit_resets_nothing() -> None:
    spent = (OPENED, Deposit(MINE, 100, TODAY), Limit(MINE, 10, TODAY), Withdraw(MINE, 4, TODAY))
    assert mine(*spent, Withdraw(MINE, 11, TODAY + DAY)) == mine(*spent)


def test_without_a_limit_nothing_is_counted() -> None:
    free = (OPENED, Deposit(MINE, 100, TODAY), Withdraw(MINE, 50, TODAY))
    assert (mine(*free).pending_daily_spent, mine(*free).last_limit_reset_ts) == (0, 3 * DAY)
    assert codes(*free, Limit(MINE, 10, TODAY), Withdraw(MINE, 10, TODAY)) == []


def test_removing_the_limit_keeps_the_count_and_allows_all_debits() -> None:
    cleared = (
        OPENED,
        Deposit(MINE, 100, TODAY),
        Limit(MINE, 10, TODAY),
        Withdraw(MINE, 10, TODAY),
        Limit(MINE, None, TODAY),
        Withdraw(MINE, 60, TODAY),
    )
    state = mine(*cleared)
    assert (state.balance, state.daily_limit, state.pending_daily_spent) == (30, None, 10)


def test_credits_and_corrections_do_not_count_against_the_limit() -> None:
    state = mine(OPENED, Limit(MINE, 5, TODAY), Transfer(THEIRS, MINE, 50, TODAY, X1), Adjust(MINE, -20, TODAY, ""))
    assert (state.balance, state.pending_daily_spent, state.last_limit_reset_ts) == (30, 0, 3 * DAY)


def test_a_first_limit_starts_the_count_where_no_time_is_set() -> None:
    unset = replace(OPENED, created_at=0)
    assert mine(unset, Limit(MINE, 5, TODAY)).last_limit_reset_ts == TODAY
    assert mine(unset, Limit(MINE, None, TODAY)).last_limit_reset_ts == 0
    assert mine(OPENED, Limit(MINE, 5, TODAY)).last_limit_reset_ts == 3 * DAY


def test_a_transfer_counts_once_for_each_wallet_and_direction() -> None:
    funded = (OPENED, Deposit(MINE, 100, TODAY))
    once = Transfer(MINE, THEIRS, 10, TODAY, X1)
    assert mine(*funded, once, once, replace(once, amount=90)).balance == 90
    assert [fault.kind for fault in after(*funded, once, once).faults] == [FaultKind.COPY]
    back = Transfer(THEIRS, MINE, 10, TODAY, X1)
    assert mine(*funded, once, back, back).balance == 100
    assert mine(*funded, once, replace(once, transfer_id=X2)).balance == 80


def test_a_refused_transfer_stays_refused_under_its_id() -> None:
    said = (
        OPENED,
        Transfer(MINE, THEIRS, 10, TODAY, X1),
        Deposit(MINE, 10, TODAY),
        Transfer(MINE, THEIRS, 10, TODAY, X1),
    )
    assert mine(*said).balance == 10
    assert [fault.kind for fault in after(*said).faults] == [FaultKind.REFUSED, FaultKind.COPY]


def test_a_withdrawal_with_the_same_ref_is_the_same_withdrawal_and_a_deposit_is_not() -> None:
    funded = (OPENED, Deposit(MINE, 50, TODAY, b"r"), Deposit(MINE, 50, TODAY, b"r"))
    assert mine(*funded).balance == 100
    drawn = (*funded, Withdraw(MINE, 10, TODAY, b"r"), Withdraw(MINE, 10, TODAY, b"r"), Withdraw(MINE, 5, TODAY, b"s"))
    assert mine(*drawn).balance == 85
    assert mine(*funded, Withdraw(MINE, 10, TODAY), Withdraw(MINE, 10, TODAY)).balance == 80


def test_a_transfer_to_itself_is_a_debit_as_in_the_algorithm() -> None:
    assert mine(OPENED, Deposit(MINE, 10, 1), Transfer(MINE, MINE, 4, 1, X1)).balance == 6


def test_both_wallets_of_one_stream_take_their_side_of_a_transfer() -> None:
    other = Open(THEIRS, REALM, OTHER, "JPY", 0)
    folded = fold(WALLETS, log(OPENED, other, Deposit(MINE, 10, 1), Transfer(MINE, THEIRS, 4, 1, X1)))
    assert [folded.state(one).balance for one in (MINE, THEIRS)] == [6, 4]
    assert folded.faults == []


def test_a_fold_of_one_wallet_ignores_the_other_side_of_transfers() -> None:
    incoming = LogLine(Transfer(THEIRS, MINE, 4, 1, X1), parent_id=msg_id(70))
    assert after(OPENED, incoming).faults == []
    assert [fault.reason for fault in fold(WALLETS, log(OPENED, incoming)).faults] == [WalletCode.NO_WALLET]


def test_metadata_and_attachments_change_no_balance() -> None:
    plain = Transfer(THEIRS, MINE, 4, 1, X1)
    noted = replace(plain, metadata=cbor.encode({"amount": 999}))
    assert mine(OPENED, plain) == mine(OPENED, noted)


def test_a_currency_that_the_deployment_does_not_allow_opens_no_wallet() -> None:
    yen, dollars = Wallets(currencies=["JPY"]), Wallets(currencies=["USD"])
    entries = log(OPENED, Deposit(MINE, 1, 1))
    assert fold(yen, entries).state(MINE).balance == 1
    assert [fault.reason for fault in fold(dollars, entries).faults] == [
        WalletCode.INVALID_CURRENCY,
        WalletCode.NO_WALLET,
    ]
    assert fold(dollars, entries).states == {}
    assert len({wallets.settings() for wallets in (yen, dollars, WALLETS, ONLY_MINE)}) == 4


def test_a_balance_may_exceed_64_bits() -> None:
    state = mine(OPENED, *[Deposit(MINE, U64_MAX, 1)] * 3, Adjust(MINE, -1, 1, ""))
    assert state.balance == 3 * U64_MAX - 1
    assert Wallet.decode(state.encode()) == state


def bridged(entries: list[FoldEntry]) -> list[LogLine]:
    """What a bridge writes on the other hub: each event byte for byte, with the original as its parent."""
    steps = [ONLY_MINE.read(entry) for entry in entries]
    return [
        LogLine(step[0].event, step[0].entry.origin, client=2) for step in steps if isinstance(step, tuple) and step
    ]


def test_a_bridged_copy_of_a_wallet_has_the_same_state_however_often_it_is_bridged() -> None:
    here = log(OPENED, Deposit(MINE, 100, TODAY), Transfer(MINE, THEIRS, 40, TODAY, X1), Adjust(MINE, -7, TODAY, "fee"))
    copies = bridged(here)
    there = fold(ONLY_MINE, log(*copies, *copies, copies[1]))
    assert there.states == fold(ONLY_MINE, here).states
    assert state_hash(ONLY_MINE, there.states) == state_hash(ONLY_MINE, fold(ONLY_MINE, here).states)
    assert {fault.kind for fault in there.faults} == {FaultKind.COPY}


def test_a_copy_mirrored_back_to_its_origin_is_ignored() -> None:
    here = log(OPENED, Deposit(MINE, 100, TODAY))
    back = log(*bridged(log(*bridged(here), epoch=9)), start=3)
    folded = fold(ONLY_MINE, [*here, *back])
    assert folded.state(MINE).balance == 100
    assert [fault.reason for fault in folded.faults] == ["a copy of entry 1", "a copy of entry 2"]


def test_of_two_events_with_one_parent_the_first_counts() -> None:
    first = LogLine(Transfer(THEIRS, MINE, 4, 1, X1), msg_id(70))
    assert mine(OPENED, first, LogLine(Transfer(THEIRS, MINE, 9, 1, X2), msg_id(70))).balance == 4
    assert mine(OPENED, first, LogLine(Deposit(MINE, 9, 1), msg_id(70))).balance == 4
    assert mine(OPENED, first, LogLine(Deposit(MINE, 9, 1), msg_id(71))).balance == 13


def test_events_of_both_hubs_make_one_state() -> None:
    here = log(OPENED, Deposit(MINE, 100, TODAY))
    there = log(*bridged(here), Deposit(MINE, 5, TODAY))
    assert fold(ONLY_MINE, there).state(MINE).balance == 105


def test_the_balance_at_any_place_is_read_without_replay(tmp_path: Path) -> None:
    entries = log(OPENED, *(Deposit(MINE, number, TODAY) for number in range(1, 300)))
    with Cache(tmp_path / "w", WALLETS) as cache:
        cache.extend(entries, root(entries))
        with cache.reading() as timeline:
            for place in (1, 2, 16, 17, 255, 300):
                assert timeline.state(MINE, At(0, place)).balance == place * (place - 1) // 2
            assert WALLETS.run(timeline.state(MINE, At(0, 100)), timeline.fold(MINE, At(0, 101), At(0, 300))) == (
                timeline.state(MINE)
            )


def test_preview_and_fold_apply_the_same_wallet_rules() -> None:
    (draft,) = log(Withdraw(MINE, 5, TODAY), start=3)
    step = FoldStep(MINE, draft, Withdraw(MINE, 5, TODAY))
    poor, rich = (after(OPENED, Deposit(MINE, amount, TODAY)) for amount in (4, 5))
    assert ONLY_MINE.refusal(poor.state(MINE), step) == WalletCode.INSUFFICIENT_FUNDS
    assert ONLY_MINE.refusal(rich.state(MINE), step) is None
    assert len(poor.add(draft)) == len(rich.add(draft)) == 1
    assert (len(poor.faults), len(rich.faults)) == (1, 0)
