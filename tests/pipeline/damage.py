"""Ways to damage a data directory, and the findings of an audit."""

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from veen.pipeline.audit import Audit, KnownDates, audit
from veen.pipeline.jobs import run_inline
from veen.pipeline.read_plan import Task
from veen.pipeline.rows import columns, entries
from veen.pipeline.selection import Selection
from veen.storage import frame
from veen.storage.fsck_report import Finding, Severity

Damage = Callable[[Path], None]


def run_audit(*roots: Path, pin: bytes | None = None, dates: KnownDates | None = None) -> Audit:
    """An audit in this process."""
    return audit([str(root) for root in roots], run_inline, pin=pin, dates=dates or KnownDates())


def findings(root: Path) -> list[Finding]:
    """The findings that are worse than leftovers."""
    found = run_audit(root).directories[0].findings
    return [finding for finding in found if finding.severity is not Severity.LEFTOVER]


def artifacts(root: Path) -> list[str]:
    return sorted({finding.artifact for finding in findings(root)})


def rows(task: Task, selection: Selection) -> list[tuple[Any, ...]]:
    """The rows of a task, without Arrow."""
    found = (columns(selection.shown(), *some) for some in entries(task, selection))
    return [row for values in found for row in zip(*values, strict=True)]


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def frames(path: Path) -> list[bytes]:
    """The entries of a chunk, one by one."""
    data, pos, made = path.read_bytes(), 0, []
    while pos < len(data):
        end = pos + frame.length_at(data, pos)
        made.append(data[pos:end])
        pos = end
    return made


def rewrite(path: Path, entries: Sequence[bytes]) -> None:
    path.write_bytes(b"".join(entries))


def swap(one: Path, other: Path) -> None:
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def places(size: int, count: int, seed: str) -> list[tuple[int, int]]:
    """First and last byte, and some between."""
    rng = random.Random(seed)
    return [(0, 0), (size - 1, 7)] + [(rng.randrange(size), rng.randrange(8)) for _ in range(count - 2)]


def copied(root: Path, to: Path) -> Path:
    return Path(shutil.copytree(root, to))
