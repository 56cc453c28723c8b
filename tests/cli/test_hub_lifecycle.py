"""`veen hub init|start|stop`: from an empty folder to a hub that serves in the background, and back."""

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

ANYWHERE = ("--listen", "127.0.0.1:0", "--workers", "0")


@contextmanager
def background(veen: Veen, data_dir: Path, *options: object) -> Iterator[dict[str, object]]:
    """A hub in the background, and what starting it printed."""
    started = veen.apart("hub", "start", "--data-dir", data_dir, *ANYWHERE, *options, "--json")
    assert started.status == 0, started.err
    told = started.json()
    try:
        yield told
    finally:
        veen("hub", "stop", "--data-dir", data_dir)


def test_init_makes_a_directory_and_tells_the_hub_id(veen: Veen, tmp_path: Path) -> None:
    told = veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--json").json()
    hub_metadata = read_metadata(Folders(tmp_path / "hub"))
    assert told["hub_id"] == hub_metadata.identity.hub_id.hex()
    assert told["hub_pk"] == hub_metadata.identity.newest.hub_pk.hex()
    assert told["profile_id"] == hub_metadata.profile.profile_id().hex()


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
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", *chosen)
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
def test_what_no_hub_may_have_is_refused_and_nothing_is_made(options: list[str], veen: Veen, tmp_path: Path) -> None:
    ran = veen("hub", "init", "--data-dir", tmp_path / "hub", *options)
    assert ran.status == 2
    assert ran.error
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("named", ["town", naming.realm_id("town").hex()])
def test_a_realm_is_chosen_at_init_and_is_in_what_the_hub_signs(named: str, veen: Veen, tmp_path: Path) -> None:
    told = veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--realm", named, "--json").json()
    hub_metadata = read_metadata(Folders(tmp_path / "hub"))
    assert hub_metadata.identity.realm_id == naming.realm_id("town")
    assert told["realm_id"] == naming.realm_id("town").hex()
    assert veen.done("fsck", tmp_path / "hub").status == 0
    altered = (tmp_path / "hub" / "hub-identity.json").read_text().replace(told["realm_id"], "00" * 32)
    (tmp_path / "hub" / "hub-identity.json").write_text(altered)
    assert veen("hub", "start", "--data-dir", tmp_path / "hub", "--foreground").status == 4


def test_without_a_realm_none_is_told(veen: Veen, tmp_path: Path) -> None:
    assert "realm_id" not in veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--json").json()
    assert read_metadata(Folders(tmp_path / "hub")).identity.realm_id is None
    assert veen("hub", "init", "--data-dir", tmp_path / "other", "--realm", "").status == 2


def test_a_rotated_key_leaves_the_realm_as_it_is(veen: Veen, tmp_path: Path) -> None:
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--realm", "town")
    veen.done("hub", "rotate-key", "--data-dir", tmp_path / "hub")
    identity = read_metadata(Folders(tmp_path / "hub")).identity
    assert (len(identity.hub_keys), identity.realm_id) == (2, naming.realm_id("town"))


def test_work_and_networks_reach_the_hub(veen: Veen, data_dir: Path) -> None:
    options = ("--admission", "open", "--pow-difficulty", 4, "--deny-network", "127.0.0.0/8", "--deny-network", "::1")
    with background(veen, data_dir, *options) as told:
        shown = veen.done("hub", "status", "--data-dir", data_dir, "--json").json()
        assert shown["pow_difficulty"] == 4
        veen.done("keygen", "--out", data_dir.parent / "alice", "--no-passphrase")
        veen.done("stream-key", "create", "doors", "--client", data_dir.parent / "alice")
        who = ("--hub", told["url"], "--client", data_dir.parent / "alice", "--pin", data_dir)
        ran = veen("send", "--stream", "doors", "--body", "x", *who)
        assert ran.status == 5
        assert ran.error.startswith("E.AUTH/PREFILTER_REJECT: this hub does not accept messages from your address")
    with background(veen, data_dir, "--admission", "open", "--pow-difficulty", 4) as told:
        who = ("--hub", told["url"], "--client", data_dir.parent / "alice", "--pin", data_dir)
        assert veen.done("send", "--stream", "doors", "--body", "x", *who).status == 0


def test_a_folder_that_has_something_in_it_is_left_alone(veen: Veen, data_dir: Path) -> None:
    before = sorted(data_dir.rglob("*"))
    ran = veen("hub", "init", "--data-dir", data_dir)
    assert ran.status == 6
    assert ran.error == f"{data_dir} is not empty"
    assert sorted(data_dir.rglob("*")) == before


def test_a_background_hub_is_ready_when_the_command_ends(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir) as told:
        status = veen.done("hub", "status", "--hub", told["url"], "--json").json()
        assert status["state"] == "ready"
        local = veen.done("hub", "status", "--data-dir", data_dir, "--json").json()
        assert (local["url"], local["pid"]) == (told["url"], told["pid"])
        log = Path(str(told["log"]))
        assert json.loads(log.read_text().splitlines()[0])["event"] == "started"
        assert log.is_relative_to(veen.home / "state")
        assert oct(log.stat().st_mode)[-3:] == "600"
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"


def test_starting_says_how_to_stop(veen: Veen, data_dir: Path) -> None:
    ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANYWHERE, "--admission", "open")
    assert ran.err == f"veen: hint: veen hub stop --data-dir {data_dir} ends it\n"
    assert ran.facts()["url"].startswith("http://127.0.0.1:")
    stopped = veen.done("hub", "stop", "--data-dir", data_dir)
    assert stopped.facts()["stopped"] == ran.facts()["url"]


def test_when_stop_ends_the_directory_is_free(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir):
        assert hub_process.is_locked(data_dir)
        veen.done("hub", "stop", "--data-dir", data_dir)
        with exclusive(Folders(data_dir).lock):
            assert hub_process.find(data_dir) is None
    assert list((veen.home / "run" / "veen").iterdir()) == []


def test_a_second_hub_on_a_directory_is_refused(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir) as told:
        ran = veen("hub", "start", "--data-dir", data_dir, *ANYWHERE)
        assert ran.status == 6
        assert ran.error == "another hub is running on this data directory"
        assert "veen hub stop" in ran.err
        assert veen.done("hub", "status", "--data-dir", data_dir, "--json").json()["pid"] == told["pid"]


def test_a_folder_that_is_no_hub_is_named(veen: Veen, tmp_path: Path) -> None:
    for options in ([], ["--foreground"]):
        ran = veen("hub", "start", "--data-dir", tmp_path / "none", *ANYWHERE, *options)
        assert ran.status == 6
        assert "is not a data directory of a hub" in ran.error
        assert "veen hub init" in ran.err


def test_a_port_that_is_taken_is_named(veen: Veen, data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = veen("hub", "start", "--data-dir", data_dir, "--listen", where, "--workers", "0")
        assert ran.status == 6
        assert f"cannot listen on {where}" in ran.error
        assert "--listen HOST:PORT" in ran.err
        assert "may work later" not in ran.err
    assert not hub_process.is_locked(data_dir)


@pytest.mark.parametrize("whole", [True, False])
def test_a_hub_whose_keys_are_gone_is_not_told_to_make_new_ones(whole: bool, veen: Veen, data_dir: Path) -> None:
    for path in (data_dir / "keys").iterdir():
        path.unlink()
    if whole:
        (data_dir / "keys").rmdir()
    ran = veen("hub", "start", "--data-dir", data_dir, *ANYWHERE)
    assert ran.status == 6
    assert "keys" in ran.error
    assert "only a backup has them" in ran.err
    assert "veen hub init" not in ran.err


def test_a_hub_that_lacks_one_key_is_sent_to_fsck(veen: Veen, data_dir: Path) -> None:
    (data_dir / "keys" / "control.seed").unlink()
    ran = veen("hub", "start", "--data-dir", data_dir, *ANYWHERE)
    assert "control.seed" in ran.error
    assert f"veen fsck {data_dir}" in ran.err
    assert "veen hub init" not in ran.err


def test_a_hub_that_nobody_can_write_to_says_so_once_it_serves(veen: Veen, data_dir: Path) -> None:
    ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANYWHERE)
    veen.done("hub", "stop", "--data-dir", data_dir)
    assert ran.err.count("veen: warning: no --issuer says whose capabilities count: nobody can write") == 1


def test_an_issuer_is_named_by_client_directory_or_card(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    veen.done("keygen", "--out", tmp_path / "operator", "--no-passphrase")
    for named in (tmp_path / "operator", tmp_path / "operator" / "card.cbor"):
        ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANYWHERE, "--issuer", named)
        veen.done("hub", "stop", "--data-dir", data_dir)
        assert "warning" not in ran.err


@pytest.mark.parametrize("named", ["nobody", "ab" * 31, "ab" * 33])
def test_an_issuer_that_is_none_is_refused(named: str, veen: Veen, data_dir: Path) -> None:
    ran = veen("hub", "start", "--data-dir", data_dir, *ANYWHERE, "--issuer", named)
    assert ran.status == 2
    assert "client directory or card" in ran.error


def test_open_to_the_network_must_be_said(veen: Veen, data_dir: Path) -> None:
    ran = veen("hub", "start", "--data-dir", data_dir, "--admission", "open", "--listen", "0.0.0.0:0")
    assert ran.status == 2
    assert ran.error == "open admission on 0.0.0.0 lets anyone who reaches it write"
    assert "--open-to-the-network" in ran.err
    assert not hub_process.is_locked(data_dir)


def test_options_reach_the_hub(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("[profile.lab]\nadmission = 'open'\n")
    with background(veen, data_dir, "--config", file, "--profile", "lab") as told:
        assert veen.done("hub", "status", "--hub", told["url"], "--json").json()["admission"] == "open"


def test_a_hub_with_tls_is_asked_by_its_directory(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with background(veen, data_dir, "--tls-cert", cert, "--tls-key", key) as told:
        assert str(told["url"]).startswith("https://127.0.0.1:")
        assert veen.done("hub", "health", "--data-dir", data_dir).facts()["ready"] == "yes"
        ran = veen("hub", "health", "--hub", told["url"])  # nobody this machine trusts signed the certificate
        assert ran.status == 6
        assert "no hub answers" in ran.error


def test_no_proxy_leads_to_a_hub_of_this_machine(veen: Veen, data_dir: Path) -> None:
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    with background(veen, data_dir):
        assert veen.done("hub", "health", "--data-dir", data_dir, env=nowhere).facts()["ready"] == "yes"


def test_the_log_goes_where_it_is_told(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    with background(veen, data_dir, "--log-file", tmp_path / "logs" / "hub.log") as told:
        assert told["log"] == str(tmp_path / "logs" / "hub.log")
    assert (tmp_path / "logs" / "hub.log").read_text().count("\n") == 2


def test_stop_needs_a_hub_that_runs(veen: Veen, data_dir: Path) -> None:
    ran = veen("hub", "stop", "--data-dir", data_dir)
    assert ran.status == 6
    assert ran.error == f"no hub runs on {data_dir}"


def test_a_directory_that_someone_else_holds_is_told_apart(veen: Veen, data_dir: Path) -> None:
    with exclusive(Folders(data_dir).lock):
        for command in ("stop", "status", "health", "metrics"):
            ran = veen("hub", command, "--data-dir", data_dir)
            assert ran.status == 6
            assert ran.error == f"a process holds {data_dir}, and it is not known which"


def record(veen: Veen, data_dir: Path) -> Path:
    return veen.home / "run" / "veen" / f"{hub_process.name_of(data_dir)}.json"


def test_a_record_that_a_crash_left_behind_misleads_nobody(veen: Veen, data_dir: Path) -> None:
    told = veen.apart("hub", "start", "--data-dir", data_dir, *ANYWHERE, "--json").json()
    os.kill(int(told["pid"]), signal.SIGKILL)
    until(lambda: not hub_process.is_locked(data_dir))
    assert record(veen, data_dir).exists()
    assert veen("hub", "stop", "--data-dir", data_dir).error == f"no hub runs on {data_dir}"
    assert veen.done("hub", "status", "--data-dir", data_dir).facts()["state"] == "stopped"
    with background(veen, data_dir):
        assert veen.done("hub", "status", "--data-dir", data_dir).facts()["state"] == "ready"


def test_the_next_start_sweeps_what_killed_hubs_left(
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


def test_a_process_that_only_has_the_same_number_is_left_alone(
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
        assert hub_process.stop(fake, 1.0) is True  # the one that is meant has ended
        assert bystander.poll() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', '{"pid": "x", "started": 1}'])
def test_a_record_that_is_none_is_passed_over(text: str, veen: Veen, data_dir: Path) -> None:
    kept = record(veen, data_dir)
    kept.parent.mkdir(mode=0o700)
    kept.write_text(text)
    assert veen.done("hub", "status", "--data-dir", data_dir).facts()["state"] == "stopped"


def test_a_record_in_a_folder_that_others_can_write_is_not_believed(
    veen: Veen, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", veen.env["XDG_RUNTIME_DIR"] or "")
    kept = record(veen, data_dir)
    kept.parent.mkdir(mode=0o700)
    with hub_process.recorded(hub_process.HubProcess.here("http://x", data_dir, None)):
        assert hub_process.find(data_dir) is not None
        kept.parent.chmod(0o777)
        assert hub_process.find(data_dir) is None


def test_a_hub_serves_also_where_no_record_can_be_kept(
    veen: Veen, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", veen.env["XDG_RUNTIME_DIR"] or "")
    (veen.home / "run" / "veen").write_text("a file is in the way")
    with hub_process.recorded(hub_process.HubProcess.here("http://x", data_dir, None)):
        assert hub_process.find(data_dir) is None
    assert "veen: warning: no record of this process is kept" in capsys.readouterr().err


def test_a_hub_that_does_not_end_in_time_is_reported_and_not_killed(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir) as told:
        pid = int(str(told["pid"]))
        os.kill(pid, signal.SIGSTOP)
        try:
            ran = veen("hub", "stop", "--data-dir", data_dir, "--timeout", "0")
            assert ran.status == 6
            assert "has not within 0 s" in ran.error
        finally:
            os.kill(pid, signal.SIGCONT)


def test_the_container_command_serves_in_the_foreground(veen: Veen, data_dir: Path) -> None:
    code = "import sys; sys.argv[0] = 'veen-hub'; from veen.cli.app import hub_main; hub_main()"
    command = [sys.executable, "-c", code, f"--data-dir={data_dir}", *ANYWHERE, "--admission=open"]
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


def test_sigint_ends_a_foreground_hub_in_order(veen: Veen, data_dir: Path) -> None:
    options = ["--foreground", "--data-dir", str(data_dir), *ANYWHERE, "--admission", "open"]
    command = [sys.executable, "-m", "veen.cli", "hub", "start", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=veen.shell_env(os.environ)) as hub:
        assert hub.stderr is not None
        hub.stderr.readline()
        hub.send_signal(signal.SIGINT)
        assert json.loads(hub.stderr.readline())["event"] == "stopped"
        assert hub.wait() == 0


def test_needing_a_hub_that_is_not_there_says_how_to_start_it(data_dir: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        hub_process.need(data_dir)
    assert caught.value.__notes__ == [f"veen hub start --data-dir {data_dir} starts one"]


def test_a_hub_whose_log_was_cut_short_does_not_start_and_says_which_and_what_to_do(
    veen: Veen, data_dir: Path, tmp_path: Path
) -> None:
    client = ("--client", tmp_path / "alice", "--stream", "doors", "--pin", data_dir)
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "alice")
    with background(veen, data_dir, "--admission", "open") as told:
        veen.done("send", *client, "--hub", told["url"], "--body", "x")
    chunk = next((data_dir / "log").glob("chunk-*.log"))
    chunk.write_bytes(chunk.read_bytes()[:-7])
    ran = veen.apart("hub", "start", "--data-dir", data_dir, *ANYWHERE)
    assert ran.status == 3
    assert ran.error.startswith(f"{data_dir}: ")
    assert f"veen fsck {data_dir}" in ran.err


def test_a_reader_of_a_damaged_hub_is_told_what_its_operator_can_do(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    client = ("--client", tmp_path / "alice", "--stream", "doors", "--pin", data_dir)
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "alice")
    with background(veen, data_dir, "--admission", "open") as told:
        veen.done("send", *client, "--hub", told["url"], "--body", "x")
    chunk = next((data_dir / "log").glob("chunk-*.log"))
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with background(veen, data_dir, "--admission", "open") as told:
        ran = veen("stream", *client, "--hub", told["url"])
    assert ran.status == 6
    assert "stored data of the hub is damaged" in ran.error
    assert "veen fsck DIR" in ran.err
    assert "may work later" not in ran.err
