"""The files of the log are exactly those of §4.8.3, and do not depend on how entries were batched."""

import random
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.core.trees import slow_peaks, slow_root
from tests.storage.disks import RefusingDisk
from tests.storage.hubs import SMALL, History, Hub, QuickDisk, index_rows, key, leaf_of, log_files, node_files
from veen.core import Checkpoint, Limits, Profile, Unavailable, checkpoint, hub_identity
from veen.core.hub_identity import Lineage
from veen.storage import frame
from veen.storage.artifacts import CheckpointIndex, ChunkSummary, PeakSnapshot
from veen.storage.checkpoint_files import BindingFile
from veen.storage.frame import AcceptedEntry, CommitGroup, LogEntry
from veen.storage.index import TABLES, Index
from veen.storage.log_writer import ChunkWriter, LogWriter
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders


@pytest.fixture(scope="module")
def records(history: History, tmp_path_factory: pytest.TempPathFactory) -> list[AcceptedEntry]:
    """The entries of a history, before any of them is in the log."""
    hub = Hub(history.fresh(tmp_path_factory.mktemp("records") / "hub"))
    for group in history.groups:
        hub.submit(group)
    found = hub.store.pending.records
    hub.abandon()
    return found


@dataclass
class Written:
    """A log with one label per name, written with a given batching."""

    files: dict[str, bytes]
    nodes: dict[str, bytes]
    rows: dict[str, list[tuple[bytes, bytes]]]


def sign(label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
    return checkpoint.sign(
        key("hub"), label_prev=label, label_curr=label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=0
    )


def hub_metadata() -> HubMetadata:
    """Metadata of the hub whose key signs here."""
    record = hub_identity.create(key("hub"), 0)
    return HubMetadata(record, hub_identity.sign(record, key("hub")), SMALL, Profile(), Lineage((record,)))


def write(root: Path, batches: list[list[AcceptedEntry]], limits: Limits = SMALL) -> Written:
    folders = Folders(root)
    folders.log.mkdir(parents=True)
    folders.nodes.mkdir(parents=True)
    index = Index(folders.index, durable=False)
    binding = BindingFile(QuickDisk(), folders, hub_metadata())
    files = ChunkWriter(QuickDisk(), folders, sign, binding, limits.chunk_zstd_level)
    writer = LogWriter(files, index, limits)
    for group, batch in enumerate(batches, 1):
        writer.apply(CommitGroup(list(batch)), group)
    with index.read() as rows:
        found = {table: list(rows.all_rows(table)) for table in TABLES if table != "meta"}
    index.close()
    return Written(log_files(root), node_files(root), found)


def cut(records: list[AcceptedEntry], rng: random.Random) -> list[list[AcceptedEntry]]:
    batches, rest = [], records
    while rest:
        size = rng.choice([1, 1, 2, 5, 13, 40])
        batches.append(rest[:size])
        rest = rest[size:]
    return batches


def entries_of(written: Written, label: bytes) -> list[LogEntry]:
    names = sorted(name for name in written.files if name.startswith(f"chunk-{label.hex()}") and name.endswith(".log"))
    return [entry for name in names for entry in frame.read_all(written.files[name])]


@pytest.mark.parametrize("limits", [SMALL, Limits(4096, max_chunk_bytes=5120), Limits(max_checkpoint_interval=1)])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_entries_give_the_same_files_in_any_batching(
    place: Path, records: list[AcceptedEntry], limits: Limits, seed: int
) -> None:
    at_once = write(place / "a", [records], limits)
    assert write(place / "b", cut(records, random.Random(seed)), limits) == at_once


def test_a_chunk_is_closed_by_the_interval_or_by_its_bytes_and_by_nothing_else(
    place: Path, records: list[AcceptedEntry]
) -> None:
    written = write(place / "a", [records])
    by_interval = by_bytes = 0
    for label in {record.label for record in records}:
        chunks = sorted(name for name in map(ChunkName.parse, written.files) if name and name.label == label)
        sizes = {chunk: len(written.files[chunk.file_name()]) for chunk in chunks}
        for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
            assert sizes[chunk] <= SMALL.max_chunk_bytes
            if chunk.end_seq is None:
                assert following is None
                continue
            count = chunk.end_seq - chunk.start_seq + 1
            if count == SMALL.max_checkpoint_interval:
                by_interval += 1
                continue
            assert following is not None
            first, _ = frame.read(written.files[following.file_name()])
            assert sizes[chunk] + first.size > SMALL.max_chunk_bytes
            by_bytes += 1
    assert by_interval
    assert by_bytes


def test_every_artifact_says_what_the_entries_say(place: Path, records: list[AcceptedEntry]) -> None:
    written = write(place / "a", [records])
    names = set(written.files)
    for label in {record.label for record in records}:
        entries = entries_of(written, label)
        assert [entry.stream_seq for entry in entries] == list(range(1, len(entries) + 1))
        leaves = [leaf_of(entry.msg) for entry in entries]
        chunks = [name for name in map(ChunkName.parse, written.files) if name and name.label == label]
        rows = []
        for chunk in sorted(chunk for chunk in chunks if chunk.end_seq is not None):
            assert chunk.end_seq is not None
            inside = entries[chunk.start_seq - 1 : chunk.end_seq]
            stem, end = chunk.file_name().removesuffix(".log"), f"{label.hex()}-{chunk.end_seq:020d}.cbor"
            summary = ChunkSummary.decode(written.files[f"{stem}.summary"])
            hashes = [sha256(b"veen/entry" + entry.msg + entry.receipt).digest() for entry in inside]
            root = slow_root(leaves[: chunk.end_seq])
            assert summary == ChunkSummary(
                label,
                chunk.start_seq,
                chunk.end_seq,
                root,
                len(inside),
                len(written.files[chunk.file_name()]),
                slow_root(hashes),
            )
            peaks = PeakSnapshot.decode(written.files[f"peaks-{end}"])
            assert (peaks.label, peaks.upto_seq) == (label, chunk.end_seq)
            assert list(peaks.peaks) == slow_peaks(leaves[: chunk.end_seq])
            signed = Checkpoint.decode(written.files[f"checkpoint-{end}"])
            signed.verify_signature(key("hub").public_key)
            assert (signed.label_curr, signed.upto_seq, signed.mmr_root) == (label, chunk.end_seq, root)
            rows.append((chunk.end_seq, root, chunk.start_seq, chunk.end_seq, chunk.end_seq))
            names -= {chunk.file_name(), f"{stem}.summary", f"peaks-{end}", f"checkpoint-{end}"}
        if rows:
            found = CheckpointIndex.decode(written.files[f"checkpoint-index-{label.hex()}.cbor"])
            assert [
                (row.upto_seq, row.mmr_root, row.chunk_start, row.chunk_end, row.peaks_ref) for row in found.checkpoints
            ] == rows
            names.discard(f"checkpoint-index-{label.hex()}.cbor")
        names -= {chunk.file_name() for chunk in chunks}
    assert names == set()


def test_a_node_file_holds_every_node_by_position(place: Path, records: list[AcceptedEntry]) -> None:
    written = write(place / "a", cut(records, random.Random(9)))
    for label in {record.label for record in records}:
        new_nodes = b"".join(node for record in records if record.label == label for node in record.new_nodes)
        assert written.nodes[f"{label.hex()}.mmr"] == new_nodes


def test_closing_a_chunk_again_leaves_its_witnesses(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    for group in history.groups:
        hub.submit(group)
    tail = hub.store.begin_catching_up()
    assert tail
    hub.store.catch_up(tail)
    hub.abandon()
    path = next((root / "log").glob("checkpoint-[0-9a-f]*-*.cbor"))
    witnessed = Checkpoint.decode(path.read_bytes()).witnessed(key("witness")).encode()
    path.write_bytes(witnessed)
    (root / "index" / "data.mdb").unlink()
    again = Hub(root)
    again.catch_up()
    assert path.read_bytes() == witnessed
    again.close()


def test_entries_that_do_not_follow_are_our_own_mistake(place: Path, records: list[AcceptedEntry]) -> None:
    mine = [record for record in records if record.label == records[-1].label]
    with pytest.raises(ValueError, match="does not follow"):
        write(place / "a", [mine[1:]])


def test_a_failed_catch_up_can_be_repeated(place: Path, history: History) -> None:
    disk = RefusingDisk()
    hub = Hub(history.fresh(place / "hub"), disk)
    for group in history.groups:
        hub.submit(group)
    tail = hub.store.begin_catching_up()
    assert tail
    for kind in ("open_append", "write", "sync", "replace", "sync_folder"):
        disk.fail(kind)
        with pytest.raises(Unavailable, match="the log cannot be written: No space left"):
            hub.store.catch_up(tail)
        disk.heal()
        assert hub.lookup.size(tail.records[0].label)
    hub.store.catch_up(tail)
    hub.store.end_catching_up()
    rows, files = index_rows(hub), log_files(place / "hub")
    hub.close()
    assert not [name for name in files if name.endswith(".draft")]
    assert len(rows["by_client"]) == sum(map(len, history.groups))
