"""Delegated execution: operations of agents for principals, with their chains of capabilities. 001, spec-3 §4.

The subject of a capability may issue another one for a subset of its streams and at most its rate. A chain starts with
a capability of the principal and ends with one of the agent; each is issued by the subject of the previous one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, TypeAlias

from veen.core import CapToken, PayloadHdr, Unverified, cbor
from veen.core.cbor import Bstr, Nested, Uint, Wire, text_map
from veen.overlays.event import Event, FoldEntry, plain_wire
from veen.overlays.operations import rules
from veen.overlays.operations.operation_events import Delegated, Revoke
from veen.overlays.operations.operation_index import LoggedOperation, logged, own_id
from veen.overlays.overlay import FoldStep, MergeOverlay

EMPTY_CHAIN = "the delegation chain is empty"
Known: TypeAlias = Mapping[bytes, rules.CapabilityFact]  # by auth_ref


@text_map("execution", keys={"event": "said"})
class DelegatedExecution(Wire):
    """A logged delegated execution; `event` is None in the empty state."""

    epoch: Annotated[int, Uint()] = 0
    stream_seq: Annotated[int, Uint()] = 0
    client_id: Annotated[bytes | None, Bstr(optional=True)] = None
    event: Annotated[Delegated | None, Nested(Delegated, optional=True)] = None


NONE = DelegatedExecution()


class Delegations(MergeOverlay[DelegatedExecution]):
    """One part per operation id. Whether a chain is valid depends on the capabilities and is not part of the state."""

    CLASS = "delegated.execution"
    EVENTS = (Delegated,)
    EMPTY = NONE

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        assert isinstance(event, Delegated)
        return None if event.delegation_chain else f"{rules.Rule.DELEGATED_D1}: {EMPTY_CHAIN}"

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        return (own_id(entry, event),)

    def lift(self, step: FoldStep) -> DelegatedExecution:
        assert isinstance(step.event, Delegated)
        return DelegatedExecution(*step.at, step.entry.client_id, step.event)

    def merge(self, a: DelegatedExecution, b: DelegatedExecution) -> DelegatedExecution:
        return b if a == NONE else a

    def plain(self, part: bytes, state: DelegatedExecution) -> Mapping[str, cbor.Value]:
        shown = {} if state.event is None else plain_wire(state.event)
        return {"operation_id": part, "stream_seq": state.stream_seq, "client_id": state.client_id, **shown}


DELEGATIONS = Delegations()


def invalid(entry: FoldEntry, event: Delegated, known: Known) -> str | None:
    """Why a single capability of the chain is invalid, or None. Unknown capabilities are skipped. D2."""
    for number, ref in enumerate(event.delegation_chain, 1):
        held = known.get(ref)
        if held is None:
            continue
        try:
            held.token.verify()
        except Unverified:
            return f"capability {number} of the chain is not signed by its issuer"
        if held.token.auth_ref() != ref:
            return f"capability {number} of the chain does not match its reference"
        if held.issued_at is not None and held.token.expired(held.issued_at, entry.hub_ts):
            return f"capability {number} of the chain had expired"
        if held.revoked_at is not None and entry.hub_ts >= held.revoked_at:
            return f"capability {number} of the chain was revoked"
    return None


def gap(entry: FoldEntry, event: Delegated, known: Known) -> str | None:
    """Why the chain does not connect the principal to the agent, or None. D3 and §4.3."""
    tokens = [known[ref].token for ref in event.delegation_chain if ref in known]
    if not event.delegation_chain or len(tokens) < len(event.delegation_chain):
        return None
    if tokens[0].subject_pk != event.principal_identity:
        return "the first capability is not the principal's"
    for number, (one, following) in enumerate(pairwise(tokens), 1):
        if not _allows(one, following):
            return f"capability {number} of the chain does not permit the next one"
    if tokens[-1].subject_pk not in (event.agent_identity, entry.client_id):
        return "the last capability is not the agent's"
    return None


def direct(entry: FoldEntry, known: Known) -> FoldEntry | None:
    """The embedded operation as an entry of the principal at the same place, or None if it must not be applied.

    An unknown capability makes the chain invalid.
    """
    one = logged(entry)
    if one is None or not isinstance(one.event, Delegated):
        return None
    event = one.event
    resolved = bool(event.delegation_chain) and all(ref in known for ref in event.delegation_chain)
    if not resolved or invalid(entry, event, known) or gap(entry, event, known):
        return None
    parent_id = entry.header.parent_id if entry.header else None
    header = PayloadHdr(event.operation_schema, parent_id)
    return replace(entry, client_id=event.principal_identity, header=header, body=event.operation_body)


def applied(entries: Iterable[FoldEntry], known: Known) -> Iterator[FoldEntry]:
    """Replace each valid delegated execution of a log by the operation it embeds."""
    return (direct(entry, known) or entry for entry in entries)


def check(known: Iterable[LoggedOperation], facts: rules.ExternalFacts) -> Iterator[rules.RuleFinding]:
    """Check D1 to D3 for every delegated execution. A capability that the log revokes earlier is invalid."""
    held = dict(facts.capabilities)
    for one in known:
        event = one.event
        if isinstance(event, Revoke) and event.target_capability_reference in held:
            if rules.permits(facts.granters, one.entry):
                ref = event.target_capability_reference
                held[ref] = replace(held[ref], revoked_at=one.entry.hub_ts)
        elif isinstance(event, Delegated):
            yield from _judge(one, event, held)


def _judge(one: LoggedOperation, event: Delegated, held: Known) -> Iterator[rules.RuleFinding]:
    chain = event.delegation_chain
    yield rules.rule_finding(rules.Rule.DELEGATED_D1, one, None if chain else EMPTY_CHAIN)
    missing = [ref for ref in chain if ref not in held]
    for rule, fault in (
        (rules.Rule.DELEGATED_D2, invalid(one.entry, event, held)),
        (rules.Rule.DELEGATED_D3, gap(one.entry, event, held)),
    ):
        if missing and fault is None:
            yield rules.open_finding(
                rule, one, f"{len(missing)} of {len(chain)} capabilities of the chain are not known"
            )
        else:
            yield rules.rule_finding(rule, one, fault)


def _allows(one: CapToken, following: CapToken) -> bool:
    """Whether the subject of `one` issued `following` for no more streams and no higher rate."""
    rate, further = one.allow.rate, following.allow.rate
    slower = rate is None or (further is not None and further.per_sec <= rate.per_sec and further.burst <= rate.burst)
    narrower = set(following.allow.stream_ids) <= set(one.allow.stream_ids)
    return following.issuer_pk == one.subject_pk and narrower and slower
