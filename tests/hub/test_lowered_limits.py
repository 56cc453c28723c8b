"""Limits that the operator lowers: an event of the log, exact on replay, and a registry file that follows it."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.hub.client import TOKEN, Clock, Hub, Reply, make_dir, running, until
from tests.hub.disks import FullDisk, QuickDisk
from veen.client.trust import HubStatus
from veen.core import Limits, wire_json
from veen.core.profile import LOWERABLE, EarlierLimits, LimitRegistry, LoweredLimits
from veen.storage import fork, fsck, metadata
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders

BEFORE = Limits(max_body_bytes=3000, max_checkpoint_interval=4)
AFTER = replace(BEFORE, max_body_bytes=1000)
LARGE, SMALL = bytes(2000), bytes(500)


def lower(hub: Hub, wanted: Limits, token: str = TOKEN) -> Reply:
    return hub.post("/tooling/limits", wanted, authorization=f"Bearer {token}")


def registry(data_dir: Path) -> LimitRegistry:
    return metadata.read_metadata(Folders(data_dir)).limit_registry


class NoRegistryDisk(QuickDisk):
    """Refuses to write one file, as if the hub died before that."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.tried = False

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = 0o644) -> None:
        if path.name == self._name:
            self.tried = True
            raise OSError(5, "Input/output error", str(path))
        super().write_file(path, data, mode)


def test_a_lowered_limit_applies_to_later_entries_and_earlier_ones_stay_valid(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, limits=BEFORE), Clock()
    with running(data_dir, clock, QuickDisk()) as hub:
        writer = hub.writer()
        for _ in range(5):
            writer.send(LARGE)
        receipt = lower(hub, AFTER).receipt()
        assert hub.status()["limits"] == wire_json.to_json(AFTER)
        assert HubStatus.read(hub.status()).earlier_limits == (EarlierLimits(receipt.hub_ts, BEFORE),)
        writer.send(LARGE)  # the second in which the limits were lowered
        clock.now += 1
        assert hub.submit(writer.message(LARGE)).refusal()[1:] == ("E.SIZE", "structural", "FIELD_SIZE")
        writer.send(SMALL)
        until(lambda: registry(data_dir).limits == AFTER)
    assert registry(data_dir) == LimitRegistry(AFTER, (EarlierLimits(receipt.hub_ts, BEFORE),))
    assert not fsck.check(data_dir).findings
    with running(data_dir, clock, QuickDisk()) as hub:
        again = replace(writer, hub=hub)
        assert hub.submit(again.message(LARGE)).refusal()[1] == "E.SIZE"
        again.send(SMALL)


RAISED = [
    (replace(BEFORE, max_body_bytes=3001), "max_body_bytes is 3000 and can only be lowered, not set to 3001"),
    (replace(BEFORE, max_checkpoint_interval=3), "max_checkpoint_interval is fixed when the data directory is created"),
    (replace(BEFORE, max_epoch_skew_sec=1), "max_epoch_skew_sec is fixed"),
    (BEFORE, "no limit would change"),
]


def test_a_limit_cannot_be_raised_and_only_the_operator_lowers_one(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path, limits=BEFORE)
    with running(data_dir, disk=QuickDisk()) as hub:
        for wanted, why in RAISED:
            error = lower(hub, wanted).error()
            assert (error.code, hub.status()["entries"]) == ("E.CONFLICT", 0)
            assert why in error.message
        assert lower(hub, AFTER, "someone").error().code == "E.UNAUTHORIZED"
        lower(hub, replace(AFTER, max_client_id_lifetime_sec=50)).receipt()
        error = lower(hub, AFTER).error()
        assert "max_client_id_lifetime_sec is 50 and can only be lowered, not set to no limit" in error.message
    assert not (data_dir / "limits.json.draft").exists()


@pytest.mark.parametrize("caught_up", [True, False], ids=["in the log", "only in the journal"])
@pytest.mark.parametrize("name", ["limit-history.json", "limits.json"])
def test_a_registry_file_that_was_not_written_is_written_at_the_next_start(
    tmp_path: Path, name: str, caught_up: bool
) -> None:
    data_dir, clock = make_dir(tmp_path, limits=BEFORE), Clock()
    disk = NoRegistryDisk(name)
    hub = Hub(data_dir, clock, disk).start()
    stopped = hub.stop if caught_up else hub.abandon
    receipt = lower(hub, AFTER).receipt()
    until(lambda: bool(hub.status()) and disk.tried)
    stopped()
    assert registry(data_dir).limits == BEFORE
    checked = fsck.check(data_dir)
    assert checked.verdict is FsckVerdict.CLEAN
    assert [finding.artifact for finding in checked.findings] == ["limits.json"] * caught_up
    with running(data_dir, clock, QuickDisk()) as again:
        assert again.status()["limits"] == wire_json.to_json(AFTER)
        clock.now += 1
        assert again.submit(again.writer().message(LARGE)).refusal()[1] == "E.SIZE"
    assert registry(data_dir) == LimitRegistry(AFTER, (EarlierLimits(receipt.hub_ts, BEFORE),))
    assert not fsck.check(data_dir).findings


def test_limits_that_the_journal_did_not_take_stay_as_they_were(tmp_path: Path) -> None:
    disk, clock = FullDisk(), Clock()
    data_dir = make_dir(tmp_path, limits=BEFORE)
    with running(data_dir, clock, disk) as hub:
        disk.full = True
        assert lower(hub, AFTER).status == 503
        disk.full = False
        clock.now += 1
        hub.writer().send(LARGE)
        assert hub.status()["limits"] == wire_json.to_json(BEFORE)
    assert registry(data_dir) == LimitRegistry(BEFORE)


def test_a_fork_keeps_the_history_of_its_origin_and_can_lower_further(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, limits=BEFORE), Clock()
    with running(data_dir, clock, QuickDisk()) as hub:
        for _ in range(5):
            hub.writer().send(LARGE)
        first = lower(hub, AFTER).receipt()
    clock.now += 10
    made = tmp_path / "fork"
    fork.fork(Disk(), data_dir, made, None, int(clock.now))
    assert registry(made) == registry(data_dir)
    further = replace(AFTER, max_body_bytes=600)
    with running(made, clock, QuickDisk()) as hub:
        clock.now += 1
        hub.writer("t").send(bytes(900))
        second = lower(hub, further).receipt()
        until(lambda: registry(made).limits == further)
    expected = LimitRegistry(further, (EarlierLimits(first.hub_ts, BEFORE), EarlierLimits(second.hub_ts, AFTER)))
    assert registry(made) == expected
    assert not fsck.check(made).findings
    shutil.rmtree(made / "index")
    with running(made, clock, QuickDisk()) as hub:
        assert hub.service.rules.limits_in_force.registry == expected
    assert not fsck.check(made).findings


def test_an_event_states_every_limit_and_lowers_at_least_one() -> None:
    event = LoweredLimits(BEFORE, AFTER)
    assert LoweredLimits.decode(event.encode()) == event
    for wanted, why in RAISED:
        with pytest.raises(ValueError, match=why[:20]):
            LoweredLimits(BEFORE, wanted).encode()
    assert all(hasattr(BEFORE, name) for name in LOWERABLE)


def test_two_changes_in_one_second_are_one_row_of_the_history() -> None:
    further = replace(AFTER, max_hdr_bytes=100)
    one = LimitRegistry(BEFORE).lowered(LoweredLimits(BEFORE, AFTER), 7)
    two = one.lowered(LoweredLimits(AFTER, further), 7)
    assert (two.at(7), two.at(8)) == (BEFORE, further)
    replayed = two.lowered(LoweredLimits(BEFORE, AFTER), 7).lowered(LoweredLimits(AFTER, further), 7)
    assert replayed == two
