"""The rules of the nine profiles, and what a validator says of them. 001, spec-3, the invariants of §2 to §10."""

from dataclasses import dataclass
from enum import StrEnum

from veen.overlays.entry import At
from veen.overlays.operations.operation_index import LoggedOperation


class RuleVerdict(StrEnum):
    """What can be said of one rule for one operation."""

    HOLDS = "holds"
    VIOLATED = "violated"
    OPEN = "open"  # what is known does not decide it


class Rule(StrEnum):
    """The profile and the name its invariant has there."""

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
    Rule.ACCESS_A1: "who grants or revokes may do so",
    Rule.ACCESS_A2: "who was admitted had a grant that stands, or a bootstrapped capability",
    Rule.DELEGATED_D1: "the delegation chain is not empty",
    Rule.DELEGATED_D2: "each capability of the chain is valid",
    Rule.DELEGATED_D3: "the chain leads from the principal to the agent without a gap",
    Rule.AGREEMENT_M1: "the latest decision of a party counts",
    Rule.AGREEMENT_M2: "definitions are stable, and rarer than confirmations",
    Rule.PUBLICATION_P1: "one publication for each id and version",
    Rule.PUBLICATION_P2: "consumers take the version that their rule gives",
    Rule.SNAPSHOT_S1: "one checkpoint for each state and place",
    Rule.SNAPSHOT_S2: "its root and its state hash are those of the log",
    Rule.RECOVERY_R1: "the approvals it names stand before it",
    Rule.RECOVERY_R2: "each of them approves this very change",
    Rule.RECOVERY_R3: "who sends it may do so",
    Rule.QUERY_Q1: "every access to a regulated resource has an audit message",
    Rule.MIRROR_F1: "the mirrored message is as its hub's receipt says",
    Rule.MIRROR_F2: "a source message is mirrored once per target",
}


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One rule for one operation; without one where something that should be logged is not.

    `places` are the entries that decide it, the operation's own last.
    """

    rule: Rule
    verdict: RuleVerdict
    operation_id: bytes | None
    places: tuple[At, ...]
    reason: str


def rule_finding(rule: Rule, one: LoggedOperation, fault: str | None, *before: At) -> RuleFinding:
    """The rule holds unless there is a fault."""
    verdict = RuleVerdict.HOLDS if fault is None else RuleVerdict.VIOLATED
    return RuleFinding(rule, verdict, one.operation_id, (*before, one.at), fault or MEANING[rule])


def open_finding(rule: Rule, one: LoggedOperation, lacking: str) -> RuleFinding:
    """It cannot be told, because something is not known."""
    return RuleFinding(rule, RuleVerdict.OPEN, one.operation_id, (one.at,), lacking)
