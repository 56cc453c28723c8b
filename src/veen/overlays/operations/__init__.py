"""The nine operation profiles, their rules and their validators. 001, spec-3.

`operation_events` defines the bodies, `operation_index` lists every operation by its id. `payment`, `access`,
`delegation`, `agreement`, `publication`, `state_statement`, `recovery`, `query_audit` and `mirror` each fold one
profile and check its rules. `check_log` runs all checks on a log, with facts from outside the log (`rules`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from veen.overlays.event import At, FoldEntry
from veen.overlays.operations import (
    access,
    agreement,
    delegation,
    mirror,
    payment,
    publication,
    query_audit,
    recovery,
    state_statement,
)
from veen.overlays.operations.access import ACCESS
from veen.overlays.operations.agreement import AGREEMENTS
from veen.overlays.operations.delegation import DELEGATIONS
from veen.overlays.operations.mirror import MIRRORS
from veen.overlays.operations.operation_index import OPERATIONS, LoggedOperation, operations
from veen.overlays.operations.payment import PAYMENTS
from veen.overlays.operations.publication import PUBLICATIONS
from veen.overlays.operations.query_audit import QUERY_AUDITS
from veen.overlays.operations.recovery import RECOVERIES
from veen.overlays.operations.rules import ExternalFacts, RuleFinding, RuleVerdict
from veen.overlays.operations.state_statement import SNAPSHOTS
from veen.overlays.overlay import Registry

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

Validator: TypeAlias = Callable[[Iterable[LoggedOperation], ExternalFacts], Iterator[RuleFinding]]

VALIDATORS: dict[str, Validator] = {
    "paid": payment.check,
    "access": access.check,
    "delegated": delegation.check,
    "agreement": agreement.check,
    "publication": publication.check,
    "snapshot": state_statement.check,
    "recovery": recovery.check,
    "query": query_audit.check,
    "mirror": mirror.check,
}


def check(known: Iterable[LoggedOperation], facts: ExternalFacts | None = None) -> tuple[RuleFinding, ...]:
    """The findings of all validators, by place and rule. Findings without an operation come last."""
    listed, given = tuple(known), facts or ExternalFacts()
    found = [finding for validator in VALIDATORS.values() for finding in validator(listed, given)]
    return tuple(sorted(found, key=_order))


def check_log(
    entries: Iterable[FoldEntry], overlays: Registry, facts: ExternalFacts | None = None
) -> tuple[RuleFinding, ...]:
    """Check the whole log of one label from its first entry. Roots and states are then computed from the log."""
    listed = tuple(entries)
    states = state_statement.LogStates(listed, overlays)
    given = replace(facts or ExternalFacts(), root_at=states.root_at, state_at=states.state_at)
    return check(operations(listed), given)


def violations(findings: Iterable[RuleFinding]) -> tuple[RuleFinding, ...]:
    return tuple(one for one in findings if one.verdict is RuleVerdict.VIOLATED)


def _order(finding: RuleFinding) -> tuple[bool, At, str, str]:
    own = finding.places[-1] if finding.places else At(0, 0)
    return not finding.places, own, str(finding.rule), finding.reason
