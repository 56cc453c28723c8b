"""Audit and Spark source take a pruned range as pruned if the hub signed for it, and as damage otherwise."""

import shutil
from pathlib import Path

import pytest

from tests.pipeline.damage import run_audit
from tests.storage.hubs import NOW, Client, Hub, create, label_of, receipts
from tests.storage.test_pruning import EVERYTHING, PAYLOADS, prune
from veen.core.retention import RetentionPolicy
from veen.pipeline.audit.audit_report import verdict
from veen.pipeline.extents import Extent, extent_of
from veen.pipeline.sources import DirectoryChunks
from veen.storage.paths import Folders


def pruned(root: Path, policy: RetentionPolicy) -> bytes:
    """A data directory with 30 entries of one label, 28 of which are pruned. Returns the label."""
    hub = Hub(create(root))
    client, label = Client("ann", hub.rules), label_of(hub.rules, "doors")
    for number in range(30):
        hub.clock.now = NOW + 3600 * number
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.clock.now = NOW + 864_000
    prune(hub, policy)
    hub.catch_up()
    hub.close()
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
    hub = Hub(root)
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
    hub = Hub(root)
    client, label = Client(f"{name}{count}", hub.rules), label_of(hub.rules, "doors")
    size = hub.lookup.size(label)
    for number in range(size, size + count):
        hub.clock.now = NOW + 3600 * number
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.close()
    return label
