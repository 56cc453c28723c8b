"""`veen quickstart`."""

from pathlib import Path

from tests.cli.runner import Veen


def test_a_first_proof_needs_six_commands(tmp_path: Path) -> None:
    veen = Veen(tmp_path / "home")
    folder, file = tmp_path / "try", tmp_path / "one.evidence"
    veen.done("context", "add", "other", "--hub", "http://127.0.0.1:9")  # quickstart selects its own
    made = veen.done("quickstart", folder, "--stream", "notes", "--listen", "127.0.0.1:0", "--json").json()
    try:
        assert veen.done("send", "--body", "hello", "--json").json()["stream_seq"] == 1
        assert veen.done("stream", "--json").json()["text"] == "hello"
        veen.done("evidence", "make", 1, "--disclose", "--writer", folder / "me", "--out", file)
    finally:
        veen.done("hub", "stop", "--data-dir", folder / "hub")
    found = veen.done("evidence", "verify", file, "--pin", made["hub_id"], "--writer", folder / "me", "--json").json()
    assert (found["verdict"], found["entries"][0]["text"]) == ("it holds", "hello")
    assert [line.split()[1] for line in made["commands"]] == [
        *("keygen", "keygen", "hub", "hub", "stream-key", "cap", "context", "verify")
    ]


def test_every_step_is_printed_as_a_command(tmp_path: Path) -> None:
    veen = Veen(tmp_path / "home")
    ran = veen("quickstart", tmp_path / "try", "--listen", "nowhere")
    assert ran.status == 2
    assert f"veen: $ veen hub init --data-dir {tmp_path}/try/hub --no-root" in ran.err
    assert "'nowhere' is not HOST:PORT" in ran.err
    assert f"remove {tmp_path}/try" in ran.err


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    ran = Veen(tmp_path / "home")("quickstart", tmp_path)
    assert (ran.status, ran.error.endswith(f"{tmp_path} exists")) == (2, True)
    assert not (tmp_path / "hub").exists()
