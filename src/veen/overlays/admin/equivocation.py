"""AUTH1: what two receipts that contradict each other say about who is at fault. 001, spec-2 §3.4.

The receipts are verified before: who signed each is known, and who was to order the label at its time.
"""

from dataclasses import dataclass
from enum import StrEnum

from veen.core import Receipt
from veen.core.admin import AuthorityPolicy
from veen.core.tooling_messages import Equivocation
from veen.overlays.admin.authority import LabelAuthority


@dataclass(frozen=True, slots=True)
class ConflictStatement:
    """A receipt, the hub whose signature it has, and the authority over its label at its `hub_ts`."""

    receipt: Receipt
    hub_id: bytes
    authority: LabelAuthority


class Cause(StrEnum):
    """What a contradiction comes from."""

    PRIMARY = "primary"  # the one hub that is to order the label signed both
    INTRUDER = "intruder"  # a hub signed that was not the label's primary: it, or the authority record, is wrong
    HANDOVER = "handover"  # one primary followed another and did not go on from its log
    HUB = "hub"  # one hub signed both, and no record makes it the only one: a lie under any policy
    DIVERGENCE = "divergence"  # two hubs wrote, which multi-primary allows
    UNDECLARED = "undeclared"  # two hubs wrote, and no record says which may


class FaultSeverity(StrEnum):
    """How loud to be."""

    HIGH = "high"  # log it, anchor the evidence, rotate or isolate the hub
    NOTICE = "notice"  # somebody has to reconcile two logs; nobody has lied


_NOTICES = (Cause.DIVERGENCE, Cause.UNDECLARED)


@dataclass(frozen=True, slots=True)
class EquivocationFinding:
    """What a contradiction comes to, and the hubs to look at."""

    cause: Cause
    suspects: tuple[bytes, ...]

    @property
    def severity(self) -> FaultSeverity:
        return FaultSeverity.NOTICE if self.cause in _NOTICES else FaultSeverity.HIGH


def classify(first: ConflictStatement, second: ConflictStatement) -> EquivocationFinding | None:
    """What to make of two receipts; None where they do not contradict each other. Their order does not matter."""
    if Equivocation(first.receipt, second.receipt).flaw() is not None:
        return None
    both = (first, second)
    signers = tuple(sorted({one.hub_id for one in both}))
    single = [one for one in both if one.authority.policy is AuthorityPolicy.SINGLE_PRIMARY]
    intruders = tuple(sorted({one.hub_id for one in single if one.hub_id != one.authority.primary_hub}))
    if intruders:
        return EquivocationFinding(Cause.INTRUDER, intruders)
    if len(signers) == 1:
        return EquivocationFinding(Cause.PRIMARY if single else Cause.HUB, signers)
    if single:
        return EquivocationFinding(Cause.HANDOVER, signers)
    declared = all(one.authority.policy is AuthorityPolicy.MULTI_PRIMARY for one in both)
    return EquivocationFinding(Cause.DIVERGENCE if declared else Cause.UNDECLARED, signers)
