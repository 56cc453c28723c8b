"""Findings of a check of a data directory, and the verdict."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from veen.storage.artifacts import BoundCheckpoint

MAX_FINDINGS = 1000
_HASH = re.compile(r"([0-9a-f]{8})[0-9a-f]{56}")
# The hash in its name verifies an attachment. The log is verified without attachments and their records.
_BESIDE_THE_LOG = ("attachments/", "uploads/")
_OF_THE_LOG = re.compile(r"journal(?:[,/].*)?|log/.*")
_PADDED = re.compile(r"(?<![0-9a-f])0+(\d+)(?![0-9a-f…])")


def brief(artifact: str) -> str:
    """Shorten a name for display: first digits of hashes, numbers without padding."""
    return _PADDED.sub(r"\1", _HASH.sub(r"\1…", artifact))


class Severity(StrEnum):
    """The meaning of a fault."""

    DAMAGED = "damaged"  # in the log or the metadata that verifies it; only another copy has the original
    REPAIRABLE = "repairable"  # can be derived from the log
    KEYLESS = "keyless"  # a secret key is missing: the log can be verified, but no hub can run
    LEFTOVER = "leftover"  # from an interrupted write; the next start overwrites or ignores it
    NOTICE = "notice"  # a foreign file, or a signature that cannot be verified; the rest is sound


class FsckVerdict(StrEnum):
    CLEAN = "clean"
    KEYLESS = "keyless"
    REPAIRABLE = "repairable"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and its place."""

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
    """All findings in order. Above a limit they are only counted."""

    findings: list[Finding] = field(default_factory=list)
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))
    repairable: set[str] = field(default_factory=set)  # files and folders of the data directory
    derived: dict[Path, bytes] = field(default_factory=dict)  # files of the log to rewrite, with their correct content
    bound: tuple[BoundCheckpoint, ...] = ()  # the correct rows of the binding, if the log is sound
    entries: int = 0
    labels: int = 0
    blocking: Finding | None = None  # the first damage of the log, or of what verifies it: nothing is rebuilt from it
    damages_log: bool = False  # whether entries in log or journal are damaged

    def add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        if finding.severity is Severity.DAMAGED and not finding.artifact.startswith(_BESIDE_THE_LOG):
            self.blocking = self.blocking or finding
            self.damages_log |= _OF_THE_LOG.fullmatch(finding.artifact) is not None
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
    def is_repairable(self) -> bool:
        """Whether a repair has something to rewrite from a sound log. Attachments may be damaged."""
        return bool(self.repairable) and self.blocking is None

    @property
    def first(self) -> Finding | None:
        """The first finding that is not a leftover or a notice."""
        harmless = (Severity.LEFTOVER, Severity.NOTICE)
        return next((found for found in self.findings if found.severity not in harmless), None)


def are_missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
