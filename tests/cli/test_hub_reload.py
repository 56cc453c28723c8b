"""SIGHUP: a hub follows its settings file and its certificate, and a bad file changes nothing."""

import os
import shutil
import signal
import socket
import ssl
from pathlib import Path

from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background
from tests.http.certificates import client_context, write_certificate
from tests.hub.client import until


def lines(log: Path, event: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if f'"event":"{event}"' in line.replace(": ", ":")]


def reload(shown: dict[str, object], log: Path, event: str) -> str:
    """Send the signal, and return the line that the hub then logs."""
    before = len(lines(log, event))
    os.kill(int(str(shown["pid"])), signal.SIGHUP)
    until(lambda: len(lines(log, event)) > before)
    return lines(log, event)[-1]


def test_a_hub_follows_its_settings_file_and_lists_what_needs_a_restart(veen: Veen, tmp_path: Path) -> None:
    data_dir, settings, log = tmp_path / "hub", tmp_path / "hub.toml", tmp_path / "hub.log"
    veen.done("hub", "init", "--data-dir", data_dir, "--no-root")
    settings.write_text("pow_difficulty = 0\n")
    with background(veen, data_dir, "--admission", "open", "--config", settings, "--log-file", log) as shown:

        def difficulty() -> int:
            return int(veen.done("hub", "status", "--data-dir", data_dir, "--json").json()["pow_difficulty"])

        assert difficulty() == 0
        settings.write_text("pow_difficulty = 3\nmax_in_flight = 7\nlog_submits = true\n")
        line = reload(shown, log, "reloaded")
        assert '"changed":["log_submits","pow_difficulty"]' in line.replace(", ", ",").replace(": ", ":")
        assert '"needs_restart":["max_in_flight"]' in line.replace(", ", ",").replace(": ", ":")
        assert difficulty() == 3
        for bad in ("pow_difficulty = 99\n", "no such setting = 1\n", "pow_difficulty = 1\nissuers = 3\n"):
            settings.write_text(bad)
            reload(shown, log, "reload_failed")
            assert difficulty() == 3
        settings.unlink()
        assert "cannot read" in reload(shown, log, "reload_failed")
        assert difficulty() == 3


def test_a_renewed_certificate_is_used_for_new_connections_and_open_ones_go_on(veen: Veen, tmp_path: Path) -> None:
    data_dir, log = tmp_path / "hub", tmp_path / "hub.log"
    veen.done("hub", "init", "--data-dir", data_dir, "--no-root")
    cert, key = write_certificate(tmp_path)
    old = tmp_path / "old.pem"
    shutil.copy(cert, old)
    tls = ("--tls-cert", cert, "--tls-key", key)
    with background(veen, data_dir, "--admission", "open", *tls, "--log-file", log) as shown:
        port = int(str(shown["url"]).rpartition(":")[2])

        def connect(trusted: Path) -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", port))
            return client_context(trusted).wrap_socket(plain, server_hostname="localhost")

        def ask(over: ssl.SSLSocket) -> bytes:
            over.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            return over.recv(65536)[:15]

        with connect(old) as before:
            assert ask(before) == b"HTTP/1.1 200 OK"
            write_certificate(tmp_path)
            reload(shown, log, "reloaded")
            with connect(cert) as after:
                assert ask(after) == b"HTTP/1.1 200 OK"
            assert ask(before) == b"HTTP/1.1 200 OK"
        cert.write_bytes(b"not a certificate")
        reload(shown, log, "reload_failed")
        shutil.copy(old, cert)  # of another key
        reload(shown, log, "reload_failed")
        assert len(lines(log, "reloaded")) == 1
