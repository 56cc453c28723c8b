"""Summaries that travel: of one overlay, one run, one root; and pieces whose copies are far apart."""

from dataclasses import replace

import pytest

from tests.overlays.logs import LogLine, log, msg_id, root
from tests.overlays.wallets import MINE, ONLY_MINE, OWNER, REALM, THEIRS
from veen.core import Malformed, Unverified
from veen.overlays import (
    AnyOverlay,
    EventFault,
    FaultKind,
    FoldEntry,
    ShippedSummary,
    first_places,
    fold,
    merge,
    merge_first_places,
    receive,
    run,
    ship,
    summarise,
)
from veen.overlays.crdt import G_COUNTER, LWW, Increment
from veen.overlays.fold import SummaryPart
from veen.overlays.kv import KV
from veen.overlays.wallet import WALLETS
from veen.overlays.wallet_ledger import Deposit, Open, Transfer, Withdraw

A, B = bytes(32), b"\xff" * 32


def shipped(entries: list[FoldEntry]) -> ShippedSummary:
    return ship(G_COUNTER, summarise(G_COUNTER, entries, first_places(G_COUNTER, entries)), entries, root(entries))


def test_a_shipped_summary_has_its_overlay_range_and_root() -> None:
    entries = log(Increment(B, 1), Increment(A, 2), start=5)
    sent = shipped(entries)
    assert (sent.class_name, sent.version, sent.first_seq, sent.upto_seq) == ("crdt.gcnt", 1, 5, 6)
    assert (sent.label, sent.epoch, sent.mmr_root) == (entries[0].label, 0, root(entries))
    assert [part.part for part in sent.parts] == [A, B]
    assert receive(G_COUNTER, ShippedSummary.decode(sent.encode())).parts == {A: 2, B: 1}


@pytest.mark.parametrize("overlay", [LWW, KV, WALLETS])
def test_a_summary_of_another_overlay_is_refused(overlay: AnyOverlay) -> None:
    with pytest.raises(Unverified, match=r"made by crdt\.gcnt"):
        receive(overlay, shipped(log(Increment(A, 1))))


@pytest.mark.parametrize("change", [{"version": 2}, {"settings": b"x"}, {"class_name": "kv"}])
def test_a_summary_of_other_rules_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(Unverified):
        receive(G_COUNTER, replace(shipped(log(Increment(A, 1))), **change))  # type: ignore[arg-type]


def test_a_part_that_does_not_decode_is_refused() -> None:
    sent = replace(shipped(log(Increment(A, 1))), parts=(SummaryPart(A, b"\x61x"),))
    with pytest.raises(Malformed):
        receive(G_COUNTER, sent)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": (SummaryPart(B, b"\x01"), SummaryPart(A, b"\x01"))},
        {"parts": (SummaryPart(A, b"\x01"), SummaryPart(A, b"\x01"))},
        {"first_seq": 3},
        {"faults": (EventFault(0, 2, "copy", ""), EventFault(0, 1, "copy", ""))},
        {"faults": (EventFault(0, 2, "whim", ""),)},
    ],
)
def test_a_shipped_summary_has_one_encoding(change: dict[str, object]) -> None:
    sent = replace(shipped(log(Increment(A, 1), Increment(B, 1))), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"summary|fault"):
        sent.encode()


@pytest.mark.parametrize("entries", [log(Increment(A, 1))[:1] + log(Increment(A, 1), start=3)])
def test_entries_with_a_gap_cannot_be_shipped(entries: list[FoldEntry]) -> None:
    with pytest.raises(ValueError, match="not consecutive"):
        shipped(entries)


def test_copies_in_different_pieces_count_once() -> None:
    entries = log(
        Increment(A, 5), Increment(B, 1), LogLine(Increment(A, 5), msg_id(1)), LogLine(Increment(A, 5), msg_id(1))
    )
    pieces = [entries[:2], entries[2:3], entries[3:]]
    found = [first_places(G_COUNTER, piece) for piece in pieces]
    known = merge_first_places(found[2], merge_first_places(found[1], found[0]))
    sums = [summarise(G_COUNTER, piece, known) for piece in pieces]
    whole = merge(G_COUNTER, sums[0], merge(G_COUNTER, sums[1], sums[2]))
    states, stuck = run(G_COUNTER, {}, whole)
    assert states == fold(G_COUNTER, entries).states == {A: 5, B: 1}
    assert stuck == ()
    assert [fault.kind for fault in whole.faults] == [FaultKind.COPY, FaultKind.COPY]
    assert list(whole.faults) == fold(G_COUNTER, entries).faults


def test_a_piece_that_overdraws_a_wallet_is_named_and_the_others_run() -> None:
    opened = Open(MINE, REALM, OWNER, "JPY", 0)
    entries = log(opened, Deposit(MINE, 5, 0), Withdraw(MINE, 9, 0), Deposit(MINE, 7, 0))
    known = first_places(ONLY_MINE, entries)
    states, stuck = run(ONLY_MINE, {}, summarise(ONLY_MINE, entries[:2], known))
    assert (states[MINE].balance, stuck) == (5, ())
    after, stuck = run(ONLY_MINE, states, summarise(ONLY_MINE, entries[2:], known))
    assert (after, stuck) == (states, (MINE,))


def test_a_transfer_mirrored_in_a_later_piece_is_debited_once() -> None:
    opened, paid = Open(MINE, REALM, OWNER, "JPY", 0), Transfer(MINE, THEIRS, 4, 0, A)
    entries = log(opened, Deposit(MINE, 10, 0), paid, paid, LogLine(paid, msg_id(3)))
    known = first_places(ONLY_MINE, entries)
    pieces = [summarise(ONLY_MINE, entries[at : at + 1], known) for at in range(5)]
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = merge(ONLY_MINE, whole, piece)
    assert run(ONLY_MINE, {}, whole)[0][MINE].balance == 6
