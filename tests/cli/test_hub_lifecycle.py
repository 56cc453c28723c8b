"""`veen hub init|start|stop`: data directories, background hubs and their records."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.http.certificates import write_certificate
from tests.hub.client import until
from veen.cli.hub import hub_process
from veen.core import Limits, Unavailable, naming
from veen.storage.lock import exclusive
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

ANY_PORT = ("--listen", "127.0.0.1:0", "--workers", "0")


@contextmanager
def background(veen: Veen, data_dir: Path, *options: object) -> Iterator[dict[str, object]]:
    """A hub in the background; yields the JSON that `veen hub start` printed."""
    started = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT, *options, "--json")
    assert started.status == 0, started.err
    try:
        yield started.json()
    finally:
        veen("hub", "stop", "--data-dir", data_dir)


def test_init_creates_a_directory_and_prints_the_hub_id(veen: Veen, tmp_path: Path) -> None:
    shown = veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root", "--json").json()
    hub_metadata = read_metadata(Folders(tmp_path / "hub"))
    assert shown["hub_id"] == hub_metadata.identity.hub_id.hex()
    assert shown["hub_pk"] == hub_metadata.identity.newest.hub_pk.hex()
    assert shown["profile_id"] == hub_metadata.profile.profile_id().hex()


def test_profile_and_limits_are_chosen_at_init(veen: Veen, tmp_path: Path) -> None:
    chosen = [
        "--epoch-sec",
        60,
        "--pad-block",
        0,
        "--limit",
        "max_attachments_per_msg=3",
        "--limit",
        "max_hdr_bytes=99",
    ]
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root", *chosen)
    hub_metadata = read_metadata(Folders(tmp_path / "hub"))
    assert (hub_metadata.profile.epoch_sec, hub_metadata.profile.pad_block) == (60, 0)
    assert hub_metadata.limits == replace(Limits(), max_attachments_per_msg=3, max_hdr_bytes=99)


@pytest.mark.parametrize(
    "options",
    [
        ["--pad-block", "65537"],
        ["--limit", "max_colour=1"],
        ["--limit", "max_msg_bytes=1048577"],
        ["--limit", "max_chunk_bytes=1"],
        ["--epoch-sec", str(1 << 64)],
    ],
)
def test_invalid_limits_are_rejected_and_nothing_is_created(options: list[str], veen: Veen, tmp_path: Path) -> None:
    ran = veen("hub", "init", "--data-dir", tmp_path / "hub", "--no-root", *options)
    assert ran.status == 2
    assert ran.error
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("named", ["town", naming.realm_id("town").hex()])
def test_a_realm_is_chosen_at_init_and_is_signed_with_the_identity(named: str, veen: Veen, tmp_path: Path) -> None:
    shown = veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root", "--realm", named, "--json").json()
    hub_metadata = read_metadata(Folders(tmp_path / "hub"))
    assert hub_metadata.identity.realm_id == naming.realm_id("town")
    assert shown["realm_id"] == naming.realm_id("town").hex()
    assert veen.done("fsck", tmp_path / "hub").status == 0
    altered = (tmp_path / "hub" / "hub-identity.json").read_text().replace(shown["realm_id"], "00" * 32)
    (tmp_path / "hub" / "hub-identity.json").write_text(altered)
    assert veen("hub", "start", "--data-dir", tmp_path / "hub", "--foreground").status == 4


def test_without_a_realm_no_realm_id_is_printed(veen: Veen, tmp_path: Path) -> None:
    assert "realm_id" not in veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root", "--json").json()
    assert read_metadata(Folders(tmp_path / "hub")).identity.realm_id is None
    assert veen("hub", "init", "--data-dir", tmp_path / "other", "--no-root", "--realm", "").status == 2


def test_rotating_the_key_does_not_change_the_realm(veen: Veen, tmp_path: Path) -> None:
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root", "--realm", "town")
    veen.done("hub", "rotate-key", "--data-dir", tmp_path / "hub")
    identity = read_metadata(Folders(tmp_path / "hub")).identity
    assert (len(identity.hub_keys), identity.realm_id) == (2, naming.realm_id("town"))


def test_proof_of_work_and_networks_reach_the_hub(veen: Veen, data_dir: Path) -> None:
    options = ("--admission", "open", "--pow-difficulty", 4, "--deny-network", "127.0.0.0/8", "--deny-network", "::1")
    with background(veen, data_dir, *options) as shown:
        status = veen.done("hub", "status", "--data-dir", data_dir, "--json").json()
        assert status["pow_difficulty"] == 4
        veen.done("keygen", "--out", data_dir.parent / "alice", "--no-passphrase")
        veen.done("stream-key", "create", "doors", "--client", data_dir.parent / "alice")
        who = ("--hub", shown["url"], "--client", data_dir.parent / "alice", "--pin", data_dir)
        ran = veen("send", "--stream", "doors", "--body", "x", *who)
        assert ran.status == 5
        assert ran.error.startswith("E.AUTH/PREFILTER_REJECT: this hub does not accept messages from your address")
    with background(veen, data_dir, "--admission", "open", "--pow-difficulty", 4) as shown:
        who = ("--hub", shown["url"], "--client", data_dir.parent / "alice", "--pin", data_dir)
        assert veen.done("send", "--stream", "doors", "--body", "x", *who).status == 0


def test_a_folder_that_is_not_empty_is_not_changed(veen: Veen, data_dir: Path) -> None:
    before = sorted(data_dir.rglob("*"))
    ran = veen("hub", "init", "--data-dir", data_dir, "--no-root")
    assert ran.status == 6
    assert ran.error == f"{data_dir} is not empty"
    assert sorted(data_dir.rglob("*")) == before


def test_a_background_hub_is_ready_when_the_command_exits(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir) as shown:
        status = veen.done("hub", "status", "--hub", shown["url"], "--json").json()
        assert status["state"] == "ready"
        local = veen.done("hub", "status", "--data-dir", data_dir, "--json").json()
        assert (local["url"], local["pid"]) == (shown["url"], shown["pid"])
        log = Path(str(shown["log"]))
        assert json.loads(log.read_text().splitlines()[0])["event"] == "started"
        assert log.is_relative_to(veen.home / "state")
        assert oct(log.stat().st_mode)[-3:] == "600"
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"


def test_start_prints_how_to_stop_the_hub(veen: Veen, data_dir: Path) -> None:
    ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT, "--admission", "open")
    assert ran.err == f"veen: hint: veen hub stop --data-dir {data_dir} stops it\n"
    assert ran.facts()["url"].startswith("http://127.0.0.1:")
    stopped = veen.done("hub", "stop", "--data-dir", data_dir)
    assert stopped.facts()["stopped"] == ran.facts()["url"]


def test_after_stop_the_directory_is_unlocked(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir):
        assert hub_process.is_locked(data_dir)
        veen.done("hub", "stop", "--data-dir", data_dir)
        with exclusive(Folders(data_dir).lock):
            assert hub_process.find(data_dir) is None
    assert list((veen.home / "run" / "veen").iterdir()) == []


def test_a_second_hub_on_a_directory_is_refused(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir) as shown:
        ran = veen("hub", "start", "--data-dir", data_dir, *ANY_PORT)
        assert ran.status == 6
        assert ran.error == "a hub is already running on this data directory"
        assert "veen hub stop" in ran.err
        assert veen.done("hub", "status", "--data-dir", data_dir, "--json").json()["pid"] == shown["pid"]


def test_starting_on_a_folder_that_is_not_a_data_directory_names_it(veen: Veen, tmp_path: Path) -> None:
    for options in ([], ["--foreground"]):
        ran = veen("hub", "start", "--data-dir", tmp_path / "none", *ANY_PORT, *options)
        assert ran.status == 6
        assert "is not a data directory of a hub" in ran.error
        assert "veen hub init" in ran.err


def test_a_port_in_use_is_named(veen: Veen, data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = veen("hub", "start", "--data-dir", data_dir, "--listen", where, "--workers", "0")
        assert ran.status == 6
        assert f"cannot listen on {where}" in ran.error
        assert "--listen HOST:PORT" in ran.err
        assert "may work later" not in ran.err
    assert not hub_process.is_locked(data_dir)


@pytest.mark.parametrize("whole", [True, False])
def test_missing_keys_get_a_hint_to_the_backup_and_not_to_init(whole: bool, veen: Veen, data_dir: Path) -> None:
    for path in (data_dir / "keys").iterdir():
        path.unlink()
    if whole:
        (data_dir / "keys").rmdir()
    ran = veen("hub", "start", "--data-dir", data_dir, *ANY_PORT)
    assert ran.status == 6
    assert "keys" in ran.error
    assert "restore the keys from a backup" in ran.err
    assert "veen hub init" not in ran.err


def test_one_missing_key_gets_a_hint_to_fsck(veen: Veen, data_dir: Path) -> None:
    (data_dir / "keys" / "control.seed").unlink()
    ran = veen("hub", "start", "--data-dir", data_dir, *ANY_PORT)
    assert "control.seed" in ran.error
    assert f"veen fsck {data_dir}" in ran.err
    assert "veen hub init" not in ran.err


def test_a_hub_without_an_issuer_warns_once_at_start(veen: Veen, data_dir: Path) -> None:
    ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT)
    veen.done("hub", "stop", "--data-dir", data_dir)
    assert ran.err.count("veen: warning: no --issuer given: only clients with a capability") == 1


def test_an_issuer_is_named_by_client_directory_or_card(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    veen.done("keygen", "--out", tmp_path / "operator", "--no-passphrase")
    for named in (tmp_path / "operator", tmp_path / "operator" / "card.cbor"):
        ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT, "--issuer", named)
        veen.done("hub", "stop", "--data-dir", data_dir)
        assert "warning" not in ran.err


@pytest.mark.parametrize("named", ["nobody", "ab" * 31, "ab" * 33])
def test_an_invalid_issuer_is_rejected(named: str, veen: Veen, data_dir: Path) -> None:
    ran = veen("hub", "start", "--data-dir", data_dir, *ANY_PORT, "--issuer", named)
    assert ran.status == 2
    assert "client directory or card" in ran.error


def test_open_admission_on_all_addresses_needs_confirmation(veen: Veen, data_dir: Path) -> None:
    ran = veen("hub", "start", "--data-dir", data_dir, "--admission", "open", "--listen", "0.0.0.0:0")
    assert ran.status == 2
    assert ran.error == "open admission on 0.0.0.0 lets anyone who can reach it write"
    assert "--open-to-the-network" in ran.err
    assert not hub_process.is_locked(data_dir)


def test_options_reach_the_hub(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("[profile.lab]\nadmission = 'open'\n")
    with background(veen, data_dir, "--config", file, "--profile", "lab") as shown:
        assert veen.done("hub", "status", "--hub", shown["url"], "--json").json()["admission"] == "open"


def test_a_hub_with_tls_is_reached_by_its_data_directory(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with background(veen, data_dir, "--tls-cert", cert, "--tls-key", key) as shown:
        assert str(shown["url"]).startswith("https://127.0.0.1:")
        assert veen.done("hub", "health", "--data-dir", data_dir).facts()["ready"] == "yes"
        ran = veen("hub", "health", "--hub", shown["url"])  # the certificate is self-signed
        assert ran.status == 4
        assert "not trusted: self-signed certificate" in ran.error


def test_a_local_hub_is_reached_without_the_proxy(veen: Veen, data_dir: Path) -> None:
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    with background(veen, data_dir):
        assert veen.done("hub", "health", "--data-dir", data_dir, env=nowhere).facts()["ready"] == "yes"


def test_the_log_is_written_to_the_given_file(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    with background(veen, data_dir, "--log-file", tmp_path / "logs" / "hub.log") as shown:
        assert shown["log"] == str(tmp_path / "logs" / "hub.log")
    assert (tmp_path / "logs" / "hub.log").read_text().count("\n") == 2


def test_stop_fails_if_no_hub_runs(veen: Veen, data_dir: Path) -> None:
    ran = veen("hub", "stop", "--data-dir", data_dir)
    assert ran.status == 6
    assert ran.error == f"no hub runs on {data_dir}"


def test_a_directory_that_another_process_has_locked_is_reported(veen: Veen, data_dir: Path) -> None:
    with exclusive(Folders(data_dir).lock):
        for command in ("stop", "status", "health", "metrics"):
            ran = veen("hub", command, "--data-dir", data_dir)
            assert ran.status == 6
            assert ran.error == f"{data_dir} is locked by another process (pid unknown)"


def record(veen: Veen, data_dir: Path) -> Path:
    return veen.home / "run" / "veen" / f"{hub_process.name_of(data_dir)}.json"


def test_the_record_of_a_killed_hub_is_ignored(veen: Veen, data_dir: Path) -> None:
    shown = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT, "--json").json()
    os.kill(int(shown["pid"]), signal.SIGKILL)
    until(lambda: not hub_process.is_locked(data_dir))
    assert record(veen, data_dir).exists()
    assert veen("hub", "stop", "--data-dir", data_dir).error == f"no hub runs on {data_dir}"
    assert veen.done("hub", "status", "--data-dir", data_dir).facts()["state"] == "stopped"
    with background(veen, data_dir):
        assert veen.done("hub", "status", "--data-dir", data_dir).facts()["state"] == "ready"


def test_the_next_start_removes_records_of_killed_hubs(
    veen: Veen, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", veen.env["XDG_RUNTIME_DIR"] or "")
    gone, broken, other = (record(veen, tmp_path / name) for name in ("gone", "broken", "other"))
    gone.parent.mkdir(mode=0o700)
    gone.write_text(
        json.dumps(asdict(hub_process.HubProcess(os.getpid(), 1, "http://x", str(tmp_path / "gone"), None)))
    )
    broken.write_text("{")
    other.write_text(json.dumps(asdict(hub_process.HubProcess.here("http://y", tmp_path / "other", None))))
    with hub_process.recorded(hub_process.HubProcess.here("http://x", data_dir, None)):
        assert sorted(gone.parent.iterdir()) == sorted([other, record(veen, data_dir)])
    assert list(gone.parent.iterdir()) == [other]


def test_another_process_with_the_same_pid_is_not_stopped(
    veen: Veen, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", veen.env["XDG_RUNTIME_DIR"] or "")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        kept = record(veen, data_dir)
        kept.parent.mkdir(mode=0o700)
        fake = hub_process.HubProcess(bystander.pid, 1, "http://x", str(data_dir), None)
        kept.write_text(json.dumps(asdict(fake)))
        assert hub_process.find(data_dir) is None
        assert veen("hub", "stop", "--data-dir", data_dir).status == 6
        assert hub_process.stop(fake, 1.0) is True  # the recorded process has ended
        assert bystander.poll() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', '{"pid": "x", "started": 1}'])
def test_an_invalid_record_is_ignored(text: str, veen: Veen, data_dir: Path) -> None:
    kept = record(veen, data_dir)
    kept.parent.mkdir(mode=0o700)
    kept.write_text(text)
    assert veen.done("hub", "status", "--data-dir", data_dir).facts()["state"] == "stopped"


def test_a_record_in_a_folder_that_others_can_write_is_ignored(
    veen: Veen, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", veen.env["XDG_RUNTIME_DIR"] or "")
    kept = record(veen, data_dir)
    kept.parent.mkdir(mode=0o700)
    with hub_process.recorded(hub_process.HubProcess.here("http://x", data_dir, None)):
        assert hub_process.find(data_dir) is not None
        kept.parent.chmod(0o777)
        assert hub_process.find(data_dir) is None


def test_a_hub_serves_even_if_its_record_cannot_be_written(
    veen: Veen, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", veen.env["XDG_RUNTIME_DIR"] or "")
    (veen.home / "run" / "veen").write_text("a file is in the way")
    with hub_process.recorded(hub_process.HubProcess.here("http://x", data_dir, None)):
        assert hub_process.find(data_dir) is None
    assert "veen: warning: cannot record this process" in capsys.readouterr().err


def test_a_hub_that_does_not_stop_in_time_is_reported_and_not_killed(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir) as shown:
        pid = int(str(shown["pid"]))
        os.kill(pid, signal.SIGSTOP)
        try:
            ran = veen("hub", "stop", "--data-dir", data_dir, "--timeout", "0")
            assert ran.status == 6
            assert "did not stop within 0 s" in ran.error
        finally:
            os.kill(pid, signal.SIGCONT)


def test_the_container_command_serves_in_the_foreground(veen: Veen, data_dir: Path) -> None:
    code = "import sys; sys.argv[0] = 'veen-hub'; from veen.cli.app import hub_main; hub_main()"
    command = [sys.executable, "-c", code, f"--data-dir={data_dir}", *ANY_PORT, "--admission=open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=veen.shell_env(os.environ)) as hub:
        assert hub.stderr is not None
        started = json.loads(hub.stderr.readline())
        assert started["event"] == "started"
        port = started["listen"].rpartition(":")[2]
        assert veen.done("hub", "health", "--hub", f"http://127.0.0.1:{port}").facts()["ready"] == "yes"
        veen.done("hub", "stop", "--data-dir", data_dir)  # one in the foreground can be stopped as well
        assert json.loads(hub.stderr.read())["event"] == "stopped"
        assert hub.wait() == 0


def test_the_container_command_has_the_other_commands_too(veen: Veen) -> None:
    code = "import sys; sys.argv = ['veen-hub', {}]; from veen.cli.app import hub_main; hub_main()"
    for arguments in ("", "'--help'", "'start', '--help'"):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(arguments)],
            capture_output=True,
            text=True,
            env=veen.shell_env(os.environ),
        )
        assert "usage: veen hub" in ran.stdout + ran.stderr


def test_sigint_stops_a_foreground_hub_cleanly(veen: Veen, data_dir: Path) -> None:
    options = ["--foreground", "--data-dir", str(data_dir), *ANY_PORT, "--admission", "open"]
    command = [sys.executable, "-m", "veen.cli", "hub", "start", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=veen.shell_env(os.environ)) as hub:
        assert hub.stderr is not None
        hub.stderr.readline()
        hub.send_signal(signal.SIGINT)
        assert json.loads(hub.stderr.readline())["event"] == "stopped"
        assert hub.wait() == 0


def test_the_error_for_a_stopped_hub_says_how_to_start_it(data_dir: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        hub_process.need(data_dir)
    assert caught.value.__notes__ == [f"veen hub start --data-dir {data_dir} starts one"]


def test_a_hub_with_a_truncated_log_does_not_start_and_gets_a_hint_to_fsck(
    veen: Veen, data_dir: Path, tmp_path: Path
) -> None:
    client = ("--client", tmp_path / "alice", "--stream", "doors", "--pin", data_dir)
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "alice")
    with background(veen, data_dir, "--admission", "open") as shown:
        veen.done("send", *client, "--hub", shown["url"], "--body", "x")
    chunk = next((data_dir / "log").glob("chunk-*.log"))
    chunk.write_bytes(chunk.read_bytes()[:-7])
    ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT)
    assert ran.status == 3
    assert ran.error.startswith(f"{data_dir}: ")
    assert f"veen fsck {data_dir}" in ran.err


def test_a_reader_of_a_damaged_hub_gets_a_hint_for_its_operator(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    client = ("--client", tmp_path / "alice", "--stream", "doors", "--pin", data_dir)
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "alice")
    with background(veen, data_dir, "--admission", "open") as shown:
        veen.done("send", *client, "--hub", shown["url"], "--body", "x")
    chunk = next((data_dir / "log").glob("chunk-*.log"))
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with background(veen, data_dir, "--admission", "open") as shown:
        ran = veen("stream", *client, "--hub", shown["url"])
    assert ran.status == 6
    assert "stored data of the hub is damaged" in ran.error
    assert "veen fsck DIR" in ran.err
    assert "may work later" not in ran.err
