"""A journal that lost groups: the hub does not start, and never signs two receipts for one place."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.hubs import History, Hub, QuickDisk, receipts, small_history
from veen.core import Malformed, Receipt, Unavailable
from veen.storage import fsck, journal, rotation
from veen.storage.fsck import FsckVerdict
from veen.storage.index import MARKED, Index
from veen.storage.journal import JournalIncomplete
from veen.storage.paths import Folders


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return small_history(tmp_path_factory.mktemp("template") / "hub")


def crashed(history: History, root: Path, caught_up: int = 9) -> list[bytes]:
    """A directory of a killed hub, with groups that only the journal has. Returns all receipts."""
    hub = Hub(history.fresh(root))
    found = []
    for number, group in enumerate(history.groups):
        found += receipts(hub.submit(group))
        if number == caught_up:
            hub.catch_up()
    hub.abandon()
    return found


def remove_segments(root: Path) -> None:
    for path in (root / "journal").iterdir():
        path.unlink()


def cut_segment(root: Path) -> None:
    os.truncate(max((root / "journal").iterdir()), 5000)


def remove_segments_and_index(root: Path) -> None:
    remove_segments(root)
    shutil.rmtree(root / "index")


def remove_mark(root: Path) -> None:
    (root / "journal.mark").unlink()


def remove_mark_and_segments(root: Path) -> None:
    remove_mark(root)
    remove_segments(root)


def keep_only_log_and_keys(root: Path) -> None:
    remove_mark(root)
    remove_segments_and_index(root)


LOSSES = [
    remove_segments,
    cut_segment,
    remove_segments_and_index,
    remove_mark,
    remove_mark_and_segments,
    keep_only_log_and_keys,
]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_hub_that_lost_its_journal_does_not_start(
    history: History, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    lose(root)
    before = kept_files(root)
    report = fsck.check(root)
    assert report.verdict is FsckVerdict.DAMAGED
    assert any("may have been acknowledged" in found.what for found in report.findings), report.findings
    for _ in range(2):
        with pytest.raises(JournalIncomplete, match="may have been acknowledged"):
            Hub(root)
    assert kept_files(root) == before


@pytest.mark.parametrize("lose", LOSSES)
def test_the_key_of_a_hub_that_lost_its_journal_cannot_be_rotated(
    history: History, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    lose(root)
    before = kept_files(root)
    with pytest.raises((JournalIncomplete, Unavailable)):  # without an index it is unavailable
        rotation.rotate_key(QuickDisk(), Folders(root), 2**40, 0)
    assert kept_files(root) == before, "a hand-over was written that leaves out signed entries"


def test_a_key_cannot_be_rotated_during_a_recovery(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    folders = Folders(root)
    folders.recovery_pending.parent.mkdir()
    folders.recovery_pending.touch()
    with pytest.raises(Malformed, match="a recovery of this directory is not finished"):
        rotation.rotate_key(QuickDisk(), folders, 2**40, 0)


def kept_files(root: Path) -> dict[Path, bytes]:
    """All files, except those that every start may write."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "fault.txt")
    return {path: path.read_bytes() for path in paths if path.parts[len(root.parts)] != "index"}


@pytest.mark.parametrize("without_index", [False, True])
def test_a_journal_and_mark_that_are_older_than_the_log_are_refused(
    history: History, tmp_path: Path, without_index: bool
) -> None:
    root, older = tmp_path / "hub", tmp_path / "older"
    hub = Hub(history.fresh(root))
    for number, group in enumerate(history.groups):
        hub.submit(group)
        if number == 5:
            shutil.copytree(root, older)
    hub.catch_up()
    hub.abandon()
    shutil.rmtree(root / "journal")
    shutil.copytree(older / "journal", root / "journal")
    shutil.copy(older / "journal.mark", root / "journal.mark")
    if without_index:
        shutil.rmtree(root / "index")
    assert fsck.check(root).verdict is FsckVerdict.DAMAGED
    with pytest.raises(JournalIncomplete, match="replaced by an older copy"):
        Hub(root)


def test_a_hub_starts_again_once_its_journal_is_back(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    given = crashed(history, root)
    shutil.copytree(root / "journal", tmp_path / "copy")
    remove_segments(root)
    with pytest.raises(JournalIncomplete):
        Hub(root)
    shutil.copytree(tmp_path / "copy", root / "journal", dirs_exist_ok=True)
    hub = Hub(root)
    kept = [hub.lookup.entry(one.label, one.stream_seq) for one in map(Receipt.decode, given)]
    assert [found.receipt for found in kept if found] == given
    hub.close()


def test_a_hub_that_stopped_needs_no_journal(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    hub = Hub(root)
    hub.catch_up()
    hub.close()
    assert not list((root / "journal").iterdir())
    shutil.rmtree(root / "index")
    assert fsck.check(root).verdict is FsckVerdict.REPAIRABLE
    Hub(root).close()
    assert fsck.check(root).verdict is FsckVerdict.CLEAN


def test_an_older_index_does_not_make_the_hub_cut_its_log(history: History, tmp_path: Path) -> None:
    """Groups continue with their numbers after a stop, so an index that ends before them is rebuilt."""
    root = tmp_path / "hub"
    hub = Hub(history.fresh(root))
    half = len(history.groups) // 2
    given = [one for group in history.groups[:half] for one in receipts(hub.submit(group))]
    hub.catch_up()
    hub.close()
    shutil.copytree(root / "index", tmp_path / "older")
    hub = Hub(root)
    given += [one for group in history.groups[half:] for one in receipts(hub.submit(group))]
    hub.catch_up()
    hub.close()
    shutil.rmtree(root / "index")
    shutil.copytree(tmp_path / "older", root / "index")
    hub = Hub(root)
    kept = [hub.lookup.entry(one.label, one.stream_seq) for one in map(Receipt.decode, given)]
    assert [found.receipt for found in kept if found] == given
    hub.close()


def test_a_directory_of_an_earlier_version_gets_a_mark_at_its_first_start(history: History, tmp_path: Path) -> None:
    """Such a directory has neither a mark nor the row that says that there must be one."""
    root = tmp_path / "hub"
    given = crashed(history, root)
    remove_mark(root)
    index = Index(root / "index")
    with index.write() as rows:
        rows.put_number(MARKED, 0)
        rows.commit()
    index.close()
    assert fsck.check(root).verdict is FsckVerdict.CLEAN
    hub = Hub(root)
    kept = [hub.lookup.entry(one.label, one.stream_seq) for one in map(Receipt.decode, given)]
    assert [found.receipt for found in kept if found] == given
    hub.abandon()
    remove_segments(root)
    with pytest.raises(JournalIncomplete):
        Hub(root)


@pytest.mark.parametrize("seed", range(12))
def test_a_journal_that_was_killed_cut_removed_or_rolled_back_never_costs_a_receipt(
    history: History, tmp_path: Path, seed: int
) -> None:
    """The start is refused, or every receipt is still that of its place."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    root, older = tmp_path / "hub", tmp_path / "older"
    places: dict[tuple[bytes, int], bytes] = {}
    hub = Hub(history.fresh(root))
    copied = rng.randrange(1, len(history.groups))
    for number, group in enumerate(history.groups):
        for receipt in receipts(hub.submit(group)):
            opened = Receipt.decode(receipt)
            assert places.setdefault((opened.label, opened.stream_seq), receipt) == receipt
        if rng.random() < 0.4:
            hub.catch_up()
        if number == copied:
            shutil.copytree(root, older)
        if rng.random() < 0.15:
            hub.abandon()
            hub = Hub(root)
    hub.abandon()
    damage(rng, root, older)
    try:
        hub = Hub(root)
    except Malformed:
        return
    for (label, stream_seq), receipt in places.items():
        found = hub.lookup.entry(label, stream_seq)
        assert found is not None
        assert found.receipt == receipt
    hub.close()


def damage(rng: random.Random, root: Path, older: Path) -> None:
    """Harm the journal in one of the ways in which it is lost."""
    paths = [path for _, path in journal.segments(root / "journal")]
    match rng.randrange(5):
        case 0:
            pass  # killed only
        case 1:
            path = rng.choice(paths)
            os.truncate(path, rng.randrange(path.stat().st_size))
        case 2:
            for path in rng.sample(paths, rng.randint(1, len(paths))):
                path.unlink()
        case 3:
            shutil.rmtree(root / "journal")
            shutil.copytree(older / "journal", root / "journal")
        case _:
            shutil.copy(older / "journal.mark", root / "journal.mark")
            remove_segments(root)
    if rng.random() < 0.5:
        QuickDisk().unlink(root / "index" / "data.mdb")
