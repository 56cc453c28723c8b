"""The root key: `veen hub init --root`, `veen root` and the rotations that it endorses."""

import json
import shutil
import stat
from pathlib import Path

import pytest

from tests.cli.hub_fixture import hostile_hub
from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import ANY_PORT, background
from veen.core import SigningKey, naming, wire_json
from veen.core import hub_identity as identities
from veen.core.hub_identity import HubIdentity
from veen.core.root_key import RootRequest, RootSecret
from veen.storage import metadata
from veen.storage.paths import Folders

SECRET = "correct horse battery staple"


class Rooted:
    """A data directory with a root key, and the passphrase of the root in a file."""

    def __init__(self, veen: Veen, place: Path) -> None:
        self.veen = veen
        self.place = place
        self.data_dir = place / "hub"
        self.root = place / "hub.root"
        self.passphrase = place / "passphrase"
        self.passphrase.write_text(SECRET + "\n")
        self.with_root = ("--root", self.root, "--passphrase-file", self.passphrase)
        self.made = veen.done("hub", "init", "--data-dir", self.data_dir, "--passphrase-file", self.passphrase)

    @property
    def identity(self) -> HubIdentity:
        return metadata.read_metadata(Folders(self.data_dir)).identity

    def send(self, url: object, client: str, body: str, *options: object) -> dict[str, object]:
        if not (self.place / client).exists():
            self.veen.done("keygen", "--out", self.place / client, "--no-passphrase")
            self.veen.done("stream-key", "create", "doors", "--client", self.place / client)
        ran = self.veen(
            "send", "--hub", url, "--client", self.place / client, "--stream", "doors", "--body", body, *options
        )
        return {"status": ran.status, "err": ran.err}


@pytest.fixture
def rooted(veen: Veen, tmp_path: Path) -> Rooted:
    return Rooted(veen, tmp_path)


def test_init_makes_a_root_key_outside_the_directory_by_default(rooted: Rooted) -> None:
    identity = rooted.identity
    assert identity.root is not None
    assert identity.hub_id == naming.hub_id(identity.root.hub_pk)
    assert stat.S_IMODE(rooted.root.stat().st_mode) == 0o600
    assert "off this machine" in rooted.made.err
    shown = rooted.veen.done("root", "show", *rooted.with_root, "--json").json()
    assert shown["hub_id"] == identity.hub_id.hex()
    assert shown["root_pk"] == identity.root.hub_pk.hex()
    assert rooted.veen.done("hub", "key", "--data-dir", rooted.data_dir, "--json").json()["root_pk"] == shown["root_pk"]


def test_neither_the_directory_nor_the_root_file_shows_the_root_seed(rooted: Rooted) -> None:
    seed = RootSecret.unseal(rooted.root.read_bytes(), SECRET.encode(), "root").seed
    files = [rooted.root, *(path for path in rooted.data_dir.rglob("*") if path.is_file())]
    assert len(files) > 5
    assert [path for path in files if seed in path.read_bytes() or seed.hex().encode() in path.read_bytes()] == []


def test_init_without_a_passphrase_or_a_terminal_creates_nothing(veen: Veen, tmp_path: Path) -> None:
    ran = veen.apart("hub", "init", "--data-dir", tmp_path / "hub")
    assert ran.status == 2
    assert "--passphrase-file" in ran.err
    assert "--no-root" in ran.err
    assert not (tmp_path / "hub").exists()
    assert not (tmp_path / "hub.root").exists()


def test_a_root_key_is_not_put_into_the_directory_nor_over_a_file(rooted: Rooted, tmp_path: Path) -> None:
    inside = tmp_path / "new" / "root"
    ran = rooted.veen(
        "hub", "init", "--data-dir", tmp_path / "new", "--root", inside, "--passphrase-file", rooted.passphrase
    )
    assert (ran.status, "inside the data directory" in ran.err) == (2, True)
    before = rooted.root.read_bytes()
    ran = rooted.veen(
        "hub", "init", "--data-dir", tmp_path / "new", "--root", rooted.root, "--passphrase-file", rooted.passphrase
    )
    assert (ran.status, "already exists" in ran.err) == (2, True)
    assert rooted.root.read_bytes() == before
    both = rooted.veen("hub", "init", "--data-dir", tmp_path / "new", "--root", inside, "--no-root")
    assert both.status == 2
    assert not (tmp_path / "new").exists()


def test_a_rejected_directory_leaves_no_root_key_behind(rooted: Rooted, tmp_path: Path) -> None:
    other = tmp_path / "other.root"
    ran = rooted.veen(
        "hub", "init", "--data-dir", rooted.data_dir, "--root", other, "--passphrase-file", rooted.passphrase
    )
    assert ran.status == 2
    assert not other.exists()


def test_with_the_root_at_hand_one_command_rotates(rooted: Rooted) -> None:
    before = rooted.identity
    shown = rooted.veen.done("hub", "rotate-key", "--data-dir", rooted.data_dir, *rooted.with_root, "--json").json()
    after = rooted.identity
    after.check_follows(before)
    assert after.newest.hub_pk.hex() == shown["new_hub_pk"]
    assert [key.role for key in after.hub_keys] == ["root", None, None]
    assert not Folders(rooted.data_dir).root_request.exists()


def test_an_offline_root_endorses_a_rotation_with_files_only(rooted: Rooted, tmp_path: Path) -> None:
    request, answer, other = tmp_path / "a.request", tmp_path / "a.endorsement", tmp_path / "b.request"
    asked = rooted.veen.done("hub", "rotate-key", "--data-dir", rooted.data_dir, "--request", request, "--json").json()
    again = rooted.veen.done("hub", "rotate-key", "--data-dir", rooted.data_dir, "--request", other, "--json").json()
    assert again["new_hub_pk"] == asked["new_hub_pk"], "an endorsement may be on its way"
    before = rooted.identity
    assert len(before.signing_keys) == 1, "the key is not used before the root endorsed it"
    offline = Veen(tmp_path / "offline")
    signed = offline.done("root", "endorse", request, *rooted.with_root, "--out", answer, "--json").json()
    assert (signed["new_hub_pk"], signed["hub_id"]) == (asked["new_hub_pk"], before.hub_id.hex())
    rotated = rooted.veen.done(
        "hub", "rotate-key", "--data-dir", rooted.data_dir, "--endorsement", answer, "--json"
    ).json()
    assert rotated["new_hub_pk"] == asked["new_hub_pk"]
    rooted.identity.check_follows(before)
    used = rooted.veen("hub", "rotate-key", "--data-dir", rooted.data_dir, "--endorsement", answer)
    assert (used.status, "no key was requested" in used.err) == (6, True)


def test_a_root_endorses_only_requests_of_its_own_hub(rooted: Rooted, tmp_path: Path) -> None:
    request, answer = tmp_path / "a.request", tmp_path / "a.endorsement"
    rooted.veen.done("hub", "rotate-key", "--data-dir", rooted.data_dir, "--request", request)
    text = json.loads(request.read_text())
    for field in ("hub_id", "root_pk"):
        altered = tmp_path / f"{field}.request"
        wire = wire_json.decode(RootRequest, json.dumps({**text, field: "00" * 32}).encode())
        altered.write_bytes(wire_json.encode(wire))
        ran = rooted.veen("root", "endorse", altered, *rooted.with_root, "--out", answer)
        assert (ran.status, "nothing was signed" in ran.err) == (4, True), ran.err
        assert not answer.exists()


def test_an_endorsement_for_another_key_is_refused(rooted: Rooted, tmp_path: Path) -> None:
    """A thief who can replace the request on its way gets an endorsement that the hub does not accept."""
    request, answer = tmp_path / "a.request", tmp_path / "a.endorsement"
    rooted.veen.done("hub", "rotate-key", "--data-dir", rooted.data_dir, "--request", request)
    text = json.loads(request.read_text())
    text["key"]["hub_pk"] = SigningKey.generate().public_key.hex()
    request.write_bytes(wire_json.encode(wire_json.decode(RootRequest, json.dumps(text).encode())))
    rooted.veen.done("root", "endorse", request, *rooted.with_root, "--out", answer)
    ran = rooted.veen("hub", "rotate-key", "--data-dir", rooted.data_dir, "--endorsement", answer)
    assert (ran.status, "it answers another request" in ran.err) == (4, True), ran.err
    assert len(rooted.identity.signing_keys) == 1


def test_a_wrong_passphrase_and_a_foreign_file_are_named(rooted: Rooted, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    ran = rooted.veen("root", "show", "--root", rooted.root, "--passphrase-file", wrong)
    assert (ran.status, "the passphrase is wrong" in ran.err) == (4, True)
    ran = rooted.veen("root", "show", "--root", rooted.passphrase, "--passphrase-file", wrong)
    assert "it is not a root key file" in ran.err
    rooted.veen.done("keygen", "--out", tmp_path / "alice", "--passphrase-file", rooted.passphrase)
    keystore = tmp_path / "alice" / "keystore.enc"
    ran = rooted.veen("root", "show", "--root", keystore, "--passphrase-file", rooted.passphrase)
    assert "it contains other secrets than a root key" in ran.err


def test_a_copy_of_the_directory_cannot_rotate_without_the_root(rooted: Rooted, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(rooted.data_dir, copy)
    ran = rooted.veen("hub", "rotate-key", "--data-dir", copy)
    assert (ran.status, "the root key must endorse" in ran.err) == (2, True)
    rooted.veen.done("hub", "init", "--data-dir", tmp_path / "own", "--passphrase-file", rooted.passphrase)
    own = ("--root", tmp_path / "own.root", "--passphrase-file", rooted.passphrase)
    assert rooted.veen("hub", "rotate-key", "--data-dir", copy, *own).status == 4
    assert rooted.veen("root", "adopt", "--data-dir", copy, "--root", tmp_path / "second.root").status == 6
    assert metadata.read_metadata(Folders(copy)).identity == rooted.identity


def test_a_fresh_client_refuses_a_stolen_key_that_rotates_to_a_key_of_its_own(rooted: Rooted) -> None:
    """The thief has the whole directory, and writes the record that a hub without a root would accept."""
    first = rooted.identity
    stolen = metadata.read_signing_key(Folders(rooted.data_dir), first.newest.key_id)
    with background(rooted.veen, rooted.data_dir, "--admission", "open") as started:
        sent = rooted.send(started["url"], "alice", "before", "--pin", first.hub_id.hex())
        assert sent["status"] == 0, sent
    rooted.veen.done("hub", "rotate-key", "--data-dir", rooted.data_dir, *rooted.with_root)
    with background(rooted.veen, rooted.data_dir, "--admission", "open") as started:
        assert rooted.send(started["url"], "alice", "after", "--pin", first.hub_id.hex())["status"] == 0
        assert rooted.send(started["url"], "bob", "after", "--pin", first.hub_id.hex())["status"] == 0
    with hostile_hub() as thief:
        thief.key, at = SigningKey.generate(), first.newest.valid_from + 1
        digest = identities.endorsement_digest(first.hub_id, thief.key.public_key, at)
        thief.identity = identities.add_key(first, thief.key.public_key, at, stolen.sign(digest), at)
        for client in ("carol", "alice"):
            refused = rooted.send(thief.url, client, "to the thief", "--pin", first.hub_id.hex())
            assert refused["status"] == 4, refused
            assert "wrong key" in str(refused["err"])
        assert thief.submitted == []


def test_an_older_directory_adopts_a_root_once(rooted: Rooted, veen: Veen, data_dir_without: Path) -> None:
    before = metadata.read_metadata(Folders(data_dir_without)).identity
    veen.done("hub", "rotate-key", "--data-dir", data_dir_without)
    file = data_dir_without.with_name("old.root")
    options = ("--root", file, "--passphrase-file", rooted.passphrase)
    shown = veen.done("root", "adopt", "--data-dir", data_dir_without, *options, "--json").json()
    adopted = metadata.read_metadata(Folders(data_dir_without)).identity
    adopted.check_follows(before)
    assert shown["hub_id"] == before.hub_id.hex()
    assert [key.role for key in adopted.hub_keys] == [None, None, "root"]
    again = veen("root", "adopt", "--data-dir", data_dir_without, "--root", file.with_name("second.root"))
    assert (again.status, "already has a root key" in again.err) == (6, True)
    assert veen("hub", "rotate-key", "--data-dir", data_dir_without).status == 2
    veen.done("hub", "rotate-key", "--data-dir", data_dir_without, *options)
    rotated = metadata.read_metadata(Folders(data_dir_without)).identity
    rotated.check_follows(adopted)
    assert [key.role for key in rotated.hub_keys] == [None, None, "root", None]
    assert veen.done("fsck", data_dir_without, "--json").json()["verdict"] == "clean"
    with background(veen, data_dir_without, "--admission", "open") as started:
        assert rooted.send(started["url"], "alice", "still here", "--pin", before.hub_id.hex())["status"] == 0


@pytest.fixture
def data_dir_without(veen: Veen, tmp_path: Path) -> Path:
    veen.done("hub", "init", "--data-dir", tmp_path / "old", "--no-root")
    return tmp_path / "old"


def test_a_fork_has_a_root_key_of_its_own(rooted: Rooted, tmp_path: Path) -> None:
    into, key = tmp_path / "fork", ("--passphrase-file", rooted.with_root[-1])
    command = ("hub", "fork", "--data-dir", rooted.data_dir, "--into", into)
    assert rooted.veen(*command, "--root", tmp_path / "x.root", "--no-root").status == 2
    assert rooted.veen("hub", "fork", "--data-dir", tmp_path / "none", "--into", into, *key).status == 6
    assert not (tmp_path / "fork.root").exists(), "no hub belongs to it"
    made = rooted.veen.done(*command, *key)
    assert "move the root key file" in made.err
    forked = metadata.read_metadata(Folders(into)).identity
    assert forked.origin is not None
    assert forked.origin.hub_id == rooted.identity.hub_id
    assert [one.role for one in forked.hub_keys] == ["root", None]
    shown = rooted.veen.done("root", "show", "--root", tmp_path / "fork.root", *key, "--json").json()
    assert shown["hub_id"] == forked.hub_id.hex() != rooted.identity.hub_id.hex()
    rooted.veen.done("hub", "rotate-key", "--data-dir", into, "--root", tmp_path / "fork.root", *key)
    assert rooted.veen.done("fsck", into, "--json").json()["verdict"] == "clean"


def test_a_running_hub_with_epochs_destroys_its_old_key(rooted: Rooted, tmp_path: Path) -> None:
    data_dir, veen = tmp_path / "daily", rooted.veen
    veen.env["VEEN_OPERATOR_TOKEN"] = "operator"
    lowered = ("--epoch-sec", 86400, "--limit", "max_epoch_skew_sec=0")
    veen.done("hub", "init", "--data-dir", data_dir, "--no-root", *lowered)
    with background(veen, data_dir, "--admission", "open"):
        shown = veen.done("hub", "rotate-key", "--data-dir", data_dir, "--destroy-old", "--json").json()
        assert len(shown["destroyed"]) == 1
        veen.done("hub", "rotate-key", "--data-dir", data_dir)
    assert len(list((data_dir / "keys").iterdir())) == 3, "two signing keys and the control key"
    assert veen.done("fsck", data_dir, "--json").json()["verdict"] == "clean"


def test_a_running_hub_is_rotated_with_its_root(rooted: Rooted) -> None:
    rooted.veen.env["VEEN_OPERATOR_TOKEN"] = "operator"
    started = rooted.veen.apart(
        "hub", "start", "--data-dir", rooted.data_dir, *ANY_PORT, "--admission", "open", "--json"
    )
    assert started.status == 0, started.err
    url, hub_id = started.json()["url"], rooted.identity.hub_id.hex()
    try:
        assert rooted.send(url, "alice", "before", "--pin", hub_id)["status"] == 0
        command = ("hub", "rotate-key", "--data-dir", rooted.data_dir, *rooted.with_root)
        assert rooted.veen(*command, env={"VEEN_OPERATOR_TOKEN": ""}).status == 2, "the operator's token is missing"
        shown = rooted.veen.done(*command, "--destroy-old", "--json").json()
        assert (len(shown["destroyed"]), len(rooted.identity.signing_keys)) == (1, 2)
        assert rooted.send(url, "alice", "after")["status"] == 0
        status = rooted.veen.done("hub", "status", "--hub", url, "--json").json()
        assert status["hub_pk"] == shown["new_hub_pk"]
        (made,) = rooted.veen.done("hub", "handover", "--data-dir", rooted.data_dir, "--json").json()
        assert made["root_signed"]
        given = ("--hub", url, "--client", rooted.place / "alice", "--stream", "doors")
        rooted.veen.done("checkpoint", "--upto", 1, "--out", rooted.place / "1.checkpoint", *given)
        rooted.veen.done("receipt", 1, "--out", rooted.place / "1.receipt", *given)
        backup = rooted.veen.done(
            *("hub", "backup", "--data-dir", rooted.data_dir, "--to", rooted.place / "backups", "--with-keys", "--json")
        ).json()["backup"]
        bare = rooted.veen.done(
            *("hub", "backup", "--data-dir", rooted.data_dir, "--to", rooted.place / "bare", "--json")
        ).json()["backup"]
    finally:
        rooted.veen("hub", "stop", "--data-dir", rooted.data_dir)
    files = (rooted.place / "1.checkpoint", rooted.place / "1.receipt")
    held = rooted.veen.done("verify", *files, *given[:4], "--json").json()
    assert [(one["held_by"], one["coverage"]) for one in held] == [
        ("key 2 of the hub", "current"),
        ("key 1 of the hub", "covered"),
    ]
    assert rooted.veen.done("fsck", rooted.data_dir, "--json").json()["verdict"] == "clean"
    new_key = metadata.key_name(bytes.fromhex(shown["new_key_id"]))
    for folder in (rooted.data_dir, Path(backup)):
        kept = {path.stem for path in (folder / "keys").iterdir()}
        assert kept == {new_key, metadata.CONTROL_KEY}, "the destroyed key is in no copy"
    assert not (Path(bare) / "keys").exists()
    for backups, client in (("backups", "bob"), ("bare", "carol")):
        restored = rooted.place / f"restored-{backups}"
        rooted.veen.done("hub", "restore", "--from", rooted.place / backups, "--data-dir", restored, *rooted.with_root)
        assert rooted.veen.done("fsck", restored, "--json").json()["verdict"] == "clean"
        with background(rooted.veen, restored, "--admission", "open") as again:
            assert rooted.send(again["url"], client, "goes on", "--pin", hub_id)["status"] == 0
            at = ("--hub", again["url"], "--client", rooted.place / client, "--stream", "doors")
            assert rooted.veen.done("verify", *at, "--json").json()["entries"] == 3, "one of them under the old key"
            first = rooted.place / f"{client}.receipt"
            rooted.veen.done("receipt", 1, "--out", first, *at)
            (held,) = rooted.veen.done("verify", first, *at[:4], "--json").json()
            assert (held["held_by"], held["coverage"]) == ("key 1 of the hub", "covered")
