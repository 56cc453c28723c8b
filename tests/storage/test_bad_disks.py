"""A disk that is full or read-only from any call on: errors are reported, nothing is lost, and writing resumes."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.storage.disks import FailingFrom
from tests.storage.hubs import (
    NOW,
    SMALL,
    Client,
    Clock,
    History,
    Hub,
    QuickDisk,
    label_of,
    log_files,
    place_of,
    receipts,
)
from veen.core import Profile, Receipt, Refused, Unavailable
from veen.core.hashing import h
from veen.storage import fsck, metadata, rebuild, rotation
from veen.storage.attachment_store import AttachmentStore
from veen.storage.paths import Folders

Given = dict[tuple[bytes, int], bytes]


def check_given(hub: Hub, given: Given) -> None:
    for (label, seq), receipt in given.items():
        entry = hub.lookup.entry(label, seq)
        assert entry is not None
        assert entry.receipt == receipt


def started(root: Path, history: History, disk: QuickDisk, groups: int) -> tuple[Hub, Given]:
    hub, given = Hub(history.fresh(root), disk), {}
    for group in history.groups[:groups]:
        for one in receipts(hub.submit(group)):
            given[place_of(one)] = one
    return hub, given


BOTH = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])


@BOTH
@pytest.mark.parametrize("kept", ["history", "packed_history"])
def test_a_catch_up_that_fails_at_any_call_is_done_when_it_can_be(
    place: Path, request: pytest.FixtureRequest, kept: str, number: int
) -> None:
    history: History = request.getfixturevalue(kept)
    told: list[str] = []
    for n in range(1, 400):
        disk = FailingFrom(None, number)
        hub, given = started(place / "hub", history, disk, 8)
        hub.catch_up()
        for group in history.groups[8:]:
            for one in receipts(hub.submit(group)):
                given[place_of(one)] = one
        tail = hub.store.begin_catching_up()
        assert tail
        disk.calls, disk.n = 0, n
        try:
            hub.store.catch_up(tail)
        except Unavailable as error:
            told.append(str(error))
            check_given(hub, given)
            with pytest.raises(Unavailable):
                hub.store.catch_up(tail)
            disk.heal()
            hub.store.catch_up(tail)
        else:
            assert n > 30
            hub.close()
            break
        hub.store.end_catching_up()
        check_given(hub, given)
        hub.close()
        assert fsck.check(place / "hub", isolated=False).findings == [], n
    assert len(told) > 30
    assert set(told) == {f"the log cannot be written: {os.strerror(number)}"}


@BOTH
def test_a_hub_that_was_ended_while_its_disk_was_bad_comes_back_whole(
    place: Path, history: History, number: int
) -> None:
    for n in range(1, 100, 4):
        disk = FailingFrom(None, number)
        hub, given = started(place / "hub", history, disk, len(history.groups))
        tail = hub.store.begin_catching_up()
        assert tail
        disk.calls, disk.n = 0, n
        with suppress(Unavailable):
            hub.store.catch_up(tail)
        hub.abandon()
        again = Hub(place / "hub")
        check_given(again, given)
        again.catch_up()
        again.close()
        assert fsck.check(place / "hub", isolated=False).findings == [], n


@BOTH
def test_what_cannot_be_journalled_is_refused_and_reading_goes_on(place: Path, history: History, number: int) -> None:
    disk = FailingFrom(None, number)
    hub, given = started(place / "hub", history, disk, 6)
    hub.catch_up()
    disk.n = 0
    for _ in range(3):
        for outcome in hub.submit(history.groups[6]):
            assert isinstance(outcome, Refused)
            assert (outcome.code, outcome.retry_after) == ("E.UNAVAILABLE", 1)
            assert outcome.message == f"the journal cannot be written: {os.strerror(number)}"
    check_given(hub, given)
    disk.heal()
    for group in history.groups[6:]:
        for one in receipts(hub.submit(group)):
            given[place_of(one)] = one
    hub.catch_up()
    check_given(hub, given)
    hub.close()
    assert fsck.check(place / "hub", isolated=False).findings == []


def test_the_first_message_of_all_waits_for_room_too(place: Path, history: History) -> None:
    """There is no journal file yet."""
    disk = FailingFrom(None)
    hub = Hub(history.fresh(place / "hub"), disk)
    client, label = Client("ann", hub.rules), label_of(hub.rules, "stream 0")
    message = client.message(label)
    for n in range(1, 4):
        disk.calls, disk.n = 0, n
        (outcome,) = hub.submit([message])
        assert isinstance(outcome, Refused)
        assert outcome.code == "E.UNAVAILABLE"
    disk.heal()
    assert Receipt.decode(receipts(hub.submit([message]))[0]).stream_seq == 1
    hub.close()
    assert fsck.check(place / "hub", isolated=False).verdict is fsck.FsckVerdict.CLEAN


@BOTH
def test_an_attachment_without_room_is_refused_and_can_be_brought_again(place: Path, number: int) -> None:
    (place / "attachments").mkdir()
    told: list[str] = []
    for n in range(1, 20):
        disk = FailingFrom(n, number)
        store = AttachmentStore(disk, Folders(place))
        sealed = b"sealed %d" % n
        try:
            store.put(h(sealed), sealed)
        except Unavailable as error:
            told.append(str(error))
            disk.heal()
            store.put(h(sealed), sealed)
        assert store.get(h(sealed)) == sealed
    assert 3 < len(told) < 19
    assert set(told) == {f"the attachment cannot be written: {os.strerror(number)}"}


@BOTH
def test_an_index_that_cannot_be_made_again_is_made_when_it_can_be(place: Path, history: History, number: int) -> None:
    hub, given = started(place / "hub", history, QuickDisk(), len(history.groups))
    hub.catch_up()
    hub.close()
    files = log_files(place / "hub")
    shutil.rmtree(place / "hub" / "index")
    told: list[str] = []
    for n in range(1, 100):
        try:
            rebuild.rebuild_index(FailingFrom(n, number), Folders(place / "hub")).close()
        except Unavailable as error:
            told.append(str(error))
            continue
        break
    assert len(told) > 5
    assert set(told) == {f"the index cannot be rebuilt: {os.strerror(number)}"}
    again = Hub(place / "hub")
    check_given(again, given)
    again.close()
    assert log_files(place / "hub") == files


@BOTH
def test_a_directory_that_cannot_be_created_is_reported(place: Path, number: int) -> None:
    told: list[str] = []
    for n in range(1, 60):
        shutil.rmtree(place / "hub", ignore_errors=True)
        try:
            metadata.create(FailingFrom(n, number), place / "hub", Profile(), SMALL, NOW)
        except Unavailable as error:
            told.append(str(error))
            continue
        break
    assert 10 < len(told) < 59
    assert set(told) == {f"cannot create a data directory in {place / 'hub'}: {os.strerror(number)}"}


@BOTH
def test_a_key_that_cannot_be_rotated_stays(place: Path, history: History, number: int) -> None:
    root = history.fresh(place / "hub")
    before = metadata.read_metadata(Folders(root)).identity
    for n in (1, 2, 3):
        with pytest.raises(Unavailable, match=f"cannot be rotated: {os.strerror(number)}"):
            rotation.rotate_key(FailingFrom(n, number), Folders(root), NOW + 100, 0)
        assert metadata.read_metadata(Folders(root)).identity == before
    Hub(root, clock=Clock(NOW + 200)).close()
