"""Witness keys are stored beside the log, and the witness signatures of checkpoints are verified with them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk, Last
from tests.storage.hubs import History, Hub, QuickDisk, key, receipts
from veen.core import Checkpoint, Malformed, Unverified
from veen.storage import checkpoint_files, fork, fsck, rotation
from veen.storage.fsck import FsckVerdict, Severity
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
    checkpoint_files.write_witnesses(QuickDisk(), folders, signed.label_curr, signed.upto_seq, witness_pks)


def keys_file(folders: Folders) -> Path:
    return next(folders.witnesses.iterdir())


def test_witnesses_whose_keys_are_known_are_verified(witnessed: Folders) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    known = checkpoint_files.read_witnesses(witnessed, signed.label_curr, signed.upto_seq)
    assert known == (ANN.public_key, BOB.public_key)
    assert checkpoint_files.read_witnesses(witnessed, signed.label_curr, signed.upto_seq + 1) == ()
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
    made = checkpoint_files.WitnessKeys(signed.label_curr, signed.upto_seq + 1, (ANN.public_key,))
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
    once = checkpoint_files.WitnessKeys(signed.label_curr, signed.upto_seq, (ANN.public_key, BOB.public_key)).encode()
    with pytest.raises(Malformed, match="twice"):
        checkpoint_files.WitnessKeys.decode(once.replace(BOB.public_key, ANN.public_key))


@pytest.mark.parametrize("last", list(Last))
def test_keys_are_there_whole_or_as_they_were_whenever_the_hub_dies(unsigned: Path, place: Path, last: Last) -> None:
    for call in range(1, 20):
        folders = Folders(shutil.copytree(unsigned, place / "hub", dirs_exist_ok=True))
        shutil.rmtree(folders.witnesses, ignore_errors=True)
        try:
            checkpoint_files.write_witnesses(DyingDisk(call, last), folders, bytes(32), 7, (ANN.public_key,))
        except Died:
            assert checkpoint_files.read_witnesses(folders, bytes(32), 7) in ((), (ANN.public_key,))
            continue
        assert checkpoint_files.read_witnesses(folders, bytes(32), 7) == (ANN.public_key,)
        return
    pytest.fail("it never came to its end")


def test_a_fork_keeps_the_witnesses_of_what_it_keeps(witnessed: Folders, place: Path) -> None:
    signed = Checkpoint.decode(path_of(witnessed).read_bytes())
    for upto, kept in ((None, (ANN.public_key, BOB.public_key)), ({signed.label_curr: signed.upto_seq - 1}, ())):
        target = place / f"fork of {len(kept)}"
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
