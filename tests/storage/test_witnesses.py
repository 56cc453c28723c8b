"""Witness keys are stored beside the log, and the witness signatures of checkpoints are verified with them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import (
    Died,
    EverythingSurvives,
    Fault,
    Platter,
    RemovalsSurvive,
    SimulatedDisk,
    Survival,
    at_call,
)
from plumbing.durable import Disk
from tests.storage.disks import DyingDisk, Last
from tests.storage.hubs import History, Hub, QuickDisk, key, receipts
from veen.core import Checkpoint, Malformed, SigningKey, Unverified
from veen.core.envelopes import WitnessRequest
from veen.hub.witness_records import WitnessRecords
from veen.storage import checkpoint_files, fork, fsck, metadata, rotation
from veen.storage.attachment_store import AttachmentStore
from veen.storage.checkpoint_files import WitnessKeys
from veen.storage.fsck import FsckVerdict, Severity
from veen.storage.fsck_report import Finding
from veen.storage.index import Index
from veen.storage.paths import Folders

ANN, BOB = key("ann the witness"), key("bob the witness")


@pytest.fixture(scope="module")
def unsigned(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with regular checkpoints without witness signatures."""
    root = history.fresh(tmp_path_factory.mktemp("unsigned") / "hub")
    hub = Hub(root, QuickDisk())
    for group in history.groups:
        receipts(hub.submit(group))
    hub.catch_up()
    hub.close()
    return root


@pytest.fixture
def witnessed(unsigned: Path, place: Path) -> Folders:
    """The same, with a checkpoint that two witnesses signed."""
    folders = Folders(shutil.copytree(unsigned, place / "hub"))
    path = path_of(folders)
    signed = Checkpoint.decode(path.read_bytes()).witnessed(ANN, BOB)
    path.write_bytes(signed.encode())
    write_witnesses(folders, signed, ANN.public_key, BOB.public_key)
    return folders


def path_of(folders: Folders) -> Path:
    return min(folders.log.glob("checkpoint-[0-9a-f]*-*.cbor"))


def write_witnesses(folders: Folders, signed: Checkpoint, *witness_pks: bytes) -> None:
    checkpoint_files.write_witnesses(QuickDisk(), folders, WitnessKeys(signed.label_curr, signed.upto_seq, witness_pks))


def keys_file(folders: Folders) -> Path:
    return next(folders.witnesses.iterdir())


def test_witnesses_whose_keys_are_known_are_verified(witnessed: Folders) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    known = checkpoint_files.read_witnesses(witnessed, signed.label_curr, signed.upto_seq)
    assert known == WitnessKeys(signed.label_curr, signed.upto_seq, (ANN.public_key, BOB.public_key))
    assert checkpoint_files.read_witnesses(witnessed, signed.label_curr, signed.upto_seq + 1) is None
    assert fsck.check(witnessed.root, isolated=False).findings == []


@pytest.mark.parametrize("byte", [-1, -40, -64, -66, -80, -130])
def test_a_wrong_bit_in_any_witness_signature_is_damage(witnessed: Folders, byte: int) -> None:
    path = path_of(witnessed)
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    report = fsck.check(witnessed.root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert {one.artifact for one in report.findings} == {f"log/{path.name}"}


def without_signatures(folders: Folders, signed: Checkpoint) -> None:
    path_of(folders).write_bytes(replace(signed, witness_sigs=None).encode())


def with_one_of_two(folders: Folders, signed: Checkpoint) -> None:
    assert signed.witness_sigs
    path_of(folders).write_bytes(replace(signed, witness_sigs=signed.witness_sigs[:1]).encode())


def of_another(folders: Folders, signed: Checkpoint) -> None:
    write_witnesses(folders, signed, ANN.public_key, key("carol").public_key)


def garbled(folders: Folders, signed: Checkpoint) -> None:
    keys_file(folders).write_bytes(b"\xa0")


def cut_short(folders: Folders, signed: Checkpoint) -> None:
    keys_file(folders).write_bytes(keys_file(folders).read_bytes()[:-1])


def of_another_place(folders: Folders, signed: Checkpoint) -> None:
    made = WitnessKeys(signed.label_curr, signed.upto_seq + 1, (ANN.public_key,))
    keys_file(folders).write_bytes(made.encode())


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (without_signatures, "is missing or invalid"),
        (with_one_of_two, "is missing or invalid"),
        (of_another, "is missing or invalid"),
        (garbled, "witness keys"),
        (cut_short, "witness keys"),
        (of_another_place, "differ from the file name"),
    ],
)
def test_signatures_and_keys_that_do_not_belong_together_are_damage(
    witnessed: Folders, harm: Callable[[Folders, Checkpoint], None], what: str
) -> None:
    harm(witnessed, Checkpoint.decode(path_of(witnessed).read_bytes()))
    report = fsck.check(witnessed.root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert what in report.findings[0].what


def test_a_signature_without_a_stored_key_cannot_be_verified_and_is_no_damage(witnessed: Folders) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    write_witnesses(witnessed, signed, BOB.public_key)
    for unknown in (1, 2):
        report = fsck.check(witnessed.root, isolated=False)
        assert report.verdict is FsckVerdict.CLEAN
        assert report.first is None
        assert [one.severity for one in report.findings] == [Severity.NOTICE]
        assert f"the keys of {unknown} witness signatures are not stored" in report.findings[0].what
        shutil.rmtree(witnessed.witnesses, ignore_errors=True)


def test_keys_that_are_not_what_a_hub_wrote_are_not_read(witnessed: Folders) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    of_another_place(witnessed, signed)
    with pytest.raises(Unverified):
        checkpoint_files.read_witnesses(witnessed, signed.label_curr, signed.upto_seq)
    once = WitnessKeys(signed.label_curr, signed.upto_seq, (ANN.public_key, BOB.public_key)).encode()
    with pytest.raises(Malformed, match="twice"):
        WitnessKeys.decode(once.replace(BOB.public_key, ANN.public_key))


@pytest.mark.parametrize("last", list(Last))
def test_keys_are_there_whole_or_as_they_were_whenever_the_hub_dies(unsigned: Path, place: Path, last: Last) -> None:
    written = WitnessKeys(bytes(32), 7, (ANN.public_key,))
    for call in range(1, 20):
        folders = Folders(shutil.copytree(unsigned, place / "hub", dirs_exist_ok=True))
        shutil.rmtree(folders.witnesses, ignore_errors=True)
        try:
            checkpoint_files.write_witnesses(DyingDisk(call, last), folders, written)
        except Died:
            assert checkpoint_files.read_witnesses(folders, bytes(32), 7) in (None, written)
            continue
        assert checkpoint_files.read_witnesses(folders, bytes(32), 7) == written
        return
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("kept", [1, 2])
def test_only_the_last_key_may_wait_for_its_signature(witnessed: Folders, kept: int) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    assert signed.witness_sigs
    path_of(witnessed).write_bytes(replace(signed, witness_sigs=signed.witness_sigs[:kept]).encode())
    pending = WitnessKeys(signed.label_curr, signed.upto_seq, (ANN.public_key, BOB.public_key), is_pending=True)
    checkpoint_files.write_witnesses(QuickDisk(), witnessed, pending)
    assert fsck.check(witnessed.root, isolated=False).findings == []
    path_of(witnessed).write_bytes(replace(signed, witness_sigs=signed.witness_sigs[1:]).encode())
    assert fsck.check(witnessed.root, isolated=False).verdict is FsckVerdict.DAMAGED, "the first one is lost"
    spoiled = bytes([signed.witness_sigs[1][0] ^ 1]) + signed.witness_sigs[1][1:]
    path_of(witnessed).write_bytes(replace(signed, witness_sigs=(signed.witness_sigs[0], spoiled)).encode())
    assert fsck.check(witnessed.root, isolated=False).verdict is FsckVerdict.DAMAGED, "the last one is damaged"


@pytest.mark.parametrize("survival", [Survival(), EverythingSurvives(), RemovalsSurvive()])
def test_no_power_cut_leaves_a_signature_without_its_key_or_a_key_without_its_signature(
    unsigned: Path, place: Path, survival: Survival
) -> None:
    for call in range(1, 40):
        root = shutil.copytree(unsigned, place / "machine" / "hub")
        disk = SimulatedDisk(Platter(root.parent), at_call(call, Fault.DIE_AFTER))
        try:
            cosign(disk, Folders(root), ANN)
        except Died:
            disk.cut_power(survival)
            assert harmful(root) == []
            cosign(SimulatedDisk(Platter(root.parent)), Folders(root), BOB, ANN)
            assert harmful(root) == []
            found = Checkpoint.decode(path_of(Folders(root)).read_bytes())
            assert len(found.witness_sigs or ()) == 2
            known = checkpoint_files.read_witnesses(Folders(root), found.label_curr, found.upto_seq)
            assert known is not None
            assert set(known.witness_pks) == {ANN.public_key, BOB.public_key}
            assert not known.is_pending
            shutil.rmtree(root)
            continue
        assert call > 12, call
        return
    pytest.fail("it never came to its end")


def harmful(root: Path) -> list[Finding]:
    """What fsck finds, without the drafts of interrupted writes."""
    return [one for one in fsck.check(root, isolated=False).findings if one.severity is not Severity.LEFTOVER]


def cosign(disk: Disk, folders: Folders, *witnesses: SigningKey) -> None:
    """A hub stores the cosignatures of its first checkpoint."""
    index, identity = Index(folders.index, readonly=True), metadata.read_metadata(folders).identity
    try:
        known = frozenset(one.public_key for one in witnesses)
        records = WitnessRecords(
            disk, folders, index, identity, known, AttachmentStore(disk, folders), lambda found: None
        )
        made = Checkpoint.decode(path_of(folders).read_bytes())
        for one in witnesses:
            sig = one.sign(made.signing_digest())
            records.add_witness(WitnessRequest(made.label_curr, made.upto_seq, one.public_key, sig))
    finally:
        index.close()


def test_a_fork_keeps_the_witnesses_of_what_it_keeps(witnessed: Folders, place: Path) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    both = WitnessKeys(signed.label_curr, signed.upto_seq, (ANN.public_key, BOB.public_key))
    for upto, kept in ((None, both), ({signed.label_curr: signed.upto_seq - 1}, None)):
        target = place / f"fork of {kept is not None}"
        fork.fork(QuickDisk(), witnessed.root, target, upto, 1_800_000_000)
        assert checkpoint_files.read_witnesses(Folders(target), signed.label_curr, signed.upto_seq) == kept
        assert fsck.check(target, isolated=False).findings == []


def test_cosignatures_of_a_requested_checkpoint_count_for_the_regular_one_of_the_same_place(
    unsigned: Path, place: Path
) -> None:
    folders = Folders(shutil.copytree(unsigned, place / "hub"))
    path = path_of(folders)
    regular = Checkpoint.decode(path.read_bytes())
    label, upto_seq = regular.label_curr, regular.upto_seq
    requested = folders.requested_checkpoint(label, upto_seq)
    requested.parent.mkdir(exist_ok=True)
    requested.write_bytes(regular.witnessed(ANN).encode())  # before the chunk was closed
    assert rotation.stored_checkpoint(folders, label, upto_seq) == regular.witnessed(ANN)
    path.write_bytes(regular.witnessed(BOB).encode())
    assert rotation.stored_checkpoint(folders, label, upto_seq) == regular.witnessed(BOB, ANN)
    other = replace(regular, mmr_root=bytes(32)).witnessed(ANN)
    requested.write_bytes(other.encode())
    assert rotation.stored_checkpoint(folders, label, upto_seq) == regular.witnessed(BOB)
