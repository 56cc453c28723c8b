"""A hub in its own process, one round of load on it and its costs. Linux only: clocks and /proc."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO

from plumbing.durable import Disk
from veen.bench import load
from veen.bench.bench_report import BenchRow
from veen.bench.load import Http, LoadResult, Plan, Target
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
    """CPU seconds of the hub's process, and of its signer and verification workers."""

    hub_s: float
    children_s: float

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(self.hub_s - earlier.hub_s, self.children_s - earlier.children_s)


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
        """Memory of the hub, its signer and its workers."""
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


_MAX_OTHER_CORES = 0.15  # above this, other processes distort the figures

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Round:
    """One round, from the first request until the log has caught up with the last."""

    messages: int
    load: LoadResult
    usage: Usage  # measured until the log has caught up, so no work is left out
    entries_per_sync: float
    sync_ms: float
    behind_bytes: float  # journal size when the last answer arrived
    behind_s: float  # time from then until the log had caught up
    others: float  # cores used by everything else meanwhile, including kernel threads

    @property
    def rate(self) -> float:
        return self.messages / self.load.seconds

    def each_us(self, seconds: float) -> float:
        return seconds / self.messages * 1e6


def run_round(hub: HubProcess, plan: Plan, messages: int, watch: AbstractContextManager[object] | None = None) -> Round:
    """Send a plan of `messages` messages to the hub. Raises `Unavailable` unless it accepts every one.

    `watch` is entered only while requests are in flight.
    """
    had, before, usage = hub.logged(), hub.metrics(), hub.usage()
    busy = busy_seconds()
    with watch or nullcontext():
        load = hub.drive(plan)
    busy = busy_seconds() - busy
    during = hub.usage().since(usage)
    after = hub.metrics()

    def grew(name: str) -> float:
        return after[name] - before[name]

    if grew("veen_submit_ok_total") != messages:
        raise Unavailable(f"the hub accepted {grew('veen_submit_ok_total'):.0f} of {messages} messages")
    behind_s = hub.settle(had + messages)
    ours = during.hub_s + during.children_s + load.generator_s
    return Round(
        messages=messages,
        load=load,
        usage=hub.usage().since(usage),
        entries_per_sync=grew("veen_group_size_sum") / grew("veen_group_size_count"),
        sync_ms=grew("veen_fsync_latency_ms_sum") / grew("veen_fsync_latency_ms_count"),
        behind_bytes=after["veen_journal_bytes"],
        behind_s=behind_s,
        others=max(busy - ours, 0.0) / load.seconds,
    )


def cost_rows(name: str, rounds: Sequence[Round]) -> list[BenchRow]:
    """CPU per message, and messages per sync."""
    return [
        BenchRow.of(f"{name}: CPU a message, hub", [one.each_us(one.usage.hub_s) for one in rounds], "µs"),
        BenchRow.of(
            f"{name}: CPU a message, signer and workers", [one.each_us(one.usage.children_s) for one in rounds], "µs"
        ),
        BenchRow.of(f"{name}: CPU a message, generator", [one.each_us(one.load.generator_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: messages a sync", [one.entries_per_sync for one in rounds], ""),
        BenchRow.of(f"{name}: one write and sync", [one.sync_ms for one in rounds], "ms"),
    ]


def other_load(others: Sequence[float]) -> BenchRow:
    """CPU used by other processes, other virtual machines on the same hardware, and kernel threads."""
    return BenchRow.of(f"CPU of other processes, of {os.cpu_count()} cores", others, "cores")


def noise_warning(others: Sequence[float]) -> tuple[str, ...]:
    """A note if the machine was not idle otherwise."""
    if median(others) <= _MAX_OTHER_CORES:
        return ()
    return ("other processes used the CPU, so this machine can do better: see the last row",)


def silent(_: str) -> None:
    """Report no progress."""
