"""A recorder with a given number of events, set up and filled with the commands that users type.

Everything is in one folder and is reused: an input continues where it stopped, so an interrupted run can be repeated.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veen.core import Unavailable

WEB, REQUESTS, RESULTS = "record/app/web", "record/query/requests", "record/query/results"
TYPES = {"view": WEB, "click": WEB, "alarm": WEB, "query.submitted": REQUESTS, "query.result": RESULTS}
PRODUCERS = ("shop", "depot")
ROBOT, MATCH = "robot", 100
_ROBOT_EVERY = 10  # one subject has a tenth of all events
_DONE = "recorded.json"


def event(number: int, count: int) -> dict[str, Any]:
    """Event `number` of `count`: a hundred views and clicks of each user, and a hundred alarms of one robot."""
    content = {"event_time": 1_700_000_000_000 + number, "n": number, "status": 200 + number % 4, "ms": number % 997}
    turn, place = divmod(number, _ROBOT_EVERY)
    if not place:
        first = (count // _ROBOT_EVERY - MATCH) // 2
        return {"subject_id": ROBOT, "event_type": "alarm" if first <= turn < first + MATCH else "view", **content}
    users = max(1, count * (_ROBOT_EVERY - 1) // _ROBOT_EVERY // (2 * MATCH))
    time_round, user = divmod(turn * (_ROBOT_EVERY - 1) + place - 1, users)
    return {"subject_id": f"user:{user:06}", "event_type": ("view", "click")[time_round % 2], **content}


def events(count: int) -> Iterator[dict[str, Any]]:
    return (event(number, count) for number in range(count))


@dataclass(slots=True)
class Site:
    """A hub, an administrator, two producers, a service and a client, each in its own folder."""

    root: Path
    count: int
    url: str = ""

    def veen(self, *words: object, **given: Any) -> "subprocess.Popen[str]":
        """Start one command in the folder, without the user's own contexts."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
        own = {"XDG_CONFIG_HOME": str(self.root / "config"), "PYTHONPATH": paths, "VEEN_HUB": self.url}
        env = kept | {name: value for name, value in own.items() if value}
        command = [sys.executable, "-m", "veen.cli", *map(str, words)]
        usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.root, env=env, **{**usual, **given})

    def run(self, *words: object) -> str:
        """Run a command and return its output. Raises if it fails."""
        return output_of(self.veen(*words))

    def start_hub(self) -> None:
        """Start the hub, after setting everything up if necessary."""
        self.root.mkdir(parents=True, exist_ok=True)
        new = not (self.root / "service.kit").exists()
        if new and not (self.root / "hub").exists():
            self.run("keygen", "--out", "admin", "--no-passphrase")
            self.run("hub", "init", "--data-dir", "hub", "--no-root")
        options = ("--issuer", "admin", "--listen", "127.0.0.1:0", "--json")
        self.url = json.loads(self.run("hub", "start", "--data-dir", "hub", *options))["url"]
        if new:
            self._set_up()

    def stop_hub(self) -> None:
        self.run("hub", "stop", "--data-dir", "hub")

    def _set_up(self) -> None:
        types = [word for name, stream in TYPES.items() for word in ("--type", f"{name}={stream}")]
        self.run("recorder", "init", "--client", "admin", "--pin", "hub", *types)
        for name in PRODUCERS:
            self._enrol(name, name, WEB)
        self._enrol("service", "veen.query", REQUESTS, RESULTS)
        for number, stream in enumerate((WEB, REQUESTS, RESULTS)):
            self.run("stream-key", "export", stream, "--out", f"key{number}", "--client", "admin")
            self.run("stream-key", "import", f"key{number}", "--client", "service")

    def _enrol(self, name: str, origin: str, *streams: str) -> None:
        named = [word for stream in streams for word in ("--stream", stream)]
        self.run("keygen", "--out", name, "--no-passphrase")
        card = ("--client", "admin", "--card", name, "--origin", origin)
        self.run("recorder", "enrol", name, *card, *named, "--out", f"{name}.kit")
        self.run("recorder", "join", f"{name}.kit", "--client", name)

    def record(self) -> None:
        """Record every event with two producers that each follow a file of JSON lines."""
        if (self.root / _DONE).exists():
            return
        for number, name in enumerate(PRODUCERS):
            path = self.root / f"{name}.jsonl"
            if not path.exists():
                lines = (json.dumps(event(at, self.count)) for at in range(number, self.count, len(PRODUCERS)))
                path.write_text("".join(f"{line}\n" for line in lines))
        usual = ("--once", "--pin", "hub", "--json")
        running = [
            self.veen("recorder", "tail", f"{name}.jsonl", "--origin", name, "--client", name, *usual)
            for name in PRODUCERS
        ]
        for process in running:
            if json.loads(output_of(process))["refused"]:
                raise Unavailable("the recorder rejected some events")
        (self.root / _DONE).write_text(json.dumps({"events": self.count}))


def output_of(process: "subprocess.Popen[str]") -> str:
    """The output of a process. Raises if it fails."""
    out, err = process.communicate()
    if process.returncode:
        raise Unavailable(f"{' '.join(map(str, process.args[3:6]))} exited with {process.returncode}: {err.strip()}")  # type: ignore[index]
    return str(out)
