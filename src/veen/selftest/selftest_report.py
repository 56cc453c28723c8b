"""What a run found, as data: one result for every check, whatever became of it."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from veen.core.strict_json import Json


class CheckOutcome(StrEnum):
    """What became of a check."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: what it claims, by which section of which specification, and what was seen."""

    suite: str
    id: str
    claim: str
    spec: str
    outcome: CheckOutcome
    reason: str  # why it failed or was skipped; of a pass, what it covered, where that is worth a word
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
    """A whole run. The seed and the count are what it takes to make the same choices again."""

    suite: str
    url: str
    hub_id: bytes | None  # None where the hub did not say
    seed: int
    count: int
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Nothing failed, and something was tried."""
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
