"""All the validators at once: what can be said of every rule for every operation of a log."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from veen.overlays.entry import At, Entry
from veen.overlays.operations import (
    access,
    agreement,
    audit,
    delegation,
    mirror,
    paid,
    publication,
    recovery,
    snapshot,
)
from veen.overlays.operations.index import Logged, operations
from veen.overlays.operations.rules import Finding, Verdict
from veen.overlays.operations.world import World
from veen.overlays.registry import Registry

Validator: TypeAlias = Callable[[Iterable[Logged], World], Iterator[Finding]]

VALIDATORS: dict[str, Validator] = {
    "paid": paid.check,
    "access": access.check,
    "delegated": delegation.check,
    "agreement": agreement.check,
    "publication": publication.check,
    "snapshot": snapshot.check,
    "recovery": recovery.check,
    "query": audit.check,
    "mirror": mirror.check,
}


def check(known: Iterable[Logged], world: World | None = None) -> tuple[Finding, ...]:
    """What every validator finds, by place and rule; what no operation is behind comes last."""
    listed, told = tuple(known), world or World()
    found = [finding for validator in VALIDATORS.values() for finding in validator(listed, told)]
    return tuple(sorted(found, key=_order))


def check_log(entries: Iterable[Entry], overlays: Registry, world: World | None = None) -> tuple[Finding, ...]:
    """The same for the whole log of one label, from its first entry: its roots and states are then known too."""
    listed = tuple(entries)
    states = snapshot.LogStates(listed, overlays)
    told = replace(world or World(), root_at=states.root_at, state_at=states.state_at)
    return check(operations(listed), told)


def violations(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that say a rule is violated."""
    return tuple(one for one in findings if one.verdict is Verdict.VIOLATED)


def _order(finding: Finding) -> tuple[bool, At, str, str]:
    own = finding.places[-1] if finding.places else At(0, 0)
    return not finding.places, own, str(finding.rule), finding.reason
