"""The rules of the nine profiles, and the findings of validators. 001, spec-3, the invariants of §2 to §10."""

from dataclasses import dataclass
from enum import StrEnum

from veen.overlays.entry import At
from veen.overlays.operations.operation_index import LoggedOperation


class RuleVerdict(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    OPEN = "open"  # a fact that decides it is not known


class Rule(StrEnum):
    """The profile and the name of its invariant in the specification."""

    PAID_P1 = "paid.P1"
    PAID_P2 = "paid.P2"
    ACCESS_A1 = "access.A1"
    ACCESS_A2 = "access.A2"
    DELEGATED_D1 = "delegated.D1"
    DELEGATED_D2 = "delegated.D2"
    DELEGATED_D3 = "delegated.D3"
    AGREEMENT_M1 = "agreement.M1"
    AGREEMENT_M2 = "agreement.M2"
    PUBLICATION_P1 = "publication.P1"
    PUBLICATION_P2 = "publication.P2"
    SNAPSHOT_S1 = "snapshot.S1"
    SNAPSHOT_S2 = "snapshot.S2"
    RECOVERY_R1 = "recovery.R1"
    RECOVERY_R2 = "recovery.R2"
    RECOVERY_R3 = "recovery.R3"
    QUERY_Q1 = "query.Q1"
    MIRROR_F1 = "mirror.F1"
    MIRROR_F2 = "mirror.F2"


MEANING: dict[Rule, str] = {
    Rule.PAID_P1: "a paid operation is processed once per place",
    Rule.PAID_P2: "its side effects are idempotent or keyed by its operation id",
    Rule.ACCESS_A1: "the sender of a grant or revocation may change permissions",
    Rule.ACCESS_A2: "the sender had a valid grant or a bootstrapped capability",
    Rule.DELEGATED_D1: "the delegation chain is not empty",
    Rule.DELEGATED_D2: "each capability of the chain is valid",
    Rule.DELEGATED_D3: "the chain connects the principal to the agent without a gap",
    Rule.AGREEMENT_M1: "the latest decision of a party counts",
    Rule.AGREEMENT_M2: "versions ascend, and definitions are not more frequent than confirmations",
    Rule.PUBLICATION_P1: "each id and version is published once",
    Rule.PUBLICATION_P2: "consumers use the version that their rule selects",
    Rule.SNAPSHOT_S1: "each state and place has one checkpoint",
    Rule.SNAPSHOT_S2: "its root and its state hash match the log",
    Rule.RECOVERY_R1: "the approvals it names precede it",
    Rule.RECOVERY_R2: "each of them approves this change",
    Rule.RECOVERY_R3: "the sender may execute recoveries",
    Rule.QUERY_Q1: "every access to a regulated resource has an audit message",
    Rule.MIRROR_F1: "the mirrored message matches its hub's receipt",
    Rule.MIRROR_F2: "a source message is mirrored once per target",
}


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """The verdict on one rule for one operation. `operation_id` is None if a required entry is missing.

    `places` are the entries that decide the rule, the operation's own entry last.
    """

    rule: Rule
    verdict: RuleVerdict
    operation_id: bytes | None
    places: tuple[At, ...]
    reason: str


def rule_finding(rule: Rule, one: LoggedOperation, fault: str | None, *before: At) -> RuleFinding:
    """A finding that the rule holds, or is violated if there is a fault."""
    verdict = RuleVerdict.HOLDS if fault is None else RuleVerdict.VIOLATED
    return RuleFinding(rule, verdict, one.operation_id, (*before, one.at), fault or MEANING[rule])


def open_finding(rule: Rule, one: LoggedOperation, reason: str) -> RuleFinding:
    """A finding that the rule cannot be decided, because a fact is not known."""
    return RuleFinding(rule, RuleVerdict.OPEN, one.operation_id, (one.at,), reason)
