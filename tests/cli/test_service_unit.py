"""`veen hub install-service`: the units, and that a program runs as its unit says."""

import getpass
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.recorder.recorder_fixture import SHOP, recorder_fixture
from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background
from veen.cli.hub import service_unit
from veen.cli.hub.service_unit import PROGRAMS

MAX_EXPOSURE = 20  # of systemd-analyze, in tenths; 20 is still "OK"


@pytest.fixture
def data_dir(veen: Veen, tmp_path: Path) -> Path:
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root")
    return tmp_path / "hub"


def install(veen: Veen, data_dir: Path, *options: object) -> str:
    """The unit that a dry run prints."""
    return veen.done(
        "hub", "install-service", "--data-dir", data_dir, "--user", getpass.getuser(), "--dry-run", *options
    ).out


def settings(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def test_a_unit_is_written_and_replaced_but_not_over_that_of_another(veen: Veen, data_dir: Path) -> None:
    file = data_dir.parent / "veen-hub.service"
    asked = ("hub", "install-service", "--data-dir", data_dir, "--folder", data_dir.parent, "--user", "veen")
    ran = veen.done(*asked)
    assert ran.facts()["unit"] == str(file)
    assert "systemctl enable --now veen-hub" in ran.err
    assert f"ExecStart={sys.executable} -m veen.cli hub start --foreground --data-dir {data_dir} $OPTIONS\n" in (
        file.read_text()
    )
    veen.done(*asked, "--user", "other")
    assert settings(file.read_text(), "User") == ["other"]
    file.write_text("[Unit]\n")
    assert "was written by someone else" in veen(*asked).error
    assert file.read_text() == "[Unit]\n"


def test_a_service_does_not_run_as_root(veen: Veen, data_dir: Path) -> None:
    asked = ("hub", "install-service", "--data-dir", data_dir, "--dry-run")
    if os.geteuid() == 0:
        ran = veen(*asked)
        assert "a service should not run as root" in ran.error
        assert f"chown -R veen: {data_dir}" in ran.err
    else:
        assert settings(veen.done(*asked).out, "User") == [getpass.getuser()]


def test_a_unit_loads_the_passphrase_of_the_keys_and_the_operator_token(veen: Veen, tmp_path: Path) -> None:
    passphrase, token = tmp_path / "hub pass%", tmp_path / "token"
    passphrase.write_text("secret\n")
    passphrase.chmod(0o600)
    veen.done("hub", "init", "--data-dir", tmp_path / "sealed", "--no-root", "--key-passphrase-file", passphrase)
    unit = install(veen, tmp_path / "sealed", "--operator-token-file", token)
    assert settings(unit, "LoadCredential") == [f"hub pass%%:{tmp_path}/hub pass%%", f"operator-token:{token}"]
    wrong = veen("hub", "install-service", "--data-dir", tmp_path / "sealed", "--passphrase-file", passphrase)
    assert "a hub has no --passphrase-file" in wrong.error


@pytest.mark.parametrize("program", [name for name, one in PROGRAMS.items() if one.has_passphrase])
def test_other_programs_read_their_passphrase_from_a_credential(veen: Veen, tmp_path: Path, program: str) -> None:
    unit = install(veen, tmp_path, "--program", program, "--passphrase-file", tmp_path / "pass", "--name", "x")
    assert settings(unit, "LoadCredential") == [f"passphrase:{tmp_path}/pass"]
    assert settings(unit, "ExecStart")[0].endswith("--passphrase-file %d/passphrase $OPTIONS")
    assert settings(unit, "EnvironmentFile") == ["-/etc/veen/x.env"]


def test_a_path_cannot_add_a_setting_or_a_word(veen: Veen, tmp_path: Path) -> None:
    odd = tmp_path / 'a b"c$d%e\\'
    odd.mkdir()
    unit = install(veen, odd, "--program", "veil")
    place = f"{tmp_path}/a b"
    assert settings(unit, "ReadWritePaths") == [f'{place}"c$d%%e\\']
    assert f'--data-dir "{place}\\"c$$d%%e\\\\" $OPTIONS' in unit
    (tmp_path / "new\nline").mkdir()
    asked = ("hub", "install-service", "--data-dir", tmp_path / "new\nline", "--program", "veil", "--user", "x")
    assert "cannot be in a unit" in veen(*asked).error


@pytest.mark.parametrize("program", PROGRAMS)
def test_systemd_accepts_a_unit_and_calls_it_closed(veen: Veen, data_dir: Path, program: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed: it is in the package systemd")
    unit = data_dir.parent / f"veen-{program}.service"
    unit.write_text(install(veen, data_dir, "--program", program))
    # The user of a test may be root, which has its own warnings.
    unit.write_text(re.sub("^User=.*$", "DynamicUser=yes", unit.read_text(), flags=re.MULTILINE))
    checked = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert (checked.returncode, unit.name in checked.stderr) == (0, False), checked.stderr
    rated = [analyze, "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(unit)]
    done = subprocess.run(rated, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    unit.write_text(unit.read_text().replace("NotifyAccess", "NotifyAcces"))
    assert "NotifyAcces" in subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True).stderr


class Service:
    """Starts programs as their units do, and receives what they tell systemd."""

    def __init__(self, veen: Veen, place: Path, listener: socket.socket) -> None:
        self._veen = veen
        self._place = place
        self._listener = listener

    def tells(self, unit: str, *options: object, env: dict[str, str] | None = None) -> list[str]:
        """The status of a program once it is ready, and its messages until it ends at SIGTERM."""
        words = settings(unit, "ExecStart")[0].removesuffix(" $OPTIONS").split(" ")
        base = self._veen.shell_env(os.environ)
        environment = {**base, "NOTIFY_SOCKET": str(self._place), **(env or {})}
        with subprocess.Popen([*words, *map(str, options)], env=environment, stdout=subprocess.DEVNULL) as program:
            try:
                ended = os.pidfd_open(program.pid)
                found = [self._message(ended)]
                program.send_signal(signal.SIGTERM)
                found.append(self._message(ended))
            except BaseException:
                program.kill()
                raise
        assert program.returncode == 0
        return found

    def _message(self, ended: int) -> str:
        readable, _, _ = select.select([self._listener.fileno(), ended], [], [])
        assert self._listener.fileno() in readable, "the program ended without a message"
        return self._listener.recv(4096).decode()


@pytest.fixture
def service(veen: Veen, tmp_path: Path) -> Iterator[Service]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        yield Service(veen, tmp_path / "notify", listener)


ANY = ("--listen", "127.0.0.1:0")


def test_a_hub_is_ready_when_its_port_is_open(veen: Veen, service: Service, data_dir: Path) -> None:
    ready, stopping = service.tells(install(veen, data_dir), *ANY, "--admission", "open")
    assert ready.startswith("READY=1\nSTATUS=serving http://127.0.0.1:")
    assert stopping == "STOPPING=1"


def test_a_hub_reads_its_passphrase_and_token_from_credentials(veen: Veen, service: Service, tmp_path: Path) -> None:
    passphrase, loaded = tmp_path / "hub-pass", tmp_path / "credentials"
    passphrase.write_text("secret\n")
    passphrase.chmod(0o600)
    data_dir = tmp_path / "sealed"
    veen.done("hub", "init", "--data-dir", data_dir, "--no-root", "--key-passphrase-file", passphrase)
    unit = install(veen, data_dir)
    loaded.mkdir()
    passphrase.rename(loaded / "hub-pass")
    (loaded / "hub-pass").chmod(0o440)  # an ACL for the user of the unit looks like this
    (loaded / "operator-token").write_text("a token\n")
    ready, _ = service.tells(
        unit, *ANY, "--admission", "open", env={"CREDENTIALS_DIRECTORY": str(loaded), "VEEN_OPERATOR_TOKEN": ""}
    )
    assert ready.startswith("READY=1\n")


def test_a_witness_and_a_node_report_to_systemd(veen: Veen, service: Service, tmp_path: Path) -> None:
    veen.done("witness", "init", "--dir", tmp_path / "w", "--no-passphrase")
    ready, stopping = service.tells(install(veen, tmp_path / "w", "--program", "witness"), *ANY, "--any-hub")
    assert (ready.partition("http")[0], stopping) == ("READY=1\nSTATUS=serving ", "STOPPING=1")
    node = [sys.executable, "-m", "veil.cli", "node", "init", "--data-dir", str(tmp_path / "n")]
    subprocess.run(node, check=True, capture_output=True)
    ready, stopping = service.tells(install(veen, tmp_path / "n", "--program", "veil"))
    assert (ready.partition("http")[0], stopping) == ("READY=1\nSTATUS=local API at ", "STOPPING=1")


def test_a_bridge_reports_to_systemd(veen: Veen, service: Service, data_dir: Path) -> None:
    root = data_dir.parent
    veen.done("hub", "init", "--data-dir", root / "other", "--no-root")
    veen.done("keygen", "--out", root / "c", "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", root / "c")
    with background(veen, data_dir, "--admission", "open") as hub, background(veen, root / "other") as other:
        at = ("--hub", hub["url"], "--pin", data_dir, "--source-hub", other["url"], "--source-pin", root / "other")
        unit = install(veen, root / "c", "--program", "bridge")
        said = service.tells(unit, *at, "doors")
    assert said == [f"READY=1\nSTATUS=mirroring doors from {other['url']}", "STOPPING=1"]


@pytest.mark.parametrize("listener", ["otlp", "syslog"])
def test_a_recorder_reports_to_systemd(veen: Veen, service: Service, tmp_path: Path, listener: str) -> None:
    with recorder_fixture(veen, tmp_path / "recorder") as at:
        client, hub = at.root / SHOP, at.of(SHOP)[2:]
        unit = install(veen, client, "--program", f"recorder-{listener}")
        said = service.tells(unit, *hub, "--origin", "shop", "--type", "http.request", *ANY)
    assert said == [f"READY=1\nSTATUS=sending to {at.hub_fixture.url}", "STOPPING=1"]


def test_a_query_service_reports_to_systemd(veen: Veen, service: Service, data_dir: Path) -> None:
    root = data_dir.parent / "query"
    (root / "tables").mkdir(parents=True)
    veen.done("keygen", "--out", root / "client", "--no-passphrase")
    for stream in ("record/query/requests", "record/query/results"):
        veen.done("stream-key", "create", stream, "--client", root / "client")
    with background(veen, data_dir, "--admission", "open") as hub:
        unit = install(veen, root, "--program", "query")
        said = service.tells(unit, "--hub", hub["url"], "--pin", data_dir, "--tables", root / "tables", *ANY)
    assert (said[0].partition("http")[0], said[1]) == ("READY=1\nSTATUS=serving ", "STOPPING=1")


def test_code_in_a_hidden_folder_is_shown_to_the_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(service_unit, "_HIDDEN", (tmp_path,))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "none")])
    text = service_unit.unit("hub", "veen-hub", tmp_path / "hub", "veen", {}, [])
    assert str(tmp_path) in settings(text, "BindReadOnlyPaths")
    assert settings(text, "BindPaths") == [f"{tmp_path}/hub"]
