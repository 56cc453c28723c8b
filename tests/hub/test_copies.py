"""Clones, forks and changed limits: a data directory does not depend on its path."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import START, Clock, Hub, Writer, make_dir, running, until
from tests.hub.disks import NoLogDisk
from tests.hub.test_kill import ended, start
from veen.core import Limits, Profile, Rate, Receipt, SigningKey, Unavailable, naming, wire_json
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
)
from veen.core.hub_identity import ForkOrigin
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage import fork, fsck
from veen.storage.directory_reader import LogReader
from veen.storage.fsck_report import Severity


def receipt_at(hub: Hub, label: bytes, seq: int) -> Receipt:
    return hub.post("/v1/receipt", ReceiptRequest(label, seq)).read(ReceiptResponse).receipt


def check_given(hub: Hub, given: list[Receipt]) -> None:
    for one in given:
        assert receipt_at(hub, one.label, one.stream_seq) == one


def clean(data_dir: Path) -> None:
    assert fsck.check(data_dir).findings == []


# Clones.


def shown(hub: Hub) -> dict[str, Any]:
    return hub.status()


def test_a_copy_of_a_stopped_hubs_directory_is_the_same_hub(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        given = writer.send_many(20)
        hub.writer("other").send_many(3)
    shutil.copytree(data_dir, tmp_path / "copy")
    with running(data_dir, clock) as hub, running(tmp_path / "copy", clock) as copy:
        assert shown(copy) == shown(hub)
        check_given(copy, given)
        writer.hub = copy
        message = writer.message()
        # The same message gets the same place, root and signature, byte for byte.
        assert copy.submit(message).receipt() == hub.submit(message).receipt()
    clean(data_dir)
    clean(tmp_path / "copy")


def test_a_copy_of_an_idle_hubs_directory_is_the_same_hub(tmp_path: Path) -> None:
    """Entries that are only in the journal are copied, too."""
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock, NoLogDisk()) as hub:
        given = hub.writer().send_many(20)
        shutil.copytree(data_dir, tmp_path / "copy")
        before = shown(hub)
        with running(tmp_path / "copy", clock) as copy:
            assert copy.service.replayed == 20
            names = ("hub_id", "hub_pk", "identity", "limits", "profile_id", "labels", "entries")
            assert {name: shown(copy)[name] for name in names} == {name: before[name] for name in names}
            check_given(copy, given)
    clean(tmp_path / "copy")


def test_a_copy_without_its_index_is_the_same_hub(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        given = hub.writer().send_many(20)
        before = shown(hub)
    shutil.copytree(data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("index"))
    with running(tmp_path / "copy", clock) as copy:
        assert shown(copy) == before
        check_given(copy, given)


def test_a_copy_without_its_keys_can_be_read_and_does_not_start(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        given = hub.writer().send_many(5)
    shutil.copytree(data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("keys"))
    assert [finding.severity for finding in fsck.check(tmp_path / "copy").findings] == [Severity.KEYLESS]
    with LogReader(tmp_path / "copy") as reader:
        assert [entry.receipt for entry in reader.entries(given[0].label, 1, 5)] == [one.encode() for one in given]
    with pytest.raises(Unavailable, match=r"control\.seed cannot be read"):
        HubService(HubConfig(tmp_path / "copy", port=0), clocks=Clock().read)


# Forks.


@pytest.fixture
def source(tmp_path: Path) -> tuple[Path, Writer, list[Receipt]]:
    """A stopped hub with ten entries by one writer, some of them in closed chunks."""
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=4))
    with running(data_dir) as hub:
        writer = hub.writer()
        given = writer.send_many(10)
    return data_dir, writer, given


def test_a_fork_goes_on_under_its_own_key_where_the_other_hub_was(
    tmp_path: Path, source: tuple[Path, Writer, list[Receipt]]
) -> None:
    data_dir, writer, given = source
    hub_metadata = fork.fork(Disk(), data_dir, tmp_path / "fork", {writer.label: 7}, START + 50)
    clock = Clock(START + 60)
    with running(tmp_path / "fork", clock) as hub:
        status = hub.status()
        assert status["hub_id"] == hub_metadata.identity.hub_id.hex()
        assert status["routing_key"] == naming.routing_key(hub_metadata.lineage.identities[1].hub_id).hex()
        assert status["entries"] == 7
        assert hub.label("s") == writer.label
        check_given(hub, given[:7])
        assert hub.post("/v1/receipt", ReceiptRequest(writer.label, 8)).status == 404
        # The writer knows its position when the hub was forked.
        writer.hub, writer.client_seq, writer.prev_ack = hub, 7, 0
        more = writer.send_many(6)
        assert [one.stream_seq for one in more] == list(range(8, 14))
        for one in more:
            assert hub_metadata.identity.verify_receipt(one).hub_pk == hub.hub_pk
        proof = hub.post("/v1/proof", ProofRequest(writer.label, 13)).read(ProofResponse).mmr_proof
        assert proof.leaf_hash == more[-1].leaf_hash
    clean(tmp_path / "fork")
    with running(tmp_path / "fork", clock) as hub:
        check_given(hub, given[:7] + more)
        writer.hub = hub
        assert writer.send().stream_seq == 14
    clean(tmp_path / "fork")
    clean(data_dir)
    with running(data_dir) as hub:
        check_given(hub, given)


def test_a_fork_passes_on_its_origins_checkpoints_and_makes_its_own_after_them(
    tmp_path: Path, source: tuple[Path, Writer, list[Receipt]]
) -> None:
    data_dir, writer, _ = source
    hub_metadata = fork.fork(Disk(), data_dir, tmp_path / "fork", {writer.label: 7}, START + 50)
    old, new = hub_metadata.lineage.identities[1], hub_metadata.identity
    with running(tmp_path / "fork", Clock(START + 60)) as hub:
        writer.hub, writer.client_seq, writer.prev_ack = hub, 7, 0
        writer.send_many(3)

        def asked(upto_seq: int) -> Any:
            return hub.post("/v1/checkpoint", CheckpointRequest(writer.label, upto_seq))

        for upto_seq, by in ((4, old), (7, old), (8, new), (10, new)):
            found = asked(upto_seq).read(CheckpointResponse).checkpoint
            assert found.upto_seq == upto_seq
            by.verify_checkpoint(found, Profile())
        for upto_seq in (1, 6):
            assert asked(upto_seq).error().code == "E.NOT_FOUND"
        origin = ForkOrigin.decode((tmp_path / "fork" / "origin.cbor").read_bytes())
        assert asked(7).read(CheckpointResponse).checkpoint == origin.hubs[0].checkpoints[0]


def test_a_fork_admits_by_the_capabilities_of_its_own_operator(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted()
        writer.send_many(3)
    fork.fork(Disk(), data_dir, tmp_path / "fork", None, START + 50)
    with running(tmp_path / "fork", Clock(START + 60), admission=Admission.CAPABILITY) as hub:
        writer.hub = hub
        assert hub.submit(writer.message()).refusal()[3] == "CAP_MISSING"
        again = hub.granted()
        assert again.send().stream_seq == 4
    clean(tmp_path / "fork")


def test_a_fork_starts_from_the_command_line(tmp_path: Path, source: tuple[Path, Writer, list[Receipt]]) -> None:
    data_dir, *_ = source
    fork.fork(Disk(), data_dir, tmp_path / "fork", None, START)
    process, port = start(tmp_path / "fork")
    try:
        hub = Hub(tmp_path / "fork")
        hub.port = port
        assert hub.status()["entries"] == 10
    finally:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0
    clean(tmp_path / "fork")


# Changed limits.


def set_limits(data_dir: Path, limits: Limits) -> None:
    (data_dir / "limits.json").write_bytes(wire_json.encode(limits))


LOWERED = replace(Limits(), max_cap_rate_per_sec=10, max_cap_rate_burst=10, max_body_bytes=64, max_hdr_bytes=64)


@pytest.mark.parametrize("in_the_log", [False, True], ids=["journal", "log"])
def test_a_hub_starts_after_its_limits_were_lowered_below_what_it_logged(tmp_path: Path, in_the_log: bool) -> None:
    data_dir = make_dir(tmp_path)
    capped: dict[str, Any] = {"admission": Admission.CAPABILITY}
    with running(data_dir, disk=None if in_the_log else NoLogDisk(), **capped) as hub:
        fast, slow = hub.granted("fast", rate=Rate(1000, 1000)), hub.granted("slow", rate=Rate(5, 5))
        given = [fast.send(b"1"), slow.send(b"1"), fast.send(b"2")]
    set_limits(data_dir, LOWERED)
    for restart in range(2):
        with running(data_dir, disk=None if in_the_log or restart else NoLogDisk(), **capped) as hub:
            check_given(hub, given)
            fast.hub = slow.hub = hub
            refused = hub.submit(fast.message(b"3"))
            assert refused.refusal() == (403, "E.CAP", "auth", "CAP_INVALID")
            given.append(slow.send(b"more"))
    set_limits(data_dir, Limits())
    with running(data_dir, **capped) as hub:
        fast.hub = hub
        assert fast.send(b"3").stream_seq == 3  # it was always there
        check_given(hub, given)


def test_a_hub_comes_back_without_its_index_after_its_limits_were_lowered(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, admission=Admission.CAPABILITY) as hub:
        fast = hub.granted(rate=Rate(1000, 1000))
        given = fast.send_many(3)
    set_limits(data_dir, LOWERED)
    shutil.rmtree(data_dir / "index")
    with running(data_dir, admission=Admission.CAPABILITY) as hub:
        check_given(hub, given)
        fast.hub = hub
        assert hub.submit(fast.message()).refusal()[3] == "CAP_INVALID"


def test_a_hub_that_compresses_serves_what_it_compressed(tmp_path: Path) -> None:
    limits = Limits(max_checkpoint_interval=4, chunk_zstd_level=3)
    data_dir, key = make_dir(tmp_path, limits=limits), SigningKey.generate()
    with running(data_dir) as hub:
        assert hub.status()["limits"]["chunk_zstd_level"] == 3
        writer = hub.writer(key=key)
        given = writer.send_many(18)
        until(lambda: len(list((data_dir / "log").glob("*.zst"))) == 4)
        check_given(hub, given)
    with running(data_dir) as hub:
        check_given(hub, given)
        writer.hub = hub
        assert writer.send().stream_seq == 19
    clean(data_dir)


def test_a_hub_that_does_not_compress_says_nothing_of_it(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        assert "chunk_zstd_level" not in hub.status()["limits"]
