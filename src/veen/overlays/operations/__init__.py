"""The nine operation profiles, their rules and their validators. 001, spec-3.

`operation_events` defines the bodies, `operation_index` lists every operation by its id. `payment`, `access`,
`delegation`, `agreement`, `publication`, `state_statement`, `recovery`, `query_audit` and `mirror` each fold one
profile and check its rules. `rule_checks` runs all checks on a log, with facts from outside the log (`external_facts`).
"""

from veen.overlays.operations.access import ACCESS, Access, admits, token_of
from veen.overlays.operations.agreement import AGREEMENTS, Agreements, Quorum
from veen.overlays.operations.delegation import DELEGATIONS, applied, direct
from veen.overlays.operations.external_facts import CapabilityFact, ExternalFacts, Guardians, Survivorship
from veen.overlays.operations.mirror import MIRRORS, check_sync, mirror_payload, missing, plan, record, validate
from veen.overlays.operations.operation import Operation, operation_id, profile_schema
from veen.overlays.operations.operation_events import (
    AccessGrant,
    Confirmation,
    Definition,
    Delegated,
    Mirror,
    Paid,
    Publication,
    QueryAudit,
    RecoveryApproval,
    RecoveryExecution,
    RecoveryRequest,
    Revoke,
    StateCheckpoint,
)
from veen.overlays.operations.operation_index import (
    BY_NAME,
    OPERATION_EVENTS,
    OPERATIONS,
    LoggedOperation,
    operations,
    trace,
)
from veen.overlays.operations.payment import PAYMENTS, Payments, balance
from veen.overlays.operations.publication import PUBLICATIONS, content_root, survivor
from veen.overlays.operations.query_audit import QUERY_AUDITS
from veen.overlays.operations.recovery import RECOVERIES, Recoveries, current
from veen.overlays.operations.rule_checks import VALIDATORS, check, check_log, violations
from veen.overlays.operations.rules import MEANING, Rule, RuleFinding, RuleVerdict
from veen.overlays.operations.state_statement import SNAPSHOTS, LogStates

__all__ = [
    "ACCESS",
    "AGREEMENTS",
    "Access",
    "AccessGrant",
    "Agreements",
    "BY_NAME",
    "CapabilityFact",
    "Confirmation",
    "DELEGATIONS",
    "Definition",
    "Delegated",
    "ExternalFacts",
    "Guardians",
    "LogStates",
    "LoggedOperation",
    "MEANING",
    "MIRRORS",
    "Mirror",
    "OPERATIONS",
    "OPERATION_EVENTS",
    "OPERATION_OVERLAYS",
    "Operation",
    "PAYMENTS",
    "PUBLICATIONS",
    "Paid",
    "Payments",
    "Publication",
    "QUERY_AUDITS",
    "QueryAudit",
    "Quorum",
    "RECOVERIES",
    "Recoveries",
    "RecoveryApproval",
    "RecoveryExecution",
    "RecoveryRequest",
    "Revoke",
    "Rule",
    "RuleFinding",
    "RuleVerdict",
    "SNAPSHOTS",
    "StateCheckpoint",
    "Survivorship",
    "VALIDATORS",
    "admits",
    "applied",
    "balance",
    "check",
    "check_log",
    "check_sync",
    "content_root",
    "current",
    "direct",
    "mirror_payload",
    "missing",
    "operation_id",
    "operations",
    "plan",
    "profile_schema",
    "record",
    "survivor",
    "token_of",
    "trace",
    "validate",
    "violations",
]

OPERATION_OVERLAYS = (
    OPERATIONS,
    PAYMENTS,
    ACCESS,
    DELEGATIONS,
    AGREEMENTS,
    PUBLICATIONS,
    SNAPSHOTS,
    RECOVERIES,
    QUERY_AUDITS,
    MIRRORS,
)
