"""Nodes in separate processes with their own data directories, used through the local API."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import veil
from veil.api.api_client import Client
from veil.runtime import data_directory, groups
from veil.runtime.data_directory import DataDirectory, Settings

SRC = str(Path(veil.__file__).parents[1])


class NodeProcess:
    """A node that can be started, killed without warning, and started again."""

    def __init__(self, path: Path, name: str, chosen: Settings) -> None:
        self.folder = DataDirectory(path / name)
        self.folder.make()
        data_directory.save_settings(self.folder, chosen)
        ring = groups.Keyring.generate(name)
        groups.save_keyring(self.folder, ring)
        self.pubkey = ring.signing.public_key
        self.seen = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._api: Client | None = None

    def start(self) -> "NodeProcess":
        self.folder.remove("api.json")
        command = [
            sys.executable,
            "-m",
            "veil.cli",
            "node",
            "start",
            "--foreground",
            "--data-dir",
            str(self.folder.path),
        ]
        log = (self.folder.path / "node.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": SRC}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while not (self.folder.path / "api.json").exists():
            assert self._process.poll() is None, self.log()
            time.sleep(0.02)
        self._api = Client(self.folder.path)
        return self

    @property
    def api(self) -> Client:
        assert self._api is not None
        return self._api

    def log(self) -> str:
        return (self.folder.path / "node.log").read_text("utf-8", errors="replace")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def contact(self) -> str:
        found: str = self.api.get("/v1/contacts/self")["contact"]
        return found

    def knows(self, other: "NodeProcess") -> None:
        self.api.post("/v1/contacts", contact=other.contact())

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Kind and data of the events since the last call, waiting up to 5 s for one."""
        found = self.api.get("/v1/events", since=self.seen, limit=1024, wait_s=5)["events"]
        if found:
            self.seen = found[-1]["seq"]
        return [(one["kind"], one["data"]) for one in found]

    def delivered(self) -> list[dict[str, Any]]:
        """Data of the messages delivered since the last call, waiting up to 5 s for an event."""
        return [data for kind, data in self.events() if kind == "delivered"]

    def url(self) -> str:
        found: str = json.loads((self.folder.path / "api.json").read_bytes())["url"]
        return found


def stop_all(*nodes: NodeProcess) -> None:
    """Stop all nodes, then check that their logs have no errors."""
    for node in nodes:
        node.stop()
    for node in nodes:
        assert [line for line in node.log().splitlines() if not line.startswith("veil: node started")] == []
