"""`veen hub recover|restore`: a hub that lost entries says so, and its clients decide whether to go on."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.runner import Ran, Veen
from tests.cli.test_hub_lifecycle import ANY_PORT, background
from tests.witness.witness_fixture import RunningWitness, witnesses
from veen.core import Receipt, SigningKey

STREAM = "doors"


class Place:
    """A data directory and the clients of its hub."""

    def __init__(self, veen: Veen, root: Path) -> None:
        self.veen = veen
        self.root = root
        self.data_dir = root / "hub"
        veen.done("hub", "init", "--data-dir", self.data_dir, "--no-root")
        for name in ("alice", "bob"):
            veen.done("keygen", "--out", root / name, "--no-passphrase")
            veen.done("stream-key", "create", STREAM, "--client", root / name)

    def run(self, url: object, client: str, command: str, *options: object) -> Ran:
        given = ("--hub", url, "--client", self.root / client, "--stream", STREAM, "--pin", self.data_dir)
        return self.veen(command, *options, *given)

    def send(self, url: object, client: str, *bodies: str) -> None:
        for body in bodies:
            ran = self.run(url, client, "send", "--body", body)
            assert ran.status == 0, ran.err


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Place:
    return Place(veen, tmp_path)


def test_a_client_with_later_receipts_rejects_a_restored_hub_until_it_accepts_the_recovery(
    veen: Veen, place: Place
) -> None:
    data_dir, backup = place.data_dir, place.root / "backup"
    with background(veen, data_dir, "--admission", "open") as shown:
        place.send(shown["url"], "alice", "1", "2")
        place.send(shown["url"], "bob", "3")
    shutil.copytree(data_dir, backup)
    with background(veen, data_dir, "--admission", "open") as shown:
        place.send(shown["url"], "alice", "4", "5")
        assert place.run(shown["url"], "alice", "receipt", 5, "--out", place.root / "5.receipt").status == 0
    shutil.rmtree(data_dir)
    done = veen.done("hub", "restore", "--from", backup, "--data-dir", data_dir, "--json").json()
    assert (done["labels"], done["entries"]) == (1, 3)
    with background(veen, data_dir, "--admission", "open") as shown:
        url = shown["url"]
        place.send(url, "bob", "another 4", "another 5", "another 6")
        for command in (["send", "--body", "6"], ["stream"], ["verify"], ["checkpoint"]):
            ran = place.run(url, "alice", *command)
            assert ran.status == 4, (command, ran.err)
            assert ran.error.startswith("recovery: the hub stated on 20"), ran.error
            assert "it has 3 entries of this label; it had signed 5" in ran.error
            assert "--accept-recovery continues" in ran.err
        evidence = max((place.root / "alice" / "evidence").iterdir())
        checked = veen("evidence", "verify", evidence, "--pin", data_dir)
        assert checked.status == 0, checked.err
        assert "the hub states that it lost the entries" in checked.out
        accepted = place.run(url, "alice", "verify", "--accept-recovery")
        assert accepted.status == 0, accepted.err
        assert "the receipts are kept in" in accepted.err
        place.send(url, "alice", "7", "8")
        again = place.run(url, "alice", "verify", "--accept-recovery")
        assert again.status == 6
        assert "states no recovery" in again.error
        now = place.run(url, "alice", "receipt", 5, "--json").json()
        old, new = (
            Receipt.decode((place.root / "5.receipt").read_bytes()),
            Receipt.decode(bytes.fromhex(now["receipt"])),
        )
        assert (old.label, old.stream_seq) == (new.label, new.stream_seq)
        assert old.leaf_hash != new.leaf_hash
        keys = {key["key_id"] for key in veen.done("hub", "key", "--data-dir", data_dir, "--json").json()["keys"]}
        assert keys == {done["old_key_id"], done["new_key_id"]}


def test_a_hub_with_a_cut_journal_does_not_start_until_it_is_recovered(veen: Veen, place: Place) -> None:
    data_dir = place.data_dir
    with background(veen, data_dir, "--admission", "open") as shown:
        place.send(shown["url"], "alice", "1", "2")
        os.kill(int(str(shown["pid"])), signal.SIGKILL)
    segment = max((data_dir / "journal").iterdir())
    os.truncate(segment, 300)
    refused = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT)
    assert refused.status == 3
    assert "it was cut" in refused.error
    assert "may have been acknowledged" in refused.error
    assert f"veen fsck {data_dir}" in refused.err
    assert f"veen hub recover --data-dir {data_dir}" in refused.err
    assert veen("fsck", data_dir).status == 8
    done = veen.done("hub", "recover", "--data-dir", data_dir)
    assert "clients that hold later receipts" in done.err
    assert veen("fsck", data_dir).status == 0
    with background(veen, data_dir, "--admission", "open") as shown:
        place.send(shown["url"], "bob", "3")
        assert veen.done("hub", "key", "--data-dir", data_dir, "--json").json()["keys"][-1]["valid_until"] is None


def test_a_recovery_needs_a_stopped_hub_and_the_root_key(veen: Veen, place: Place, tmp_path: Path) -> None:
    with background(veen, place.data_dir, "--admission", "open"):
        ran = veen("hub", "recover", "--data-dir", place.data_dir)
        assert ran.status == 6
        assert "a hub is already running" in ran.error
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    rooted = tmp_path / "rooted"
    veen.done("hub", "init", "--data-dir", rooted, "--passphrase-file", passphrase)
    ran = veen("hub", "recover", "--data-dir", rooted)
    assert ran.status == 6
    assert "the root key of the hub must endorse the recovery" in ran.error
    assert "--root FILE" in ran.err
    key = ("--root", tmp_path / "rooted.root", "--passphrase-file", passphrase)
    done = veen.done("hub", "recover", "--data-dir", rooted, *key, "--json").json()
    assert (done["labels"], done["entries"], done["moved"]) == (0, 0, [])
    with background(veen, rooted, "--admission", "open"):
        pass


def test_a_root_on_another_machine_endorses_a_recovery_by_files(veen: Veen, tmp_path: Path) -> None:
    passphrase, rooted, moved = tmp_path / "passphrase", tmp_path / "rooted", tmp_path / "moved"
    passphrase.write_text("correct horse battery staple\n")
    veen.done("hub", "init", "--data-dir", rooted, "--passphrase-file", passphrase)
    asked = tmp_path / "recover.request"
    shown = veen.done("hub", "restore", "--from", rooted, "--data-dir", moved, "--request", asked, "--json").json()
    refused = veen.apart("hub", "start", "--data-dir", moved, *ANY_PORT)
    assert refused.status == 3
    assert "a recovery of this directory is not finished" in refused.error
    key = ("--root", tmp_path / "rooted.root", "--passphrase-file", passphrase)
    answer = tmp_path / "recover.endorsement"
    signed = veen.done("root", "endorse", asked, *key, "--out", answer, "--json").json()
    assert signed["endorsed"] == "a new signing key, and a recovery"
    assert (signed["new_hub_pk"], signed["labels_root"]) == (shown["new_hub_pk"], shown["labels_root"])
    done = veen.done("hub", "recover", "--data-dir", moved, "--endorsement", answer, "--json").json()
    assert done["entries"] == 0
    with background(veen, moved, "--admission", "open"):
        pass
    again = veen("hub", "recover", "--data-dir", moved, "--endorsement", answer)
    assert again.status == 6
    assert "no recovery is prepared" in again.error


def test_a_policy_requires_that_witnesses_cosigned_the_recovery(veen: Veen, place: Place) -> None:
    data_dir, backup = place.data_dir, place.root / "backup"
    with witnesses(place.root, 2) as two:
        trusted, strangers = _policy(place, "trusted", two), _policy(place, "strangers", [])
        asked = [part for one in two for part in ("--witness", f"{one.address.url}={one.key.public_key.hex()}")]
        with background(veen, data_dir, "--admission", "open") as shown:
            place.send(shown["url"], "alice", "1", "2")
        shutil.copytree(data_dir, backup)
        with background(veen, data_dir, "--admission", "open") as shown:
            place.send(shown["url"], "alice", "3")
        shutil.rmtree(data_dir)
        veen.done("hub", "restore", "--from", backup, "--data-dir", data_dir)
        for options, policy, what in (
            ((), trusted, "cosigned by none, but the policy requires 2 of 2 witnesses"),
            (asked, strangers, "cosigned by none, but the policy requires 1 of 1 witnesses"),
        ):
            with background(veen, data_dir, "--admission", "open", *options) as shown:
                ran = place.run(shown["url"], "alice", "verify", "--accept-recovery", "--policy", policy)
                assert (ran.status, f"recovery statement: {what}" in ran.error) == (4, True), ran.err
                assert "it had signed 3" in place.run(shown["url"], "alice", "verify").error, "nothing was accepted"
        veen.env["VEEN_OPERATOR_TOKEN"] = "operator"
        with background(veen, data_dir, "--admission", "open", *asked) as shown:
            veen.done("hub", "checkpoint", "--data-dir", data_dir, "--stream", STREAM, "--cosign")
            ran = place.run(shown["url"], "alice", "verify", "--accept-recovery", "--policy", trusted, "--json")
            assert ran.status == 0, ran.err
            assert (ran.json()["entries"], ran.json()["cosigned_by"]) == (2, "w0, w1")


def _policy(place: Place, name: str, found: list[RunningWitness]) -> Path:
    """A policy that requires all of these witnesses, or one that nobody runs."""
    keys = [one.key.public_key for one in found] or [SigningKey.generate().public_key]
    lines = [f'w{at} = "{key.hex()}"' for at, key in enumerate(keys)]
    file = place.root / f"{name}.toml"
    file.write_text("\n".join([f"threshold = {len(keys)}", "[witnesses]", *lines, ""]))
    return file
