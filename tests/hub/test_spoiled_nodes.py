"""Node files that were changed on disk: the hub never contradicts its own signatures."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.client import START, Clock, Hub, Reply, log_file, log_rows, make_dir, running
from tests.hub.disks import QuickDisk
from veen.core import Limits, MmrProof, Receipt, mmr, proof
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ConsistencyRequest,
    ProofAtRequest,
    ProofRequest,
    ProofResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.proof import Leaf
from veen.hub.read_api import InclusionPaths
from veen.storage import fork, fsck

ENTRIES = 9
NODES = mmr.node_count(ENTRIES)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, list[Receipt]]:
    """A data directory whose log has caught up, the label, and its receipts."""
    data_dir = make_dir(tmp_path_factory.mktemp("nodes"))
    with running(data_dir, disk=QuickDisk()) as hub:
        writer = hub.writer()
        receipts = writer.send_many(ENTRIES)
    return data_dir, writer.label, receipts


@pytest.fixture
def nodes(written: tuple[Path, bytes, list[Receipt]]) -> Iterator[Path]:
    """The label's node file, restored afterwards."""
    data_dir, label, _ = written
    path = data_dir / "index" / "nodes" / f"{label.hex()}.mmr"
    sound = path.read_bytes()
    assert len(sound) == NODES * 32
    yield path
    path.write_bytes(sound)
    (data_dir / "fault.txt").unlink(missing_ok=True)


def proofs(hub: Hub, label: bytes, given: list[Receipt]) -> Iterator[tuple[Reply, Callable[[], None]]]:
    """Every answer with a proof, and its check against the receipts."""

    def checking(reply: Reply, seq: int, upto: int) -> Callable[[], None]:
        def check() -> None:
            found = reply.read(ProofResponse).mmr_proof
            proof.verify_inclusion(found, Leaf.of(given[seq - 1]), given[upto - 1])

        return check

    for seq in range(1, ENTRIES + 1):
        reply = hub.post("/v1/proof", ProofRequest(label, seq))
        yield reply, checking(reply, seq, seq)
        reply = hub.post("/tooling/proof", ProofAtRequest(label, seq, ENTRIES))
        yield reply, checking(reply, seq, ENTRIES)
        reply = hub.post("/tooling/consistency", ConsistencyRequest(label, seq, ENTRIES))
        yield reply, checking(reply, seq, ENTRIES)
        page = hub.post("/v1/stream", StreamRequest(label, 1, seq, with_mmr_proof=True))

        def of_page(page: Reply = page, seq: int = seq) -> None:
            found = page.read(StreamResponse).mmr_proof
            assert isinstance(found, MmrProof)
            proof.verify_in_receipt(found, given[seq - 1])

        yield page, of_page


def check_all(hub: Hub, label: bytes, given: list[Receipt]) -> int:
    """Every checkpoint has its receipt's root; every proof is valid or was not sent. Returns how many were not."""
    identity, profile = hub.service.hub_metadata.identity, hub.service.rules.profile
    for receipt in given:
        reply = hub.post("/v1/checkpoint", CheckpointRequest(label, receipt.stream_seq))
        made = reply.read(CheckpointResponse).checkpoint
        identity.verify_checkpoint(made, profile)
        assert (made.upto_seq, made.mmr_root) == (receipt.stream_seq, receipt.mmr_root)
    kept_back = 0
    for reply, check in proofs(hub, label, given):
        if reply.status == 200:
            check()
            continue
        assert reply.refusal() == (500, "E.UNAVAILABLE", None, None)
        assert "veen fsck DIR" in reply.error().message
        kept_back += 1
    return kept_back


@pytest.mark.parametrize("node", range(NODES))
def test_a_wrong_node_is_never_signed_and_no_proof_of_it_leaves(
    written: tuple[Path, bytes, list[Receipt]], nodes: Path, node: int
) -> None:
    data_dir, label, given = written
    with running(data_dir, disk=QuickDisk()) as hub:
        spoiled = bytearray(nodes.read_bytes())
        spoiled[node * 32 + node] ^= 1 << node % 8
        nodes.write_bytes(spoiled)
        assert check_all(hub, label, given) > 0


def test_a_proof_that_was_requested_before_is_the_same_although_its_nodes_are_damaged(
    written: tuple[Path, bytes, list[Receipt]], nodes: Path
) -> None:
    data_dir, label, given = written
    with running(data_dir, disk=QuickDisk()) as hub:
        before = [reply.body for reply, _ in proofs(hub, label, given)]
        nodes.write_bytes(bytes(len(nodes.read_bytes())))
        assert check_all(hub, label, given) == 0
        assert [reply.body for reply, _ in proofs(hub, label, given)] == before


def test_the_cache_of_proofs_forgets_the_one_that_was_not_used_for_the_longest_time(
    written: tuple[Path, bytes, list[Receipt]],
) -> None:
    _, _, (first, *_) = written
    proof_of = {seq: MmrProof(bytes([seq]) * 32, (), ()) for seq in (1, 2, 3)}
    cache = InclusionPaths(most=2)
    cache.put(first, 1, proof_of[1])
    cache.put(first, 2, proof_of[2])
    assert cache.get(first, 1) == proof_of[1]
    cache.put(first, 3, proof_of[3])
    assert [cache.get(first, seq) for seq in (1, 2, 3)] == [proof_of[1], None, proof_of[3]]
    assert len(cache) == 2


@pytest.mark.parametrize("what", ["missing", "empty", "short"])
def test_a_truncated_node_file_is_damage_without_a_retry_time(
    written: tuple[Path, bytes, list[Receipt]], nodes: Path, what: str
) -> None:
    data_dir, label, given = written
    with running(data_dir, disk=QuickDisk()) as hub:
        data = nodes.read_bytes()
        nodes.unlink()
        if what != "missing":
            nodes.write_bytes(b"" if what == "empty" else data[:-32])
        assert check_all(hub, label, given) > 0


def test_wrong_nodes_are_reported_and_rebuilt_by_the_next_start(
    tmp_path: Path,
) -> None:
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=4))
    with running(data_dir, disk=QuickDisk()) as hub:
        writer = hub.writer()
        given = writer.send_many(ENTRIES)
    (path,) = (data_dir / "index" / "nodes").iterdir()
    data = bytearray(path.read_bytes())
    data[14 * 32] ^= 1  # the peak of the first eight leaves
    path.write_bytes(data)
    with log_file(tmp_path / "log") as log, running(data_dir, disk=QuickDisk()) as hub:
        assert check_all(hub, writer.label, given) > 0
        assert hub.get("/readyz").status == 200
    failed = [row for row in log_rows(log) if row["event"] == "bad_state_entered"]
    assert failed
    assert all(writer.label.hex() in row["error"] and "veen fsck DIR --repair" in row["error"] for row in failed)
    note = (data_dir / "fault.txt").read_text()
    assert note.count("\n") == 1  # recorded once, however many requests fail
    assert writer.label.hex() in note
    assert fsck.check(data_dir, isolated=False).verdict is fsck.FsckVerdict.REPAIRABLE
    with running(data_dir, Clock(), disk=QuickDisk()) as hub:
        assert check_all(hub, writer.label, given) == 0
    assert fsck.check(data_dir, isolated=False).findings == []


def test_a_fork_passes_on_no_checkpoint_over_another_root_than_its_receipts(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=4))
    with running(data_dir, disk=QuickDisk()) as hub:
        writer = hub.writer()
        writer.send_many(ENTRIES)
    fork.fork(QuickDisk(), data_dir, tmp_path / "fork", None, START + 10)
    asked = CheckpointRequest(writer.label, 4)
    with running(tmp_path / "fork", Clock(START + 20), disk=QuickDisk()) as hub:
        made = hub.post("/v1/checkpoint", asked).read(CheckpointResponse).checkpoint
        path = hub.service.folders.checkpoint(writer.label, 4)
        for wrong in (replace(made, mmr_root=bytes(32)), replace(made, upto_seq=5)):
            path.write_bytes(wrong.encode())
            reply = hub.post("/v1/checkpoint", asked)
            assert reply.refusal() == (500, "E.UNAVAILABLE", None, None)
            assert "stored data of the hub is damaged" in reply.error().message
