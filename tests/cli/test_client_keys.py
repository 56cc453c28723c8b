"""`veen keygen|card|export-identity|import-identity`."""

import shutil
import stat
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.cli.terminal import run_on_terminal
from tests.cli.test_command_tree import TREE
from veen.client import Card, ClientDir


@pytest.fixture
def alice(veen: Veen, tmp_path: Path) -> Path:
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    return tmp_path / "alice"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A passphrase file with a line end."""
    (tmp_path / "secret.txt").write_bytes(b"correct horse\n")
    return tmp_path / "secret.txt"


def test_keygen_creates_a_private_folder_and_prints_the_public_keys(veen: Veen, tmp_path: Path) -> None:
    made = veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase", "--json").json()
    card = Card.decode((tmp_path / "alice" / "card.cbor").read_bytes())
    assert made["id_sign"] == card.id_sign.hex()
    assert made["id_dh"] == card.id_dh.hex()
    assert made["client_id"] == card.client_ids[0].hex()
    assert made["encrypted"] is False
    assert stat.S_IMODE((tmp_path / "alice").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "alice" / "keystore.key").stat().st_mode) == 0o600


def test_no_option_of_any_command_takes_a_passphrase_itself() -> None:
    names = {name for found in TREE for param in found.command.params for name in param.opts if "passphrase" in name}
    assert names == {"--passphrase-file", "--key-passphrase-file", "--new-passphrase-file", "--no-passphrase"}


def test_a_passphrase_comes_from_a_file_or_the_environment(veen: Veen, tmp_path: Path, secret: Path) -> None:
    assert veen.done("keygen", "--out", tmp_path / "a", "--passphrase-file", secret, "--json").json()["encrypted"]
    show = ["stream-key", "show", "--client", tmp_path / "a"]
    for env in ({"VEEN_PASSPHRASE": "correct horse"}, {"VEEN_PASSPHRASE_FILE": str(secret)}):
        veen.done(*show, env=env)
    wrong = veen(*show, env={"VEEN_PASSPHRASE": "correct horse\n"})
    assert wrong.status == 4
    assert "the passphrase is wrong" in wrong.error
    assert "evidence" not in wrong.err


@pytest.mark.parametrize("content", [b"", b"\n", b"one\ntwo\n", b"one\n\n"])
def test_a_passphrase_file_must_have_exactly_one_line(content: bytes, veen: Veen, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(content)
    ran = veen("keygen", "--out", tmp_path / "a", "--passphrase-file", tmp_path / "p")
    assert ran.status == 2
    assert "must contain one line" in ran.error
    assert not (tmp_path / "a").exists()


def test_no_passphrase_and_a_file_of_one_contradict_each_other(veen: Veen, tmp_path: Path, secret: Path) -> None:
    ran = veen("keygen", "--out", tmp_path / "a", "--no-passphrase", "--passphrase-file", secret)
    assert ran.status == 2
    assert not (tmp_path / "a").exists()


def test_a_folder_that_is_not_empty_is_not_changed(veen: Veen, alice: Path) -> None:
    before = (alice / "card.cbor").read_bytes()
    ran = veen("keygen", "--out", alice, "--no-passphrase")
    assert ran.status == 6
    assert ran.error
    assert (alice / "card.cbor").read_bytes() == before


def test_the_prompt_asks_twice_for_a_new_passphrase_and_once_for_an_old_one(veen: Veen, tmp_path: Path) -> None:
    answers = (b"new passphrase for", b"opens it\n"), (b"repeat the passphrase: ", b"opens it\n")
    status, seen = run_on_terminal(veen, ["keygen", "--out", tmp_path / "a"], *answers)
    assert status == 0
    assert "opens it" not in seen
    show = ["stream-key", "create", "x", "--client", tmp_path / "a"]
    assert run_on_terminal(veen, show, (b"passphrase of", b"opens it\n"))[0] == 0
    assert run_on_terminal(veen, show, (b"passphrase of", b"does not\n"))[0] == 4


@pytest.mark.parametrize("answers", [(b"one\n", b"two\n"), (b"\n",)])
def test_a_mistyped_or_empty_passphrase_creates_nothing(answers: tuple[bytes, ...], veen: Veen, tmp_path: Path) -> None:
    questions = (b"new passphrase for", b"repeat the passphrase: ")
    pairs = zip(questions, answers, strict=False)
    assert run_on_terminal(veen, ["keygen", "--out", tmp_path / "a"], *pairs)[0] == 2
    assert not (tmp_path / "a").exists()


def test_a_card_is_shown_from_a_folder_or_a_file_without_a_passphrase(veen: Veen, tmp_path: Path, secret: Path) -> None:
    veen.done("keygen", "--out", tmp_path / "a", "--passphrase-file", secret)
    own = veen.done("card", "--client", tmp_path / "a", "--out", tmp_path / "a.card", "--json").json()
    sent = veen.done("card", tmp_path / "a.card", "--json").json()
    assert {**own, "file": None} == {**sent, "file": None}
    assert len(sent["client_ids"]) == len(set(sent["client_ids"])) == 8
    assert (tmp_path / "a.card").read_bytes() == (tmp_path / "a" / "card.cbor").read_bytes()


def test_an_altered_card_is_rejected(veen: Veen, alice: Path, tmp_path: Path) -> None:
    whole = (alice / "card.cbor").read_bytes()
    at = whole.index(Card.decode(whole).client_ids[2])
    (tmp_path / "bad").write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
    altered = veen("card", tmp_path / "bad")
    assert altered.status == 4
    assert "signature does not verify" in altered.error
    (tmp_path / "bad").write_bytes(whole[:-1])
    cut = veen("card", tmp_path / "bad")
    assert cut.status == 3
    assert "not an identity card" in cut.error


def test_only_the_owner_can_renew_a_card(veen: Veen, alice: Path, tmp_path: Path) -> None:
    veen.done("card", "--renew", "--client", alice)
    assert veen("card", alice / "card.cbor", "--renew").status == 2
    assert veen("card", tmp_path / "nobody").status == 6


def test_an_existing_file_is_never_overwritten(veen: Veen, alice: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in ("mine", "link"):
        ran = veen("card", "--client", alice, "--out", tmp_path / taken)
        assert ran.status == 2
        assert "already exists" in ran.error
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_an_identity_is_exported_and_imported(veen: Veen, tmp_path: Path, secret: Path) -> None:
    key = ["--passphrase-file", secret]
    veen.done("keygen", "--out", tmp_path / "a", *key)
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "a", *key)
    made = veen.done("export-identity", "--client", tmp_path / "a", "--out", tmp_path / "set", *key, "--json").json()
    assert made["encrypted"] is True
    copied = veen.done("import-identity", tmp_path / "set", "--out", tmp_path / "b", *key, "--json").json()
    moved = veen.done("import-identity", tmp_path / "set", "--out", tmp_path / "c", "--moved", *key, "--json").json()
    original = veen.done("card", tmp_path / "a", "--json").json()
    assert copied["id_sign"] == moved["id_sign"] == original["id_sign"]
    assert moved["client_id"] == original["client_ids"][0]
    assert copied["client_id"] not in original["client_ids"]
    shown = veen.done("stream-key", "show", "--client", tmp_path / "b", *key).out
    assert shown == veen.done("stream-key", "show", "--client", tmp_path / "a", *key).out


def test_the_keys_of_an_export_can_get_another_passphrase(veen: Veen, alice: Path, secret: Path) -> None:
    out = alice.parent / "set"
    veen.done("export-identity", "--client", alice, "--out", out, "--new-passphrase-file", secret)
    into = ["import-identity", out, "--out", alice.parent / "b"]
    wrong = veen(*into, env={"VEEN_PASSPHRASE": "wrong"})
    assert wrong.status == 4
    assert not (alice.parent / "b").exists()
    veen.done(*into, "--passphrase-file", secret)


def test_an_export_without_a_passphrase_gives_a_hint(veen: Veen, alice: Path) -> None:
    ran = veen.done("export-identity", "--client", alice, "--out", alice.parent / "set")
    assert "are not encrypted" in ran.err


@pytest.mark.parametrize("name", ["card.cbor", "manifest.cbor", "keystore.key", "state.cborseq"])
def test_an_altered_export_creates_nothing(name: str, veen: Veen, alice: Path) -> None:
    out, into = alice.parent / "set", alice.parent / "b"
    veen.done("export-identity", "--client", alice, "--out", out)
    data = (out / name).read_bytes()
    (out / name).write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    ran = veen("import-identity", out, "--out", into)
    assert ran.status in (3, 4)
    assert ran.error
    assert not into.exists()


def test_import_needs_an_export_and_a_new_folder(veen: Veen, alice: Path, tmp_path: Path) -> None:
    veen.done("export-identity", "--client", alice, "--out", tmp_path / "set")
    assert veen("import-identity", tmp_path / "none", "--out", tmp_path / "b").status == 6
    assert veen("import-identity", alice, "--out", tmp_path / "b").status == 6
    assert veen("import-identity", tmp_path / "set", "--out", alice).status == 6
    with ClientDir.open(alice):
        pass


def test_a_folder_that_is_not_a_private_client_directory_is_rejected(veen: Veen, alice: Path) -> None:
    assert "no client directory at" in veen("stream-key", "show", "--client", alice / "x").error
    assert "missing --client DIR" in veen("stream-key", "show").error
    alice.chmod(0o755)
    assert "is accessible to others" in veen("stream-key", "show", "--client", alice).error
    alice.chmod(0o700)
    shutil.rmtree(alice / "state")
    assert "is not a client directory" in veen("stream-key", "show", "--client", alice).error


@pytest.mark.parametrize("command", [["keygen", "--out"], ["stream-key", "create", "doors", "--client"]])
def test_a_missing_passphrase_file_is_an_error(command: list[str], veen: Veen, tmp_path: Path) -> None:
    if command[0] != "keygen":
        veen.done("keygen", "--out", tmp_path / "a", env={"VEEN_PASSPHRASE": "secret"})
    ran = veen(*command, tmp_path / "a", "--passphrase-file", tmp_path / "none")
    assert ran.status == 2
    assert "the passphrase cannot be read" in ran.error
    assert "--passphrase-file FILE" in ran.err
    assert "veen keygen" not in ran.err
