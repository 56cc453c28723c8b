"""A hub in its own process, and CPU, memory and children of processes. Linux only: clocks and /proc."""

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

from plumbing.durable import Disk
from veen.bench import load
from veen.bench.load import Http, LoadResult, Plan
from veen.bench.load_messages import Target
from veen.core import Limits, Profile, Unavailable
from veen.storage import metadata
from veen.storage.directory_reader import LogReader

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Fields of the `cpu` line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _IOWAIT, _FIELDS = 3, 4, 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: all, anonymous, and file-backed."""

    resident: int
    anonymous: int
    files: int

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.resident + other.resident, self.anonymous + other.anonymous, self.files + other.files)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process since its start, including ended threads."""
    # The clock id of clock_getcpuclockid(3) on Linux. It counts nanoseconds; /proc counts hundredths of a second.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        raise Unavailable(f"process {pid} has ended") from None


def memory(pid: int) -> Memory:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, anonymous, files = (int(fields[name].split()[0]) * _KIB for name in ("VmRSS", "RssAnon", "RssFile"))
    return Memory(resident, anonymous, files)


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            # The second field is a name in parentheses that may contain any character.
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def busy_seconds() -> float:
    """CPU time used on the whole machine, including steal time."""
    line = Path("/proc/stat").read_text().partition("\n")[0].split()[1 : _FIELDS + 1]
    ticks = [int(field) for field in line]
    return (sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]) / _TICKS_PER_S


_POLL_S = 0.05
_SETTLE_TIMEOUT_S = 60.0
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of the hub's process and of its verification workers."""

    hub_s: float
    workers_s: float

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(self.hub_s - earlier.hub_s, self.workers_s - earlier.workers_s)


class HubProcess:
    """A running hub with open admission."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        """Returns when the port is open. Raises `Unavailable` with the hub's last output if it does not start."""
        self.data_dir = data_dir
        command = [sys.executable, "-m", "veen.cli", "hub", "start", "--foreground", "--data-dir", str(data_dir)]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--admission", "open", *options], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        first = self._process.stderr.readline()
        self.start_s = time.perf_counter() - began
        self._last_lines: deque[str] = deque([first], _LAST_LINES)
        # Drain stderr: a full pipe would block the hub.
        self._stderr_thread = Thread(target=_read_lines, args=(self._process.stderr, self._last_lines), daemon=True)
        self._stderr_thread.start()
        try:
            started = json.loads(first)
            self.port = int(started["listen"].rpartition(":")[2])
        except (ValueError, KeyError):
            self.kill()
            raise Unavailable(f"the hub did not start: {''.join(self._last_lines).strip()}") from None
        self.replayed = int(started["replayed"])
        self._reader = LogReader(data_dir)
        hub_metadata = self._reader.hub_metadata
        self.target = Target(hub_metadata.identity.hub_id, hub_metadata.profile.profile_id())

    @staticmethod
    def init(data_dir: Path) -> Path:
        """Create a data directory."""
        metadata.create(Disk(), data_dir, Profile(), Limits(), int(time.time()))
        return data_dir

    def __enter__(self) -> "HubProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop like an operator; does nothing to a hub that was killed."""
        if self._process.poll() is None:
            self._process.terminate()
        self._close()

    def kill(self) -> None:
        """Kill like a power cut. The next start replays the journal."""
        self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        self._stderr_thread.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        if hasattr(self, "_reader"):
            self._reader.close()

    def drive(self, plan: Plan) -> LoadResult:
        """Send every request of the plan; all answers must be 200."""
        try:
            return load.drive(plan, Http(), lambda _: load.connect(self.port))
        except Unavailable as error:
            if self._process.poll() is None:
                raise
            raise Unavailable(f"the hub exited: {''.join(self._last_lines).strip()}") from error

    def usage(self) -> Usage:
        workers = children(self._process.pid)
        return Usage(cpu_seconds(self._process.pid), sum(map(cpu_seconds, workers)))

    def memory(self) -> Memory:
        """Memory of the hub and its workers."""
        found = memory(self._process.pid)
        for worker in children(self._process.pid):
            found += memory(worker)
        return found

    def metrics(self) -> dict[str, float]:
        """The values of /metrics without labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        rows = [line.split(" ") for line in lines if not line.startswith("#") and "{" not in line]
        return {name: float(value) for name, value, *_ in rows}

    def accepted(self) -> int:
        """Messages accepted since the start."""
        return int(self.metrics()["veen_submit_ok_total"])

    def entries(self) -> int:
        """The number of entries according to the status, including those in the journal."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/tooling/status") as answer:
            return int(json.load(answer)["entries"])

    def applied(self) -> int:
        """The last group in the log; increases once for each catch-up."""
        with self._reader.index().read() as rows:
            return rows.number("applied")

    def logged(self) -> int:
        """The number of entries in the log, over all labels."""
        return sum(head.size for _, head in self._reader.labels())

    def settle(self, entries: int) -> float:
        """Wait until the log has that many entries; returns the seconds it took."""
        began = moved = time.perf_counter()
        had = -1
        while (has := self.logged()) < entries:
            now = time.perf_counter()
            if self._process.poll() is not None:
                raise Unavailable(f"the hub exited: {''.join(self._last_lines).strip()}")
            if has != had:
                had, moved = has, now
            elif now - moved > _SETTLE_TIMEOUT_S:
                raise Unavailable(f"the log has had {has} of {entries} entries for {_SETTLE_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        return time.perf_counter() - began


def _read_lines(stream: IO[str], lines: deque[str]) -> None:
    lines.extend(stream)
