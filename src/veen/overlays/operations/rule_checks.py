"""Run all validators: a finding for each rule and operation of a log."""

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
from veen.overlays.operations.operation_index import LoggedOperation, operations
from veen.overlays.operations.rules import ExternalFacts, RuleFinding, RuleVerdict
from veen.overlays.overlay import Registry

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
