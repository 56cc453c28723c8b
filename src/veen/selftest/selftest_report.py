"""The report of a run: one result per check."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from veen.core.strict_json import Json


class CheckOutcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: claim, section of the specification, and outcome."""

    suite: str
    id: str
    claim: str
    spec: str
    outcome: CheckOutcome
    reason: str  # why it failed or was skipped; for a pass, an optional note on what it covered
    seconds: float

    def to_json(self) -> dict[str, Json]:
        return {
            "suite": self.suite,
            "id": self.id,
            "claim": self.claim,
            "spec": self.spec,
            "outcome": str(self.outcome),
            "reason": self.reason,
            "ms": round(self.seconds * 1e3),
        }


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """A whole run. Seed and count are enough to repeat its random choices."""

    suite: str
    url: str
    hub_id: bytes | None  # None if the status could not be read
    seed: int
    count: int
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """No check failed and at least one passed."""
        return not self.failures and any(result.outcome is CheckOutcome.PASS for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.outcome is CheckOutcome.FAIL)

    @property
    def counts(self) -> dict[CheckOutcome, int]:
        found = Counter(result.outcome for result in self.results)
        return {outcome: found[outcome] for outcome in CheckOutcome}

    def to_json(self) -> dict[str, Json]:
        return {
            "suite": self.suite,
            "hub": self.url,
            "hub_id": None if self.hub_id is None else self.hub_id.hex(),
            "seed": self.seed,
            "count": self.count,
            "ok": self.ok,
            "counts": {str(outcome): count for outcome, count in self.counts.items()},
            "results": [result.to_json() for result in self.results],
        }
