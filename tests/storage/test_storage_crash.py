"""A crash at every write: after any last call, every receipt that was sent is in the log, unchanged."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk, ForgetfulDisk, HastyDisk, Last
from tests.storage.hubs import History, Hub, place_of, receipts, small_history
from veen.core import Refused
from veen.storage import fsck, journal

# Small, so that the journal starts and removes segments within one history.
SEGMENT_BYTES = 4000

Given = dict[tuple[bytes, int], bytes]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", SEGMENT_BYTES)


def run(
    root: Path, disk: DyingDisk | ForgetfulDisk, history: History, given: Given, groups: range, catch_up_after: int
) -> None:
    """Send groups, record what was acknowledged, catch up, stop. Dies when the disk does."""
    hub: Hub | None = None
    try:
        hub = Hub(root, disk)
        for number in groups:
            for receipt in receipts(hub.submit(history.groups[number])):
                given[place_of(receipt)] = receipt
            if number % catch_up_after == catch_up_after - 1:
                hub.catch_up()
        hub.catch_up()
        hub.close()
    except Died:
        if hub:
            hub.abandon()
        raise


def check_after(root: Path, history: History, given: Given, where: str) -> None:
    """The next hub has every acknowledged entry, continues, and leaves a clean directory."""
    hub = Hub(root)
    for (label, seq), receipt in given.items():
        entry = hub.lookup.entry(label, seq)
        assert entry is not None, (where, seq)
        assert entry.receipt == receipt, (where, seq)
    hub.catch_up()
    for group in history.groups:  # unacknowledged messages are sent again; acknowledged ones are duplicates
        for outcome in hub.submit(group):
            if isinstance(outcome, Refused):
                assert outcome.detail_enum == "DUPLICATE", (where, outcome)
            else:
                given.setdefault(place_of(outcome), outcome)
    hub.catch_up()
    for (label, seq), receipt in given.items():
        entry = hub.lookup.entry(label, seq)
        assert entry is not None, (where, seq)
        assert entry.receipt == receipt, (where, seq)
    sent = sum(map(len, history.groups))
    with hub.store.index.read() as rows:
        assert sum(head.size for _, head in rows.labels()) == sent, where
    hub.close()
    report = fsck.check(root, isolated=False)
    assert report.verdict is fsck.FsckVerdict.CLEAN, (where, report.findings)


def sweep(
    root: Path,
    history: History,
    last: Last | None,
    step: int,
    catch_up_after: int = 4,
    forgetful: type[ForgetfulDisk] = ForgetfulDisk,
) -> Iterator[int]:
    """Die at every `step`th call in turn, until a run survives. `last` None is a power cut of a `forgetful` disk."""
    n = 1
    while True:
        history.fresh(root)
        given: Given = {}
        disk = forgetful(root, n) if last is None else DyingDisk(n, last)
        try:
            run(root, disk, history, given, range(len(history.groups)), catch_up_after)
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            if n % 3 == 0:  # a crash leaves no damage, even before the next start
                report = fsck.check(root, isolated=False)
                assert report.verdict is fsck.FsckVerdict.CLEAN, (n, last, report.findings)
            check_after(root, history, given, f"call {n}, {last}")
            yield n
            n += step
            continue
        assert disk.calls < n
        return


CASES = [Last.LOST, Last.HALF, Last.DONE, None]


# Dying after call n is nearly the same as before call n+1, so every other one is enough.
@pytest.mark.parametrize(("last", "step"), [(Last.LOST, 1), (Last.HALF, 1), (Last.DONE, 2), (None, 1)])
def test_a_receipt_once_returned_survives_a_crash_at_any_call(
    place: Path, short_history: History, last: Last | None, step: int
) -> None:
    assert len(list(sweep(place / "hub", short_history, last, step))) > 40


def test_a_power_cut_that_keeps_what_was_removed_and_loses_what_was_named_loses_no_receipt(
    place: Path, short_history: History
) -> None:
    assert len(list(sweep(place / "hub", short_history, None, 3, forgetful=HastyDisk))) > 20


@pytest.mark.parametrize("last", [Last.DONE, None])
def test_a_crash_while_recovering_from_a_crash_loses_nothing(place: Path, history: History, last: Last | None) -> None:
    """Die once during a catch-up, then at every call of the next run as well."""
    rng = random.Random(3)
    root, saved = place / "hub", place / "saved"
    for _ in range(3):
        given: Given = {}
        history.fresh(root)
        first = DyingDisk(rng.randrange(60, 160), Last.DONE)
        with pytest.raises(Died):
            run(root, first, history, given, range(len(history.groups)), 6)
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(root, saved)
        again = History(saved, ())
        for n in range(1, 200, 7):
            again.fresh(root)
            disk = ForgetfulDisk(root, n) if last is None else DyingDisk(n, last)
            try:
                run(root, disk, again, {}, range(0), 1)
            except Died:
                if isinstance(disk, ForgetfulDisk):
                    disk.lose_power()
                check_after(root, history, dict(given), f"call {n} of the second run")
                continue
            break


@pytest.mark.parametrize("last", CASES)
def test_a_crash_and_a_lost_index_together_lose_nothing(place: Path, history: History, last: Last | None) -> None:
    root = place / "hub"
    for n in range(5, 1000, 9):
        history.fresh(root)
        given: Given = {}
        disk = ForgetfulDisk(root, n) if last is None else DyingDisk(n, last)
        try:
            run(root, disk, history, given, range(len(history.groups)), 4)
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            shutil.rmtree(root / "index", ignore_errors=True)
            check_after(root, history, given, f"call {n}, {last}")
            continue
        break


@pytest.mark.slow
@pytest.mark.parametrize("streams", [2, 9])
@pytest.mark.parametrize("last", CASES)
def test_a_long_history_survives_a_crash_at_any_call(place: Path, streams: int, last: Last | None) -> None:
    long = small_history(place / "template", messages=160, streams=streams)
    for catch_up_after in (1, 3, 11):
        assert list(sweep(place / "hub", long, last, 5, catch_up_after))
