"""Attachments are verified by their name, also with concurrent uploads."""

import os
import threading
from pathlib import Path

import pytest

from tests.storage.disks import ForgetfulDisk
from tests.storage.hubs import QuickDisk
from veen.core import Malformed
from veen.core.hashing import h
from veen.storage.attachment_store import AttachmentStore
from veen.storage.paths import Folders


@pytest.fixture
def store(tmp_path: Path) -> AttachmentStore:
    (tmp_path / "attachments").mkdir()
    return AttachmentStore(QuickDisk(), Folders(tmp_path))


def test_what_is_put_is_got(store: AttachmentStore) -> None:
    sealed = os.urandom(1000)
    assert store.put(h(sealed), sealed)
    assert not store.put(h(sealed), sealed)
    assert store.get(h(sealed)) == sealed
    assert store.get(h(b"other")) is None


@pytest.mark.parametrize("coid", [bytes(32), b"", h(b"sealed")[:31]])
def test_what_is_not_what_its_name_says_is_refused(store: AttachmentStore, coid: bytes, tmp_path: Path) -> None:
    with pytest.raises(Malformed):
        store.put(coid, b"sealed")
    assert list((tmp_path / "attachments").iterdir()) == []


def test_concurrent_uploads_of_one_attachment_do_not_disturb_each_other(store: AttachmentStore) -> None:
    sealed = os.urandom(300_000)
    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(store.put(h(sealed), sealed))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]
    assert store.get(h(sealed)) == sealed


def test_what_was_kept_survives_a_power_cut(tmp_path: Path) -> None:
    (tmp_path / "attachments").mkdir()
    disk = ForgetfulDisk(tmp_path)
    AttachmentStore(disk, Folders(tmp_path)).put(h(b"sealed"), b"sealed")
    disk.lose_power()
    assert AttachmentStore(QuickDisk(), Folders(tmp_path)).get(h(b"sealed")) == b"sealed"
