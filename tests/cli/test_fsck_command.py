"""`veen fsck`: findings, repairs and exit statuses."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.hub.client import Clock, running
from veen.cli import fsck
from veen.cli.kit.exit_status import DAMAGED_STATUS, KEYLESS_STATUS, REPAIRABLE_STATUS
from veen.core.envelopes import CheckpointRequest, CheckpointResponse
from veen.storage.fsck_report import MAX_FINDINGS


@pytest.fixture
def used(data_dir: Path) -> Path:
    """A data directory with entries in it, and no hub on it."""
    with running(data_dir, time.time) as hub:
        hub.writer("doors").send_many(4)
        hub.writer("windows").send_many(3)
    return data_dir


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage_log(data_dir: Path) -> Path:
    chunk = sorted((data_dir / "log").glob("chunk-*-open.log"))[0]
    flip(chunk, chunk.stat().st_size // 2)
    return chunk


def damage_index(data_dir: Path) -> Path:
    nodes = sorted((data_dir / "index" / "nodes").iterdir())[0]
    flip(nodes, 40)
    return nodes


def test_a_sound_directory_is_clean_and_the_status_is_0(veen: Veen, used: Path) -> None:
    ran = veen.done("fsck", used)
    assert ran.out == "verdict\tclean\nchecked\t7 entries under 2 labels\n"
    assert ran.err == ""
    report = veen.done("fsck", used, "--json").json()
    assert (report["verdict"], report["entries"], report["labels"], report["findings"]) == ("clean", 7, 2, [])


def test_damage_to_the_log_is_named_and_the_status_is_8(veen: Veen, used: Path) -> None:
    chunk = damage_log(used)
    ran = veen("fsck", used)
    assert ran.status == DAMAGED_STATUS == 8
    first = ran.out.splitlines()[0].split("\t")
    assert first[:2] == ["damaged", f"log/{chunk.name}"]
    assert "verdict\tdamaged\n" in ran.out
    assert ran.err == "veen: hint: restore it from a copy: --repair cannot restore entries of the log\n"
    found = json.loads(veen("fsck", used, "--json").out)["findings"][0]
    assert (found["severity"], found["artifact"]) == ("damaged", f"log/{chunk.name}")
    assert isinstance(found["stream_seq"], int)


def test_a_wrong_index_is_repairable_and_the_status_is_7(veen: Veen, used: Path) -> None:
    nodes = damage_index(used)
    before = nodes.read_bytes()
    ran = veen("fsck", used)
    assert ran.status == REPAIRABLE_STATUS == 7
    assert ran.err == f"veen: hint: veen fsck {used} --repair rebuilds it\n"
    assert nodes.read_bytes() == before


def test_repair_rebuilds_the_index_and_nothing_else(veen: Veen, used: Path) -> None:
    damage_index(used)
    log = {path: path.read_bytes() for path in (used / "log").iterdir()}
    ran = veen.done("fsck", used, "--repair")
    assert ran.facts()["verdict"] == "clean"
    assert ran.facts()["repaired"] == "rebuilt from the log"
    assert {path: path.read_bytes() for path in (used / "log").iterdir()} == log
    assert veen.done("fsck", used, "--repair", "--json").json()["repaired"] is False


def test_repair_does_not_touch_a_damaged_log(veen: Veen, used: Path) -> None:
    chunk = damage_log(used)
    damage_index(used)
    before = chunk.read_bytes()
    ran = veen("fsck", used, "--repair")
    assert ran.status == DAMAGED_STATUS
    assert "repaired" not in ran.out
    assert chunk.read_bytes() == before


def test_repair_works_beside_a_damaged_attachment_which_is_then_left(veen: Veen, used: Path) -> None:
    nodes = damage_index(used)
    record = used / "uploads" / f"{'0' * 64}.cbor"
    record.parent.mkdir(exist_ok=True)
    record.write_bytes(b"garbage")
    rebuild = f"veen: hint: veen fsck {used} --repair rebuilds it\n"
    rest = "veen: hint: the log is sound: upload these attachments again, or restore these files from a copy\n"
    assert veen("fsck", used).err == rebuild + rest
    ran = veen("fsck", used, "--repair")
    assert (ran.status, ran.err) == (DAMAGED_STATUS, rest)
    assert nodes.name not in ran.out
    assert f"damaged\tuploads/{record.name}" in ran.out


def test_files_of_an_interrupted_write_are_leftovers_and_not_damage(veen: Veen, used: Path) -> None:
    (used / "limits.json.draft").write_text("half")
    ran = veen.done("fsck", used)
    assert ran.out.splitlines()[0].split("\t") == ["leftover", "limits.json.draft", "", "an incomplete draft"]


def test_a_directory_in_use_is_not_checked(veen: Veen, used: Path) -> None:
    with running(used, time.time):
        for options in ([], ["--repair"]):
            ran = veen("fsck", used, *options)
            assert ran.status == 6
            assert "a hub is running" in ran.error
            assert f"veen hub stop --data-dir {used}" in ran.err


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "other"])
def test_a_path_that_is_not_a_data_directory_is_not_reported_as_damaged(kind: str, veen: Veen, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("x")
    elif kind != "missing":
        place.mkdir()
    if kind == "other":
        (place / "notes.txt").write_text("x")
    ran = veen("fsck", place)
    assert ran.status == 6
    assert ran.error == f"{place} is not a hub's data directory"


@pytest.mark.parametrize("name", ["hub-identity.json", "hub-identity.sig", "limits.json", "profile.json"])
def test_a_directory_without_a_metadata_file_is_damaged(name: str, veen: Veen, used: Path) -> None:
    (used / name).unlink()
    assert veen("fsck", used).status == DAMAGED_STATUS


def test_a_directory_without_its_log_is_damaged(veen: Veen, used: Path) -> None:
    shutil.rmtree(used / "log")
    assert veen("fsck", used).status == DAMAGED_STATUS


def test_more_findings_than_are_listed_are_counted(veen: Veen, used: Path) -> None:
    for number in range(MAX_FINDINGS + 3):
        (used / f"{number}.draft").touch()
    ran = veen.done("fsck", used)
    assert ran.out.count("leftover\t") == MAX_FINDINGS
    assert ran.err == "veen: 3 more findings are not listed\n"


def test_a_terminal_shows_short_file_names() -> None:
    long = f"log/chunk-{'ab' * 32}-{7:020d}-{120:020d}.log"
    assert fsck.brief(long).display == "log/chunk-abababab…-7-120.log"
    assert fsck.brief(long).text == long
    zeros = f"log/{'6be6905e' + '00' * 28}/{7:020d}.log"
    assert fsck.brief(zeros).display == "log/6be6905e…/7.log"
    assert fsck.brief(f"{'00000005' + 'ab' * 28}.cbor").display == "00000005….cbor"
    assert fsck.brief("hub-identity.json").display == "hub-identity.json"
    assert fsck.brief(f"journal/{0:020d}.wal").display == "journal/0.wal"


def test_a_copy_without_keys_is_keyless_and_the_status_is_12(veen: Veen, used: Path) -> None:
    shutil.rmtree(used / "keys")
    ran = veen("fsck", used)
    assert ran.status == KEYLESS_STATUS == 12
    what = "no secret keys: the log can be read and verified, but no hub can run here"
    assert ran.out.splitlines()[0].split("\t") == ["keyless", "keys", "", what]
    assert "verdict\tkeyless\nchecked\t7 entries under 2 labels\n" in ran.out
    assert "no hub can run" in ran.err
    assert json.loads(veen("fsck", used, "--json").out)["counts"]["keyless"] == 1


def test_keys_that_other_users_can_read_get_a_chmod_hint(veen: Veen, used: Path) -> None:
    keys = sorted((used / "keys").glob("*.seed"))
    for path in keys:
        path.chmod(0o644)
    ran = veen("fsck", used)
    assert ran.status == KEYLESS_STATUS
    assert f"hint: chmod 600 {used}/keys/*.seed" in ran.err
    for path in keys:
        path.chmod(0o600)
    assert veen("fsck", used).status == 0
    keys[0].chmod(0o644)
    keys[1].unlink()
    assert "restore keys/ from a copy that includes it" in veen("fsck", used).err


def test_a_hub_signs_checkpoints_of_old_prefixes_after_its_old_key_was_destroyed(veen: Veen, used: Path) -> None:
    (old,) = (used / "keys").glob("hub-*.seed")
    shown = veen.done("hub", "rotate-key", "--data-dir", used, "--destroy-old", "--json").json()
    assert shown["destroyed"] == [shown["old_key_id"]]
    assert not old.exists()
    assert veen.done("fsck", used).status == 0
    with running(used, Clock(shown["valid_from"])) as hub:
        labels = hub.writer("gates").send().label, hub.writer("doors").label
        for label in labels:
            made = hub.post("/v1/checkpoint", CheckpointRequest(label, 1)).read(CheckpointResponse).checkpoint
            made.verify_signature(bytes.fromhex(shown["new_hub_pk"]))
    assert veen.done("fsck", used).status == 0
    (used / "keys" / "control.seed").unlink()
    assert "no hub can run" in veen("fsck", used).err


def test_an_unknown_file_in_the_directory_is_a_notice_and_not_damage(veen: Veen, used: Path) -> None:
    (used / "README").write_text("ask Ann before you touch this")
    ran = veen("fsck", used)
    assert ran.status == 0
    assert ran.out.splitlines()[0].split("\t")[:3] == ["notice", "README", ""]
    assert json.loads(veen("fsck", used, "--json").out)["counts"]["notice"] == 1


def test_repair_of_a_keyless_copy_rebuilds_the_index_but_no_keys(veen: Veen, used: Path) -> None:
    shutil.rmtree(used / "keys")
    damage_index(used)
    assert veen("fsck", used).status == REPAIRABLE_STATUS
    assert veen("fsck", used, "--repair").status == KEYLESS_STATUS
    assert not (used / "keys").exists()


def test_damage_takes_precedence_over_missing_keys(veen: Veen, used: Path) -> None:
    shutil.rmtree(used / "keys")
    damage_log(used)
    assert veen("fsck", used).status == DAMAGED_STATUS
