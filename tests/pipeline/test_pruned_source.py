"""Audit and Spark source take a pruned range as pruned if the hub signed for it, and as damage otherwise."""

import asyncio
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.client.pair import STREAM, pair
from tests.client.test_pruned_entries import DAY, filled, keep, run
from tests.client.test_pruned_entries import SMALL as CHUNKS_OF_FOUR
from tests.client.test_sending import meet
from tests.hub.client import TOKEN, Clock, Hub, hub_key, make_dir, running, until
from tests.pipeline.damage import rows, run_audit
from tests.selftest.broken_hub import Forger, alter_answer, proxied
from tests.storage.hubs import NOW, Client, create, label_of, receipts
from tests.storage.hubs import Hub as Storage
from tests.storage.test_pruning import EVERYTHING, PAYLOADS, prune
from veen.client.tree_follower import PrunedEntries
from veen.core import Mmr, MmrProof, Unavailable, Unverified, proof
from veen.core.envelopes import ProofResponse, ReceiptResponse
from veen.core.retention import Manifest, RetentionPolicy, RetentionReport, RetentionRequest, sign_manifest
from veen.pipeline import plan, select
from veen.pipeline.audit.audit_report import verdict
from veen.pipeline.datasource import GrowingSources
from veen.pipeline.extents import Extent, extent_of
from veen.pipeline.sources import DirectoryChunks, HubChunks
from veen.storage import fsck, rotation
from veen.storage.fsck_report import Severity
from veen.storage.paths import Folders


def pruned(root: Path, policy: RetentionPolicy | None, *, killed: bool = False) -> bytes:
    """A data directory with 30 entries of one label in chunks of 7, pruned by a policy. Returns the label.

    The journal of a killed hub still has the entries.
    """
    hub = Storage(create(root))
    client, label = Client("ann", hub.rules), label_of(hub.rules, "doors")
    for number in range(30):
        hub.clock.now = NOW + 3600 * number
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.clock.now = NOW + 864_000
    if policy is not None:
        prune(hub, policy)
    hub.catch_up()
    hub.abandon() if killed else hub.close()
    return label


def extent(root: Path) -> Extent:
    source = DirectoryChunks(str(root))
    return extent_of(source, source.metadata(), None)


@pytest.mark.parametrize("policy", [PAYLOADS, EVERYTHING])
def test_a_pruned_range_is_sound_and_left_out_of_reads(tmp_path: Path, policy: RetentionPolicy) -> None:
    label = pruned(tmp_path / "hub", policy)
    assert run_audit(tmp_path / "hub").directories[0].findings == []
    found = extent(tmp_path / "hub")
    assert found.gaps == []
    assert [(one.start_seq, one.end_seq) for one in found.chunks if one.label == label] == [(29, 30)]


@pytest.mark.parametrize("spoil", ["manifest", "artifact", "by hand"])
def test_a_range_without_a_manifest_or_without_its_file_is_damage(tmp_path: Path, spoil: str) -> None:
    root = tmp_path / "hub"
    label = pruned(root, RetentionPolicy(864_000_000) if spoil == "by hand" else PAYLOADS)  # or nothing was due
    folders = Folders(root)
    removed = {
        "manifest": folders.manifest(label),
        "artifact": folders.pruned_chunk(label, 8, 14),
        "by hand": folders.closed_chunk(label, 8, 14),
    }
    removed[spoil].unlink()
    assert run_audit(root).directories[0].findings
    assert [(one.first, one.last) for one in extent(root).gaps] == [(1, 28) if spoil == "manifest" else (8, 14)]


HALF = RetentionPolicy(864_000 - 15 * 3600)  # the first two chunks
RANGES = [(1, 7), (8, 14), (15, 21), (22, 28)]


def remove(root: Path, label: bytes, start: int, end: int, *, artifacts: bool) -> None:
    """Delete a chunk, pruned or not, by hand; with `artifacts` also the files beside it."""
    folders = Folders(root)
    chunks = folders.pruned_chunk(label, start, end), folders.closed_chunk(label, start, end)
    (chunk,) = (path for path in chunks if path.exists())
    chunk.unlink()
    if artifacts:
        for path in (folders.summary(label, start, end), folders.peaks(label, end), folders.checkpoint(label, end)):
            path.unlink()


@pytest.mark.parametrize("policy", [PAYLOADS, EVERYTHING])
def test_entries_that_were_pruned_before_the_journal_was_trimmed_are_no_damage(
    tmp_path: Path, policy: RetentionPolicy
) -> None:
    pruned(tmp_path / "hub", policy, killed=True)
    assert fsck.check(tmp_path / "hub", isolated=False).findings == []
    assert run_audit(tmp_path / "hub").directories[0].findings == []


@pytest.mark.parametrize("policy", [None, HALF, PAYLOADS, EVERYTHING])
def test_one_deleted_range_is_one_finding_of_each_tool_with_its_place(
    tmp_path: Path, policy: RetentionPolicy | None
) -> None:
    label = pruned(tmp_path / "hub", policy)
    assert fsck.check(tmp_path / "hub", isolated=False).findings == []
    for start, end in RANGES:
        for artifacts in (False, True):
            root = Path(shutil.copytree(tmp_path / "hub", tmp_path / f"{start}-{artifacts}"))
            remove(root, label, start, end, artifacts=artifacts)
            (of_fsck,) = fsck.check(root, isolated=False).findings
            (of_audit,) = run_audit(root).directories[0].findings
            assert of_fsck == of_audit
            assert (of_fsck.label, of_fsck.stream_seq, of_fsck.severity) == (label, start, Severity.DAMAGED)
            assert f"entries {start} to {end} are missing" in of_fsck.what
            (gap,) = extent(root).gaps
            assert (gap.label, gap.first, gap.last) == (label, start, end)
            with pytest.raises(Unverified, match=f"entry {start}: entries {start} to {end} are missing"):
                plan(select(root))


@pytest.mark.parametrize("policy", [HALF, PAYLOADS, EVERYTHING])
def test_a_deleted_or_changed_manifest_is_one_finding(tmp_path: Path, policy: RetentionPolicy) -> None:
    label = pruned(tmp_path / "hub", policy)
    for number, removed in enumerate((True, False)):
        root = Path(shutil.copytree(tmp_path / "hub", tmp_path / str(number)))
        path = Folders(root).manifest(label)
        if removed:
            path.unlink()
        else:
            path.write_bytes(replace(Manifest.decode(path.read_bytes()), hub_sig=bytes(64)).encode())
        (of_fsck,) = fsck.check(root, isolated=False).findings
        (of_audit,) = run_audit(root).directories[0].findings
        assert of_fsck.artifact == of_audit.artifact == f"log/{path.name}"
        assert of_fsck.what == of_audit.what
        (gap,) = extent(root).gaps
        assert (gap.first, gap.last) == (1, 14 if policy is HALF else 28)


@pytest.mark.parametrize("policy", [PAYLOADS, EVERYTHING])
def test_copies_of_a_log_agree_when_one_is_pruned_and_still_show_a_fork(
    tmp_path: Path, policy: RetentionPolicy
) -> None:
    """The fork begins in the pruned range, and goes on behind it."""
    root = create(tmp_path / "hub")
    written(root, "ann", 10)
    fork = Path(shutil.copytree(root, tmp_path / "fork"))
    label = written(root, "ann", 20)
    whole = Path(shutil.copytree(root, tmp_path / "whole"))
    written(fork, "zoe", 20)
    hub = Storage(root)
    hub.clock.now = NOW + 864_000
    prune(hub, policy)
    hub.catch_up()
    hub.close()
    assert Folders(root).pruned_chunk(label, 1, 7).exists()
    for copies in ((root, whole), (whole, root)):
        agreed = run_audit(*copies)
        assert (verdict(agreed), agreed.equivocations) == ("sound", ())
    for copies in ((root, fork), (fork, root)):
        found = run_audit(*copies)
        assert (verdict(found), [one.label for one in found.equivocations]) == ("equivocated", [label])
        assert found.equivocations[0].stream_seq == (11 if policy is PAYLOADS else 29)


def written(root: Path, name: str, count: int) -> bytes:
    """Add entries to the log. Returns its label."""
    hub = Storage(root)
    client, label = Client(f"{name}{count}", hub.rules), label_of(hub.rules, "doors")
    size = hub.lookup.size(label)
    for number in range(size, size + count):
        hub.clock.now = NOW + 3600 * number
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.close()
    return label


@contextmanager
def pruned_hub(place: Path, rules: RetentionPolicy | None, *erased: int) -> Iterator[tuple[Hub, str]]:
    """A running hub with ten entries in chunks of four, of which it pruned what a policy allows and some by number."""
    with pair(place) as people, running(make_dir(place, limits=CHUNKS_OF_FOUR)) as hub:
        asyncio.run(filled(hub, meet(people, hub)))
        until(lambda: is_indexed(hub))
        if rules is not None:
            keep(hub, rules)
            assert run(hub).range_count == 1
        for seq in erased:
            assert run(hub, RetentionRequest(False, hub.label(STREAM), seq, seq, "request 1")).range_count == 1
        yield hub, f"http://127.0.0.1:{hub.port}"


def is_indexed(hub: Hub) -> bool:
    """Whether the hub has written both closed chunks and their index rows."""
    planned = RetentionRequest(True, hub.label(STREAM), 1, 8, "request 1")
    reply = hub.post("/tooling/retention/run", planned, authorization=f"Bearer {TOKEN}")
    if reply.status != 200:
        return False
    return [(one.start_seq, one.end_seq) for one in RetentionReport.decode(reply.body).ranges] == [(1, 8)]


def seqs(hub: Hub, url: str, **given: Any) -> list[int]:
    """The entries that the Spark source reads from a hub."""
    selection = select(url, label=hub.label(STREAM), pin=hub.service.hub_metadata.identity.hub_id, **given)
    places = replace(selection, columns=("stream_seq",))
    return [row[0] for task in plan(places) for row in rows(task, places)]


@pytest.mark.parametrize("verify", ["none", "entry", "full"])
@pytest.mark.parametrize(
    ("rules", "erased", "left"),
    [
        (RetentionPolicy(DAY), (), [9, 10]),
        (RetentionPolicy(DAY, 2 * DAY), (), [9, 10]),
        (None, (6,), [1, 2, 3, 4, 9, 10]),
        (None, (2,), [5, 6, 7, 8, 9, 10]),
    ],
)
def test_the_source_leaves_out_what_a_hub_proves_to_have_pruned(
    place: Path, verify: str, rules: RetentionPolicy | None, erased: tuple[int, ...], left: list[int]
) -> None:
    with pruned_hub(place, rules, *erased) as (hub, url):
        assert seqs(hub, url, verify=verify) == left
        assert seqs(hub, url, verify=verify, seq_min=6, seq_max=9) == [seq for seq in left if 6 <= seq <= 9]
        assert seqs(hub, url, verify=verify, ts_min=int(hub.service.sequencer.hub_ts) + 1) == []
        assert seqs(hub, url, verify=verify, seq_max=1) == [seq for seq in left if seq == 1]


def spoiled(hub: Hub, spoil: str, root: bytes = bytes(32)) -> None:
    """Change the manifest, so that no valid tombstone follows from it."""
    path = Folders(hub.data_dir).manifest(hub.label(STREAM))
    manifest = Manifest.decode(path.read_bytes())
    if spoil == "signature":
        path.write_bytes(replace(manifest, hub_sig=bytes(64)).encode())
    else:
        first, *others = manifest.segments
        other = replace(first, mmr_root_end=root)
        place = (manifest.hub_id, manifest.label, manifest.epoch, manifest.hub_ts)
        path.write_bytes(sign_manifest(hub_key(hub), *place, [other, *others]).encode())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("signature", "no key of the hub"),
        ("root", "its root differs from that of the log"),
    ],
)
def test_a_range_without_a_valid_tombstone_is_an_error_with_its_place(place: Path, spoil: str, reason: str) -> None:
    with pruned_hub(place, None, 2) as (hub, url):
        spoiled(hub, spoil)
        where = f"{re.escape(url)}, label {hub.label(STREAM).hex()}, entry 1: .*without proof.*{reason}"
        for verify in ("full", "none"):
            with pytest.raises(Unverified, match=where):
                seqs(hub, url, verify=verify)
        faults = select(url, label=hub.label(STREAM), verify="entry", columns=["stream_seq", "faults"])
        assert [row for task in plan(faults) for row in rows(task, faults)] == [(1, ["frame"])]


def test_a_chunk_that_was_deleted_by_hand_is_no_pruned_range_of_a_hub(place: Path) -> None:
    with pruned_hub(place, None) as (hub, url):
        closed = Folders(hub.data_dir).closed_chunk(hub.label(STREAM), 5, 8)
        until(closed.exists)
        closed.unlink()
        with pytest.raises(Unavailable, match=rf"label {hub.label(STREAM).hex()}, entry [15678]: .* is damaged"):
            seqs(hub, url)


def test_a_streaming_query_passes_over_a_pruned_range(tmp_path: Path) -> None:
    """Also in steps that end within it, and when nothing behind it is left."""
    root = tmp_path / "hub"
    label = pruned(root, PAYLOADS)
    growing = GrowingSources(select(root, label=label))
    start, found = growing.beginning(), []
    for _ in range(20):
        end = growing.admitted(start, growing.end(), 4)
        found += [(piece.first, piece.last) for piece in growing.pieces(start, end)]
        start = end
    assert found == [(29, 30)]
    Folders(root).open_chunk(label, 29).unlink()
    shutil.rmtree(root / "journal")
    shutil.rmtree(root / "index")
    (root / "checkpoint-binding.cbor").unlink(missing_ok=True)
    assert growing.end()[str(root)][label.hex()] == 28


def forged_tree(size: int) -> tuple[Mmr, MmrProof]:
    """A tree with other leaves, and the proof of its last leaf."""
    tree, nodes = Mmr(), list[bytes]()
    for number in range(size):
        nodes += tree.append(bytes([number]) * 32)
    return tree, proof.prove(nodes.__getitem__, size, size)


@pytest.mark.parametrize(
    ("place_of", "signed", "reason"),
    [({}, False, "no key of the hub"), ({"label": bytes(32)}, True, "belongs to another place")],
)
def test_a_tombstone_of_another_history_is_an_error_whatever_head_the_hub_answers(
    place: Path, place_of: dict[str, bytes], signed: bool, reason: str
) -> None:
    """Its root, the receipt at its end and the proof of that receipt agree with each other."""
    tree, shown = forged_tree(4)

    def receipt(forger: Forger, true: ReceiptResponse) -> ReceiptResponse:
        changes: dict[str, Any] = {"leaf_hash": shown.leaf_hash, "mmr_root": tree.root(), **place_of}
        return ReceiptResponse(forger.receipt(true.receipt, **changes) if signed else replace(true.receipt, **changes))

    with pruned_hub(place, None, 2) as (hub, _), proxied(hub) as broken:
        spoiled(hub, "root", tree.root())
        source, label = HubChunks(broken.url), hub.label(STREAM)
        (chunk,) = source.chunks(frozenset({label}))
        receipts = alter_answer("/v1/receipt", ReceiptResponse, receipt)(broken.forger)
        proofs = alter_answer("/v1/proof", ProofResponse, lambda _, true: ProofResponse(shown))(broken.forger)
        broken.handle = lambda call: (proofs if call.path == "/v1/proof" else receipts)(call)
        with pytest.raises(Unverified, match=f"without proof.*{reason}"):
            list(source.blocks(chunk))


def test_a_range_that_was_pruned_under_a_new_key_during_a_task_is_a_pruned_range(place: Path) -> None:
    with pruned_hub(place, None) as (hub, url):
        source, label = HubChunks(url), hub.label(STREAM)
        (chunk,) = source.chunks(frozenset({label}))
        known = source.metadata().identity
        assert isinstance(hub.clock, Clock)
        now = int(hub.clock.now)
        hub.stop()
        rotation.rotate_key(Disk(), Folders(hub.data_dir), now + 5, 0)
        hub.clock.now = now + 10
        hub.start()
        assert run(hub, RetentionRequest(False, label, 2, 2, "request 1")).range_count == 1
        with pytest.raises(PrunedEntries) as caught:
            list(source.blocks(chunk))
        assert (caught.value.first, caught.value.tombstone.segment.end_seq) == (1, 4)
        assert source.metadata().identity.newest not in known.hub_keys
