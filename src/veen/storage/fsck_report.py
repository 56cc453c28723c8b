"""What a check of a data directory found, and what it comes to."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from veen.storage.artifacts import BoundCheckpoint

MAX_FINDINGS = 1000
_HASH = re.compile(r"([0-9a-f]{8})[0-9a-f]{56}")
_PADDED = re.compile(r"(?<![0-9a-f])0+(\d+)(?![0-9a-f…])")


def brief(artifact: str) -> str:
    """Names as people tell them apart: the first digits of a hash, numbers without their padding."""
    return _PADDED.sub(r"\1", _HASH.sub(r"\1…", artifact))


class Severity(StrEnum):
    """What a fault means."""

    DAMAGED = "damaged"  # the log, or what it is verified with: only another copy has the original
    REPAIRABLE = "repairable"  # it follows from the log, and can be made again
    KEYLESS = "keyless"  # a secret key: the log can be read and verified without it, a hub needs it
    LEFTOVER = "leftover"  # what an interrupted write left; the next start writes over it or never looks
    NOTICE = "notice"  # nothing of the hub's, or nothing that can be verified: all that is judged is sound without it


class FsckVerdict(StrEnum):
    """What it comes to."""

    CLEAN = "clean"
    KEYLESS = "keyless"
    REPAIRABLE = "repairable"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and where it is."""

    severity: Severity
    artifact: str  # path within the data directory
    what: str
    label: bytes | None = None
    stream_seq: int | None = None

    def __str__(self) -> str:
        place = "" if self.stream_seq is None else f", entry {self.stream_seq}"
        return f"{self.artifact}{place}: {self.what}"


@dataclass(slots=True)
class FsckReport:
    """All findings in the order they were made. Beyond a bound they are only counted."""

    findings: list[Finding] = field(default_factory=list)
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))
    repairable: set[str] = field(default_factory=set)  # files and folders of the data directory
    derived: dict[Path, bytes] = field(default_factory=dict)  # files of the log to make again, as they must be
    bound: tuple[BoundCheckpoint, ...] = ()  # what the binding must say of a log that holds
    entries: int = 0
    labels: int = 0

    def add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        if finding.severity is Severity.REPAIRABLE:
            self.repairable.add(finding.artifact.partition("/")[0])
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def verdict(self) -> FsckVerdict:
        if self.counts[Severity.DAMAGED]:
            return FsckVerdict.DAMAGED
        if self.counts[Severity.REPAIRABLE]:
            return FsckVerdict.REPAIRABLE
        return FsckVerdict.KEYLESS if self.counts[Severity.KEYLESS] else FsckVerdict.CLEAN

    @property
    def first(self) -> Finding | None:
        """The first that is more than a leftover or a notice."""
        harmless = (Severity.LEFTOVER, Severity.NOTICE)
        return next((found for found in self.findings if found.severity not in harmless), None)
