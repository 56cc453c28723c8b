"""What the system knows of running processes: CPU, memory, children. Linux only, from clocks and /proc."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from veen.core import Unavailable

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
