"""`veen hub backup` of a running hub, and `veen hub restore` of what it made."""

import subprocess
import sys
from pathlib import Path

from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background

SMALL_CHUNKS = ("--limit", "max_checkpoint_interval=50")


def test_a_backup_under_load_has_all_entries_acknowledged_before_it(veen: Veen, tmp_path: Path) -> None:
    data_dir, to, passphrase = tmp_path / "hub", tmp_path / "backups", tmp_path / "passphrase"
    passphrase.write_text("a long passphrase\n")
    passphrase.chmod(0o600)
    root = ("--root", tmp_path / "hub.root", "--passphrase-file", passphrase)
    veen.done("hub", "init", "--data-dir", data_dir, *root, *SMALL_CHUNKS)
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "alice")
    with background(veen, data_dir, "--admission", "open") as shown:
        given = ("--hub", shown["url"], "--client", tmp_path / "alice", "--stream", "doors", "--pin", data_dir)
        veen.done("send", *given, "--body", "first")
        command = [sys.executable, "-m", "veen.cli", "send", "--lines", *map(str, given)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdin is not None
            assert sender.stdout is not None
            for number in range(1200):
                sender.stdin.write(f"{number}\n")
            sender.stdin.flush()
            for _ in range(5):
                acknowledged = max(
                    int(veen.done("hub", "status", "--data-dir", data_dir, "--json").json()["entries"]), 1
                )
                made = veen.done("hub", "backup", "--data-dir", data_dir, "--to", to, "--json").json()
                assert made["entries"] >= acknowledged
                checked = veen("fsck", made["backup"], "--json").json()
                assert checked["counts"]["damaged"] == 0, checked
                assert {one["artifact"].partition("/")[0] for one in checked["findings"]} <= {"index", "keys"}
                online = veen.done("fsck", data_dir, "--online", "--json").json()
                assert (online["verdict"], online["findings"]) == ("clean", [])
                assert online["entries"] >= acknowledged
            sender.stdin.close()
            sender.stdout.read()
        assert sender.returncode == 0
        made = veen.done("hub", "backup", "--data-dir", data_dir, "--to", to, "--json").json()
        assert made["entries"] == 1201
        veen.done("send", *given, "--body", "after the backup")
    assert not (Path(made["backup"]) / "keys").exists()
    restored = tmp_path / "restored"
    done = veen.done("hub", "restore", "--from", to, "--data-dir", restored, *root, "--json").json()
    assert done["entries"] == 1201
    veen.done("fsck", restored)
    with background(veen, restored, "--admission", "open") as shown:
        given = ("--hub", shown["url"], "--client", tmp_path / "alice", "--stream", "doors", "--pin", restored)
        told = veen("verify", *given)
        assert told.status == 4
        assert "it has 1201 entries of this label; it had signed 1202" in told.error
        veen.done("verify", *given, "--accept-recovery")
        veen.done("send", *given, "--body", "goes on")


def test_a_backup_of_a_hub_without_a_root_says_that_it_needs_the_keys(veen: Veen, tmp_path: Path) -> None:
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root")
    made = veen("hub", "backup", "--data-dir", tmp_path / "hub", "--to", tmp_path / "to")
    assert made.status == 0
    assert "without --with-keys no hub can continue with the backup" in made.err
    made = veen("hub", "backup", "--data-dir", tmp_path / "hub", "--to", tmp_path / "to", "--with-keys")
    assert "no root key" not in made.err
    assert veen("hub", "backup", "--data-dir", tmp_path / "nothing", "--to", tmp_path / "to").status == 6
    assert veen("hub", "restore", "--from", tmp_path / "to", "--data-dir", tmp_path / "restored").status == 0
