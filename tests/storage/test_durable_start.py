"""After a start, nothing that the hub has read can be lost in a power cut. The lab found what is tested here."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from lab.disk import Call, Died, Fault, Platter, SimulatedDisk, Survival
from tests.storage.hubs import History, Hub, receipts
from veen.core import Receipt, Refused
from veen.storage import fsck, journal
from veen.storage.fsck import FsckVerdict
from veen.storage.journal import JournalBroken


class Machine:
    """A data directory on a simulated disk, with a hub that can be started again."""

    def __init__(self, place: Path, history: History) -> None:
        self.root = history.fresh(place / "hub")
        self.platter = Platter(place)
        self.is_met: Callable[[Call], bool] = lambda call: False
        self.fault = Fault.DIE_BEFORE

    def start(self) -> Hub:
        self.disk = SimulatedDisk(self.platter, lambda call: self.fault if self.is_met(call) else None)
        return Hub(self.root, self.disk)

    def fail(self, fault: Fault, artifact: str, name: str) -> None:
        """Every such call has this fault from now on."""
        self.fault, self.is_met = fault, lambda call: (call.artifact, call.name) == (artifact, name)

    def heal(self) -> None:
        self.is_met = lambda call: False

    def kill(self, hub: Hub) -> None:
        hub.abandon()
        self.disk.kill()
        self.heal()

    def lose_power(self, hub: Hub) -> None:
        hub.abandon()
        self.disk.cut_power(Survival())


@pytest.fixture
def machine(place: Path, history: History) -> Machine:
    return Machine(place, history)


@pytest.mark.parametrize("fault", [Fault.DIE_BEFORE, Fault.FAILED_SYNC])
def test_a_group_that_was_not_synced_is_durable_after_the_next_start(
    machine: Machine, history: History, fault: Fault
) -> None:
    """Otherwise the next hub acknowledges the group as a duplicate, and a power cut removes it."""
    hub = machine.start()
    receipts(hub.submit(history.groups[0]))
    machine.fail(fault, "journal", "sync")
    with pytest.raises((Died, JournalBroken)):
        hub.submit(history.groups[1])
    machine.kill(hub)
    hub = machine.start()
    found = {label: hub.entries(label) for label in hub.store.pending.labels}
    if fault is Fault.DIE_BEFORE:
        assert sum(map(len, found.values())) == len(history.groups[0]) + len(history.groups[1])
    machine.lose_power(hub)
    hub = machine.start()
    assert {label: hub.entries(label) for label in found} == found
    hub.close()


def test_a_segment_without_groups_does_not_stop_the_next_start(
    machine: Machine, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write to a new segment failed, and the segments before it were removed."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 512)
    hub = machine.start()
    accepted = [Receipt.decode(one) for one in receipts(hub.submit(history.groups[0]))]
    writes = count()
    machine.fault = Fault.EIO
    machine.is_met = lambda call: (call.artifact, call.name) == ("journal", "write_at") and next(writes) > 0
    assert all(isinstance(one, Refused) for one in hub.submit(history.groups[1]))
    machine.heal()
    hub.catch_up()
    machine.lose_power(hub)
    hub = machine.start()
    for receipt in accepted:
        assert hub.entries(receipt.label)[receipt.stream_seq - 1][1] == receipt.encode()
    hub.close()
    assert fsck.check(machine.root, isolated=False).verdict is FsckVerdict.CLEAN


def test_a_mark_that_was_not_synced_is_durable_before_segments_are_removed(
    machine: Machine, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut leaves the old mark, which names segments that are gone."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 512)
    hub = machine.start()
    for group in history.groups[:3]:
        receipts(hub.submit(group))
    machine.fail(Fault.DIE_BEFORE, "journal mark", "sync")
    with pytest.raises(Died):
        hub.catch_up()
    machine.kill(hub)
    hub = machine.start()
    hub.abandon()
    machine.platter.synced_folder(machine.root / "journal")  # the removals survive
    machine.disk.cut_power(Survival())
    machine.start().close()


def test_a_segment_whose_creation_was_interrupted_does_not_replace_the_last_one(
    machine: Machine, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the mark names a segment as the last one that the next catch-up has removed."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 512)
    hub = machine.start()
    receipts(hub.submit(history.groups[0]))
    machine.fail(Fault.DIE_AFTER, "folder journal", "sync_folder")
    with pytest.raises(Died):
        hub.submit(history.groups[1])
    machine.kill(hub)
    hub = machine.start()
    hub.catch_up()
    hub.abandon()
    machine.disk.kill()
    machine.start().close()
    assert fsck.check(machine.root, isolated=False).verdict is FsckVerdict.CLEAN
