"""Query audit: the logged reads of each requester and resource. 001, spec-3 §9."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from veen.core import cbor
from veen.core.cbor import Uint, Wire, text_map
from veen.core.hashing import HASH_BYTES, ht
from veen.overlays.event import Event, FoldEntry, body_text, plain_wire
from veen.overlays.operations import rules
from veen.overlays.operations.operation_events import QueryAudit
from veen.overlays.operations.operation_index import LoggedOperation, of_kind
from veen.overlays.overlay import FoldStep, MergeOverlay


@text_map("reads")
class QueryReads(Wire):
    """The reads of one resource by one requester: their number and the hub times of the first and last."""

    count: Annotated[int, Uint()] = 0
    first_ts: Annotated[int, Uint()] = 0
    last_ts: Annotated[int, Uint()] = 0
    last_purpose: Annotated[str | None, body_text(optional=True)] = None


NONE = QueryReads()


class QueryAudits(MergeOverlay[QueryReads]):
    CLASS = "query.audit"
    EVENTS = (QueryAudit,)
    EMPTY = NONE

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, QueryAudit)
        return (reads_part(event.requester_identity, event.resource_class, event.resource_identifier),)

    def lift(self, step: FoldStep) -> QueryReads:
        assert isinstance(step.event, QueryAudit)
        return QueryReads(1, step.entry.hub_ts, step.entry.hub_ts, step.event.purpose_code)

    def merge(self, a: QueryReads, b: QueryReads) -> QueryReads:
        if a == NONE or b == NONE:
            return b if a == NONE else a
        return QueryReads(a.count + b.count, a.first_ts, b.last_ts, b.last_purpose)

    def plain(self, part: bytes, state: QueryReads) -> Mapping[str, cbor.Value]:
        requester, resource_class, resource = resource_of(part)
        return {
            "requester_identity": requester,
            "resource_class": resource_class,
            "resource_identifier": resource,
            **plain_wire(state, absent=True),
        }


QUERY_AUDITS = QueryAudits()


def reads_part(requester: bytes, resource_class: str, resource_identifier: str) -> bytes:
    return requester + cbor.encode([resource_class, resource_identifier])


def resource_of(part: bytes) -> tuple[bytes, str, str]:
    """Requester, class and identifier of a part."""
    match cbor.decode(part[HASH_BYTES:]):
        case (str() as resource_class, str() as resource):
            return part[:HASH_BYTES], resource_class, resource
    raise ValueError("not a part of query.audit")


def result_digest(result: bytes) -> bytes:
    """The `result_digest` of returned bytes. §9.2 requires a documented derivation."""
    return ht("veen/query-result", result)


def check(known: Iterable[LoggedOperation], facts: rules.ExternalFacts) -> Iterator[rules.RuleFinding]:
    """Check Q1: every access to a regulated resource needs an audit message.

    One message covers one access: two equal reads need two messages.
    """
    listed = of_kind(known, QueryAudit)
    if facts.accesses is None:
        for one, _ in listed:
            yield rules.open_finding(rules.Rule.QUERY_Q1, one, "the accesses that services served are not known")
        return
    unmatched = [event for _, event in listed]
    # Accesses with a digest are matched first, and each prefers an equal digest. This finds the largest matching.
    for access in sorted(facts.accesses, key=lambda access: access.result_digest is None):
        if facts.regulated is not None and access.resource_class not in facts.regulated:
            continue
        fitting = [event for event in unmatched if _covers(event, access)]
        if fitting:
            unmatched.remove(min(fitting, key=lambda event: event.result_digest != access.result_digest))
        else:
            what = f"{access.resource_class} {access.resource_identifier}"
            reason = f"{access.requester_identity.hex()} read {what} without an audit message"
            yield rules.RuleFinding(rules.Rule.QUERY_Q1, rules.RuleVerdict.VIOLATED, None, (), reason)
    for one, _ in listed:
        yield rules.rule_finding(rules.Rule.QUERY_Q1, one, None)


def _covers(event: QueryAudit, access: rules.AccessFact) -> bool:
    compared = ("requester_identity", "resource_identifier", "resource_class")
    same = all(getattr(event, name) == getattr(access, name) for name in compared)
    digests = (event.result_digest, access.result_digest)
    return same and (None in digests or digests[0] == digests[1])
