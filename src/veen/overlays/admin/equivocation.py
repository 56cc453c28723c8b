"""AUTH1: classify two contradicting receipts by cause and severity. 001, spec-2 §3.4.

The caller must have verified the receipts and determined the signer and the authority over the label for each.
"""

from dataclasses import dataclass
from enum import StrEnum

from veen.core import Receipt
from veen.core.admin import AuthorityPolicy
from veen.core.tooling_messages import Equivocation
from veen.overlays.admin.authority import LabelAuthority


@dataclass(frozen=True, slots=True)
class ConflictStatement:
    """A receipt, the hub that signed it, and the authority over its label at its `hub_ts`."""

    receipt: Receipt
    hub_id: bytes
    authority: LabelAuthority


class Cause(StrEnum):
    """The cause of a contradiction."""

    PRIMARY = "primary"  # the label's only primary hub signed both
    INTRUDER = "intruder"  # a hub signed that is not the label's primary: it or the authority record is wrong
    HANDOVER = "handover"  # a new primary did not continue the log of the previous one
    HUB = "hub"  # one hub signed both without being the only primary: misbehaviour under any policy
    DIVERGENCE = "divergence"  # two hubs wrote, as multi-primary allows
    UNDECLARED = "undeclared"  # two hubs wrote and no record declares which may


class FaultSeverity(StrEnum):
    HIGH = "high"  # log it, anchor the evidence, rotate or isolate the hub
    NOTICE = "notice"  # two logs must be reconciled; no hub misbehaved


_NOTICES = (Cause.DIVERGENCE, Cause.UNDECLARED)


@dataclass(frozen=True, slots=True)
class EquivocationFinding:
    """The cause of a contradiction and the hubs to investigate."""

    cause: Cause
    suspects: tuple[bytes, ...]

    @property
    def severity(self) -> FaultSeverity:
        return FaultSeverity.NOTICE if self.cause in _NOTICES else FaultSeverity.HIGH


def classify(first: ConflictStatement, second: ConflictStatement) -> EquivocationFinding | None:
    """Classify two receipts; None if they do not contradict each other. The order does not matter."""
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
