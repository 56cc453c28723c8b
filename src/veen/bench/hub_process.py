"""What the system knows of running processes: CPU, memory, children. Linux only, from clocks and /proc."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from veen.bench import load
from veen.bench.load import Http, LoadResult, Plan
from veen.bench.load_messages import Target
from veen.core import Limits, Profile, Unavailable
from veen.storage import metadata
from veen.storage.directory_reader import LogReader
from veen.storage.durable import Disk

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Fields of the `cpu` line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _IOWAIT, _FIELDS = 3, 4, 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: all, those only this process has, and those that are pages of files."""

    resident: int
    anonymous: int
    files: int

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.resident + other.resident, self.anonymous + other.anonymous, self.files + other.files)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process since it began, ended threads included."""
    # What clock_getcpuclockid(3) answers on Linux; /proc counts in hundredths of a second, this in nanoseconds.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        raise Unavailable(f"process {pid} is gone") from None


def memory(pid: int) -> Memory:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, anonymous, files = (int(fields[name].split()[0]) * _KIB for name in ("VmRSS", "RssAnon", "RssFile"))
    return Memory(resident, anonymous, files)


def children(pid: int) -> list[int]:
    """Processes started by a process, and by those."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            # The second field is a name in parentheses that may hold anything.
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def busy_seconds() -> float:
    """CPU time of the whole machine that somebody had, neighbours on the same hardware included."""
    line = Path("/proc/stat").read_text().partition("\n")[0].split()[1 : _FIELDS + 1]
    ticks = [int(field) for field in line]
    return (sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]) / _TICKS_PER_S


_LOOK_EVERY_S = 0.05
_PATIENCE_S = 60.0
_LAST_WORDS = 5


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far, of the hub's process and of its verification workers."""

    hub_s: float
    workers_s: float

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(self.hub_s - earlier.hub_s, self.workers_s - earlier.workers_s)


class HubProcess:
    """One run of a hub with open admission, from start to stop."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        """Returns when the port is open; raises `Unavailable` with the hub's words where it never is."""
        self.data_dir = data_dir
        command = [sys.executable, "-m", "veen.cli", "hub", "start", "--foreground", "--data-dir", str(data_dir)]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--admission", "open", *options], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        first = self._process.stderr.readline()
        self.start_s = time.perf_counter() - began
        self._words: deque[str] = deque([first], _LAST_WORDS)
        # Nobody else reads what the hub says, and a full pipe would stop it.
        self._listener = Thread(target=_listen, args=(self._process.stderr, self._words), daemon=True)
        self._listener.start()
        try:
            started = json.loads(first)
            self.port = int(started["listen"].rpartition(":")[2])
        except (ValueError, KeyError):
            self.kill()
            raise Unavailable(f"the hub did not start: {''.join(self._words).strip()}") from None
        self.replayed = int(started["replayed"])
        self._reader = LogReader(data_dir)
        hub_metadata = self._reader.hub_metadata
        self.target = Target(hub_metadata.identity.hub_id, hub_metadata.profile.profile_id())

    @staticmethod
    def init(data_dir: Path) -> Path:
        """A new data directory."""
        metadata.create(Disk(), data_dir, Profile(), Limits(), int(time.time()))
        return data_dir

    def __enter__(self) -> "HubProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """As an operator would; a hub that was killed stays as it is."""
        if self._process.poll() is None:
            self._process.terminate()
        self._leave()

    def kill(self) -> None:
        """As a power cut would. What is in the journal waits there for the next start."""
        self._process.kill()
        self._leave()

    def _leave(self) -> None:
        self._process.wait()
        self._listener.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        if hasattr(self, "_reader"):
            self._reader.close()

    def drive(self, plan: Plan) -> LoadResult:
        """Send every request of the plan; all are answered with 200."""
        try:
            return load.drive(plan, Http(), lambda _: load.connect(self.port))
        except Unavailable as error:
            if self._process.poll() is None:
                raise
            raise Unavailable(f"the hub ended: {''.join(self._words).strip()}") from error

    def usage(self) -> Usage:
        workers = children(self._process.pid)
        return Usage(cpu_seconds(self._process.pid), sum(map(cpu_seconds, workers)))

    def memory(self) -> Memory:
        """Of the hub and its workers."""
        found = memory(self._process.pid)
        for worker in children(self._process.pid):
            found += memory(worker)
        return found

    def metrics(self) -> dict[str, float]:
        """The values of /metrics that have no labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        rows = [line.split(" ") for line in lines if not line.startswith("#") and "{" not in line]
        return {name: float(value) for name, value, *_ in rows}

    def accepted(self) -> int:
        """Messages accepted since this start."""
        return int(self.metrics()["veen_submit_ok_total"])

    def entries(self) -> int:
        """How many entries the hub says it has, in the log or on the way there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/tooling/status") as answer:
            return int(json.load(answer)["entries"])

    def applied(self) -> int:
        """The last group that the log has: it goes up once for each catch-up behind the journal."""
        with self._reader.index().read() as rows:
            return rows.number("applied")

    def logged(self) -> int:
        """How many entries the log has, all labels together."""
        return sum(head.size for _, head in self._reader.labels())

    def settle(self, entries: int) -> float:
        """Wait until the log has that many entries; how many seconds that took."""
        began = moved = time.perf_counter()
        had = -1
        while (has := self.logged()) < entries:
            now = time.perf_counter()
            if self._process.poll() is not None:
                raise Unavailable(f"the hub ended: {''.join(self._words).strip()}")
            if has != had:
                had, moved = has, now
            elif now - moved > _PATIENCE_S:
                raise Unavailable(f"the log stays at {has} of {entries} entries")
            time.sleep(_LOOK_EVERY_S)
        return time.perf_counter() - began


def _listen(said: IO[str], words: deque[str]) -> None:
    words.extend(said)
