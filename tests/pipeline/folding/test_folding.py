"""A fold over tables gives the state of a fold entry by entry, and reads only new entries."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from bench.entry_tables import Filler
from tests.overlays import identities, wallets
from tests.overlays.logs import LABEL, LogLine, label_of, log, msg_id
from tests.pipeline.damage import flip
from tests.pipeline.tables.logs import DOORS, filled, writes
from veen.core import Unavailable, Unverified
from veen.overlays import (
    AnyOverlay,
    At,
    FoldEntry,
    FoldStep,
    ShippedSummary,
    first_places,
    receive,
    registry,
    run,
    state_hash,
    summarise,
)
from veen.overlays import fold as fold_here
from veen.overlays.fold import summarise_piece
from veen.overlays.kv import KV, Write
from veen.overlays.queue import QUEUE, Ack
from veen.overlays.wallet import WALLETS, Wallets
from veen.overlays.wallet_ledger import Deposit, Open, Transfer, Withdraw, wallet_id
from veen.pipeline.folding import table_fold
from veen.pipeline.folding.table_fold import fold, summarize
from veen.pipeline.jobs import in_processes
from veen.pipeline.tables import Table, Tables
from veen.pipeline.tables.compaction import compact

OWNERS = [bytes([number]) * 32 for number in range(4)]
WALLET = [wallet_id(bytes(32), owner, "JPY") for owner in OWNERS]


def expected(overlay: Any, entries: Iterable[FoldEntry]) -> bytes:
    return state_hash(overlay, fold_here(overlay, entries).states)


def payments(random: Random, count: int) -> list[FoldEntry]:
    """Wallets with payments, refusals, copies and unreadable entries."""
    steps: list[LogLine] = [
        LogLine(Open(one, bytes(32), owner, "JPY", 1)) for one, owner in zip(WALLET, OWNERS, strict=True)
    ]
    for number in range(count):
        wallet, other = random.sample(WALLET, 2)
        event = random.choice(
            [
                Deposit(wallet, random.randrange(90), number),
                Withdraw(wallet, random.randrange(60), number, b"%d" % random.randrange(count)),
                Transfer(wallet, other, random.randrange(50), number, msg_id(random.randrange(2 * count))),
            ]
        )
        parent = msg_id(random.randrange(1, count)) if random.random() < 0.2 else None
        steps.append(
            LogLine(event, parent, sealed=random.random() < 0.05, spoil=b"\0" if random.random() < 0.05 else b"")
        )
    return log(*steps)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small pieces and narrow trees, so that little data has many of both."""
    monkeypatch.setattr(table_fold, "CHUNK_ENTRIES", 4)
    monkeypatch.setattr(table_fold, "FAN_IN", 2)
    monkeypatch.setattr(table_fold, "SMALL_BYTES", 0)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("seed", range(6))
def test_wallets_fold_to_the_same_state_in_steps_and_at_once(place: Path, seed: int) -> None:
    random = Random(seed)
    entries = payments(random, 60)
    filler, start = Filler(Tables(place), "pay"), 0
    while start < len(entries):
        end = start + random.randrange(1, 25)
        filler.add(entries[start:end], per_file=random.randrange(1, 9))
        found = fold(filler.tables, WALLETS.CLASS, "pay")
        assert found.state_hash == expected(WALLETS, entries[:end])
        assert found.read.entries == len(entries[start:end])
        start = end
    shutil.rmtree(filler.tables.own / "folds")
    for file in filler.tables.view().of(Table.STATE):
        assert file.state_hash == expected(WALLETS, entries)
    at = random.randrange(1, len(entries))
    assert fold(filler.tables, WALLETS.CLASS, "pay", at=At(0, at)).state_hash == expected(WALLETS, entries[:at])


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("seed", range(6))
def test_a_stored_summary_accounts_for_copies_of_all_earlier_entries(place: Path, seed: int) -> None:
    """Only parts with copies are summarized again; the stored result does not show that."""
    entries, filler = payments(Random(seed), 60), Filler(Tables(place), "pay")
    filler.add(entries)
    fold(filler.tables, WALLETS.CLASS, "pay")
    paths = sorted(filler.tables.own.glob("folds/*/*/*.summary"))
    assert len(paths) == 16
    copies = 0
    for path in paths:
        kept = receive(WALLETS, shipped := ShippedSummary.decode(path.read_bytes()))
        run_of = entries[shipped.first_seq - 1 : shipped.upto_seq]
        whole = summarise(WALLETS, run_of, first_places(WALLETS, entries[: shipped.upto_seq]))
        assert kept.parts == whole.parts
        assert sorted(map(repr, kept.faults)) == sorted(map(repr, whole.faults))
        copies += summarise(WALLETS, run_of, first_places(WALLETS, run_of)).parts != whole.parts
    assert copies > 1


@pytest.mark.parametrize("seed", range(6))
def test_one_pass_over_a_run_gives_the_same_summary_as_two(seed: int) -> None:
    entries = payments(Random(seed), 60)
    known = first_places(WALLETS, entries)
    summary, met = summarise_piece(WALLETS, entries)
    assert summary == summarise(WALLETS, entries, known)
    assert met.firsts == known
    nameless, met = summarise_piece(_Nameless(), entries)
    assert nameless.parts
    assert met.firsts == {}
    assert {part for part, _ in met.without_key} == nameless.parts.keys()


class _Nameless(Wallets):
    """Wallets whose steps have no keys."""

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        return ()


@pytest.mark.usefixtures("pieces")
def test_every_overlay_folds_any_log_to_the_state_of_an_entry_by_entry_fold(place: Path) -> None:
    """Most events belong to another overlay and are ignored."""
    entries = []
    for seed in range(4):
        entries += identities.random_history(Random(seed), 20)
        entries += wallets.random_history(Random(seed), 14)
        entries += log(*(event for _, event in writes(5)))
    mixed = [replace(entry, stream_seq=seq, hub_ts=seq, msg_id=msg_id(seq)) for seq, entry in enumerate(entries, 1)]
    filler = Filler(Tables(place), "mixed")
    filler.add(mixed, per_file=7)
    for overlay in registry():
        assert fold(filler.tables, overlay.CLASS, "mixed").state_hash == expected(overlay, mixed), overlay.CLASS


@pytest.mark.usefixtures("pieces")
def test_a_part_that_met_only_refusals_has_no_state(place: Path) -> None:
    entries = log(Ack(msg_id(77), msg_id(78)), Withdraw(WALLET[0], 5, 1), Deposit(WALLET[1], 5, 1))
    filler = Filler(Tables(place), "refused")
    filler.add(entries)
    both: tuple[AnyOverlay, ...] = (QUEUE, WALLETS)
    for overlay in both:
        assert fold(filler.tables, overlay.CLASS, "refused").states == fold_here(overlay, entries).states == {}


@pytest.mark.usefixtures("pieces")
def test_epochs_follow_each_other(place: Path) -> None:
    first = log(*(Write(b"k%d" % (n % 3), 0, b"%d" % n) for n in range(9)))
    second = log(*(Write(b"k%d" % (n % 4), 0, b"later %d" % n) for n in range(6)), epoch=1)
    assert (first[0].label, second[0].label) == (LABEL, label_of(1))
    filler = Filler(Tables(place), "kv")
    filler.add(first)
    filler.add(second[:2])
    assert fold(filler.tables, KV.CLASS, "kv").state_hash == expected(KV, first + second[:2])
    filler.add(second[2:])
    found = fold(filler.tables, KV.CLASS, "kv")
    assert (found.state_hash, found.read.entries) == (expected(KV, first + second), 4)
    assert fold(filler.tables, KV.CLASS, "kv", at=At(0, 5)).state_hash == expected(KV, first[:5])
    late = log(*(Write(b"late", 0, b"x") for _ in range(2)), start=10)
    filler.add(late)  # an entry in an epoch before the stored state
    assert fold(filler.tables, KV.CLASS, "kv").state_hash == expected(KV, first + late + second)


@pytest.mark.usefixtures("pieces")
def test_the_summary_of_a_range_applies_to_the_state_before_it(place: Path) -> None:
    entries = log(*(Write(b"k%d" % (n % 3), 0, b"%d" % n) for n in range(30)))
    filler = Filler(Tables(place), "kv")
    filler.add(entries, per_file=7)
    for first, last in ((1, 30), (1, 1), (5, 5), (9, 27), (30, 30)):
        whole = summarize(filler.tables, KV.CLASS, "kv", At(0, first), At(0, last))
        before = fold_here(KV, entries[: first - 1]).states
        assert run(KV, before, whole)[0] == fold_here(KV, entries[:last]).states


@pytest.mark.usefixtures("pieces")
def test_only_new_runs_are_read(place: Path) -> None:
    made = filled(place, count=40)
    made.load()
    first = fold(made.tables, KV.CLASS, DOORS)
    assert (first.read.chunks, first.read.entries, first.read.reused) == (11, 42, 0)
    again = fold(made.tables, KV.CLASS, DOORS)
    assert (again.read.chunks, again.read.entries, again.states) == (0, 0, first.states)
    made.log.say(writes(5, 900))
    made.load()
    compact(made.tables)
    later = fold(made.tables, KV.CLASS, DOORS)
    assert (later.read.chunks, later.read.entries) == (2, 5)
    assert later.bounds[0].upto_seq == 47
    assert later.bounds[0].mmr_root == made.tables.view().spans[later.bounds[0].label].mmr_root


@pytest.mark.usefixtures("pieces")
def test_a_fold_that_crashed_before_correcting_copies_is_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = log(*(LogLine(Deposit(WALLET[0], 1, 1), msg_id(99)) for _ in range(9)))
    opened = log(Open(WALLET[0], bytes(32), OWNERS[0], "JPY", 1))
    whole = opened + [replace(entry, stream_seq=entry.stream_seq + 1) for entry in entries]
    filler = Filler(Tables(place), "pay")
    filler.add(whole, per_file=3)
    monkeypatch.setattr(table_fold, "copied_in", _die)
    with pytest.raises(KeyboardInterrupt):
        fold(filler.tables, WALLETS.CLASS, "pay")
    monkeypatch.undo()
    monkeypatch.setattr(table_fold, "CHUNK_ENTRIES", 4)
    found = fold(filler.tables, WALLETS.CLASS, "pay")
    assert found.states[WALLET[0]].balance == 1
    assert found.state_hash == expected(WALLETS, whole)


def _die(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("pieces")
def test_summaries_of_another_root_are_not_used(place: Path) -> None:
    one = log(*(Write(b"k", 0, b"%d" % n) for n in range(10)))
    other = [
        replace(entry, msg_id=msg_id(500 + entry.stream_seq))
        for entry in log(*(Write(b"k", 0, b"x") for _ in range(10)))
    ]
    filler = Filler(Tables(place / "one"), "kv")
    filler.add(one)
    fold(filler.tables, KV.CLASS, "kv")
    liar = Filler(Tables(place / "other"), "kv")
    liar.add(other)
    shutil.copytree(place / "one" / "_veen" / "folds", place / "other" / "_veen" / "folds")
    assert fold(liar.tables, KV.CLASS, "kv").state_hash == expected(KV, other)


def test_processes_give_the_same_state(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_fold, "CHUNK_ENTRIES", 10)
    entries = payments(Random(1), 40)
    filler = Filler(Tables(place), "pay")
    filler.add(entries)
    assert fold(filler.tables, WALLETS.CLASS, "pay", in_processes(2)).state_hash == expected(WALLETS, entries)


def test_an_unverified_entry_ends_the_fold(place: Path) -> None:
    made = filled(place)
    path = next(
        one
        for one in sorted(made.log.folders.root.glob("log/chunk-*-0*[0-9].log"))
        if made.log.label(DOORS).hex() in one.name
    )
    flip(path, 400)
    made.load()
    with pytest.raises(Unverified, match="no state can be computed past it"):
        fold(made.tables, KV.CLASS, DOORS)


def test_tables_that_lack_a_row_are_not_folded(place: Path) -> None:
    made = filled(place)
    made.load()
    for file in made.tables.view().of(Table.QUARANTINE):
        (made.tables.root / file.path).unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        fold(made.tables, KV.CLASS, DOORS)


def test_an_unknown_stream_overlay_or_place_is_unavailable(place: Path) -> None:
    made = filled(place)
    made.load()
    with pytest.raises(Unavailable, match="no stream 'windows'"):
        fold(made.tables, KV.CLASS, "windows")
    with pytest.raises(Unavailable, match="no overlay of class nobody"):
        fold(made.tables, "nobody", DOORS)
    with pytest.raises(Unavailable, match="up to entry 22, not 23"):
        fold(made.tables, KV.CLASS, DOORS, at=At(0, 23))
