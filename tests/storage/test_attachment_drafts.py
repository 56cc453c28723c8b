"""An upload in pieces is stored completely or not at all, however it ends."""

import errno
import os
from contextlib import suppress
from itertools import count
from mmap import mmap
from pathlib import Path

import pytest

from lab.disk import Died
from plumbing.durable import Disk
from tests.storage.disks import DyingDisk, ForgetfulDisk, Last
from tests.storage.hubs import QuickDisk
from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.storage.attachment_store import AttachmentDraft, AttachmentStore
from veen.storage.paths import Folders

PIECES = (b"first", b"", b"second" * 1000, b"third")
WHOLE = b"".join(PIECES)


def store_at(root: Path, disk: Disk | None = None) -> AttachmentStore:
    (root / "attachments").mkdir(exist_ok=True)
    return AttachmentStore(disk or QuickDisk(), Folders(root))


def bring(store: AttachmentStore, coid: bytes = h(WHOLE)) -> bool:
    draft = AttachmentDraft(store, coid)
    try:
        for piece in PIECES:
            draft.write(piece)
        return draft.keep()
    finally:
        draft.drop()


def drafts(root: Path) -> list[Path]:
    return list((root / "attachments" / "drafts").glob("*"))


def test_pieces_make_one_attachment(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert bring(store)
    assert store.get(h(WHOLE)) == WHOLE
    assert not bring(store)
    assert drafts(tmp_path) == []


def test_pieces_that_are_not_what_the_name_says_leave_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    with pytest.raises(Malformed):
        bring(store, h(WHOLE[:-1]))
    assert [path for path in (tmp_path / "attachments").rglob("*") if path.is_file()] == []


def test_an_attachment_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    draft = AttachmentDraft(store_at(tmp_path), h(WHOLE))
    draft.write(WHOLE)
    assert len(drafts(tmp_path)) == 1
    draft.drop()
    draft.drop()
    assert drafts(tmp_path) == []


def test_two_drafts_of_one_attachment_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    one, two, three = (AttachmentDraft(store, h(WHOLE)) for _ in range(3))
    for piece in PIECES:
        one.write(piece)
        two.write(piece)
        three.write(b"something else")
    assert (one.keep(), two.keep()) == (True, False)
    with pytest.raises(Malformed):
        three.keep()
    for draft in (one, two, three):
        draft.drop()
    assert (store.get(h(WHOLE)), drafts(tmp_path)) == (WHOLE, [])


def test_a_draft_of_an_earlier_run_is_not_continued(tmp_path: Path) -> None:
    AttachmentDraft(store_at(tmp_path), h(WHOLE)).write(b"left behind")
    store = store_at(tmp_path)
    assert bring(store)
    assert store.get(h(WHOLE)) == WHOLE


def test_a_start_removes_what_a_crash_left(tmp_path: Path) -> None:
    left = store_at(tmp_path)
    bring(left)
    AttachmentDraft(left, h(b"other")).write(b"oth")
    store = store_at(tmp_path)
    store.remove_drafts()
    assert drafts(tmp_path) == []
    assert store.get(h(WHOLE)) == WHOLE


def test_a_directory_without_drafts_has_none_to_remove(tmp_path: Path) -> None:
    store_at(tmp_path).remove_drafts()
    assert drafts(tmp_path) == []


class RefusingDisk(QuickDisk):
    """Fails call number `n`."""

    def __init__(self, n: int) -> None:
        self.left = n

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        self._count()
        return super().open_append(path, mode)

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data[: len(data) // 2])
        self._count()
        super().write(fd, data[len(data) // 2 :])

    def truncate(self, fd: int, size: int) -> None:
        self._count()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._count()

    def sync_folder(self, folder: Path) -> None:
        self._count()

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        super().replace(source, target)


def test_a_disk_that_refuses_any_step_is_unavailable_and_leaves_no_draft(tmp_path: Path) -> None:
    for n in count(1):
        root = tmp_path / str(n)
        root.mkdir()
        disk = RefusingDisk(n)
        store, said = store_at(root, disk), ""
        try:
            assert bring(store)
        except Unavailable as error:
            said = str(error)
        assert ("No space left" in said) == (disk.left <= 0)
        assert drafts(root) == []
        assert store_at(root).get(h(WHOLE)) in (None, WHOLE)
        assert bring(store_at(root)) in (True, False)
        if disk.left > 0:
            assert n > 8
            return


@pytest.mark.parametrize("last", Last)
@pytest.mark.parametrize("n", range(1, 14))
def test_a_crash_at_any_call_leaves_the_attachment_or_none(tmp_path: Path, n: int, last: Last) -> None:
    with suppress(Died):
        bring(store_at(tmp_path, DyingDisk(n, last)))
    store = store_at(tmp_path)
    store.remove_drafts()
    assert store.get(h(WHOLE)) in (None, WHOLE)
    assert drafts(tmp_path) == []
    bring(store)
    assert store.get(h(WHOLE)) == WHOLE


@pytest.mark.parametrize("n", range(1, 14))
def test_a_power_cut_at_any_call_leaves_the_attachment_or_none(tmp_path: Path, n: int) -> None:
    (tmp_path / "attachments").mkdir()
    disk = ForgetfulDisk(tmp_path, n)
    try:
        kept = bring(store_at(tmp_path, disk))
    except Died:
        kept = False
    disk.lose_power()
    store = store_at(tmp_path)
    store.remove_drafts()
    assert store.get(h(WHOLE)) in ((WHOLE,) if kept else (None, WHOLE))


@pytest.mark.parametrize("size", [0, 1, (1 << 16), (1 << 16) + 1, 3 << 20])
def test_a_mapped_attachment_is_what_was_put(tmp_path: Path, size: int) -> None:
    store = store_at(tmp_path)
    sealed = os.urandom(size)
    store.put(h(sealed), sealed)
    found = store.mapped(h(sealed))
    assert found is not None
    assert found[:] == sealed
    assert isinstance(found, mmap) == (size > 1 << 16)
    assert store.mapped(h(b"other")) is None
