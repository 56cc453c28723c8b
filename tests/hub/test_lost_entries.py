"""A hub whose directory was replaced by an older copy: clients that hold later receipts make it notice."""

import json
import shutil
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.hub.client import START, Clock, Hub, make_dir, running
from veen.core import Malformed, Receipt, SigningKey, receipt
from veen.core.envelopes import ReceiptCheck
from veen.core.recovery import RecoveryList
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage import fsck, recovery
from veen.storage.fsck import FsckVerdict


@pytest.fixture
def rolled_back(tmp_path: Path) -> tuple[Path, list[Receipt]]:
    """A directory that is a copy made after 3 of 5 entries, and the receipts of all 5."""
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        writer = hub.writer()
        receipts = writer.send_many(3)
    shutil.copytree(data_dir, tmp_path / "copy")
    with running(data_dir) as hub:
        writer.hub = hub
        receipts += writer.send_many(2)
    shutil.rmtree(data_dir)
    (tmp_path / "copy").rename(data_dir)
    return data_dir, receipts


def metric(hub: Hub, name: str) -> float:
    lines = hub.get("/metrics").body.decode().splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name} ")))


def test_a_receipt_beyond_the_log_stops_its_label_also_after_a_restart(
    rolled_back: tuple[Path, list[Receipt]],
) -> None:
    data_dir, receipts = rolled_back
    for run in range(2):
        with running(data_dir) as hub:
            if run == 0:
                answer = hub.post("/tooling/receipt-check", receipts[-1]).read(ReceiptCheck)
                assert answer == ReceiptCheck(receipts[-1].label, 5, 3, False)
            refused = hub.submit(hub.writer().message()).error().refused()
            assert (refused.code, refused.retry_after) == ("E.UNAVAILABLE", 60)
            assert "signed entries of the label that it no longer has" in str(refused)
            assert "lost_entries" in hub.get("/readyz").json()["bad_states"]
            assert "signed entries that it no longer has" in str(hub.status()["trouble"])
            assert hub.writer("another").send().stream_seq == run + 1
    assert fsck.check(data_dir).verdict is FsckVerdict.CLEAN


def test_a_receipt_that_the_log_has_changes_nothing(rolled_back: tuple[Path, list[Receipt]]) -> None:
    data_dir, receipts = rolled_back
    with running(data_dir) as hub:
        answer = hub.post("/tooling/receipt-check", receipts[2]).read(ReceiptCheck)
        assert answer == ReceiptCheck(receipts[2].label, 3, 3, True)
        assert hub.writer().send().stream_seq == 4
    assert not list((data_dir / "evidence").iterdir())


def test_a_receipt_of_another_key_is_refused(rolled_back: tuple[Path, list[Receipt]]) -> None:
    data_dir, receipts = rolled_back
    last = receipts[-1]
    forged = receipt.sign(
        SigningKey.generate(),
        label=last.label,
        stream_seq=last.stream_seq,
        leaf_hash=last.leaf_hash,
        mmr_root=last.mmr_root,
        hub_ts=last.hub_ts,
    )
    with running(data_dir) as hub:
        assert hub.post("/tooling/receipt-check", forged).refusal()[:2] == (403, "E.FORBIDDEN")
        assert hub.writer().send().stream_seq == 4


def test_a_receipt_that_differs_from_the_log_is_stored_as_an_equivocation(
    rolled_back: tuple[Path, list[Receipt]],
) -> None:
    data_dir, receipts = rolled_back
    with running(data_dir) as hub:
        hub.writer().send_many(2)
        answer = hub.post("/tooling/receipt-check", receipts[-1]).read(ReceiptCheck)
        assert answer == ReceiptCheck(receipts[-1].label, 5, 5, False)
        assert hub.status()["equivocations"] == 1


def test_a_prev_ack_ahead_of_the_log_is_refused_counted_and_logged_once(
    rolled_back: tuple[Path, list[Receipt]], capfd: pytest.CaptureFixture[str]
) -> None:
    data_dir, _ = rolled_back
    with running(data_dir) as hub:
        writer = hub.writer()
        for _ in range(3):
            refusal = hub.submit(writer.message(prev_ack=5)).refusal()
            assert refusal[1:] == ("E.SEQ", refusal[2], "PREV_ACK")
        assert metric(hub, "veen_prev_ack_ahead_total") == 3
        assert "prev_ack_ahead" in hub.get("/readyz").json()["bad_states"]
        assert hub.get("/readyz").status == 200
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "prev_ack_ahead" in line]
    (entered,) = [line for line in lines if line["event"] == "bad_state_entered"]
    assert (entered["prev_ack"], entered["last_seq"]) == (5, 3)


def test_a_recovery_releases_the_label_and_old_receipts_change_nothing_more(
    rolled_back: tuple[Path, list[Receipt]],
) -> None:
    data_dir, receipts = rolled_back
    with running(data_dir) as hub:
        hub.post("/tooling/receipt-check", receipts[-1])
        assert hub.submit(hub.writer().message()).error().refused().code == "E.UNAVAILABLE"
    done = recovery.recover(Disk(), data_dir, START + 1000)
    said = done.log.statement.recovery
    with running(data_dir, Clock(START + 10)) as hub:  # the clock was set back: the old key must not sign
        identity = hub.service.hub_metadata.identity
        for seq in (4, 5, 6):
            answer = hub.post("/tooling/receipt-check", receipts[-1]).read(ReceiptCheck)
            assert answer == ReceiptCheck(receipts[-1].label, 5, seq - 1, False)
            fresh = hub.writer().send()
            assert fresh.stream_seq == seq
            assert identity.verify_receipt(fresh).key_id == said.new_key_id
        assert hub.status()["equivocations"] == 0
        assert "lost_entries" not in hub.get("/readyz").json()["bad_states"]
        (shown,) = hub.get(f"/tooling/recoveries?label={receipts[0].label.hex()}").read(RecoveryList).recoveries
        assert shown.size_of(receipts[0].label, identity) == 3
        (other,) = hub.get(f"/tooling/recoveries?label={bytes(32).hex()}").read(RecoveryList).recoveries
        assert other.size_of(bytes(32), identity) == 0


def test_a_hub_does_not_start_while_a_recovery_is_unfinished(rolled_back: tuple[Path, list[Receipt]]) -> None:
    data_dir, _ = rolled_back
    (data_dir / "recoveries").mkdir()
    (data_dir / "recoveries" / "pending").touch()
    with pytest.raises(Malformed, match="recovery of this directory is not finished; run `veen hub recover` again"):
        HubService(HubConfig(data_dir, port=0))
