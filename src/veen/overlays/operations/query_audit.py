"""Query audit: who read what, how often and when, as the log says. 001, spec-3 §9."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from veen.core import cbor
from veen.core.cbor import Text, Uint, Wire
from veen.core.hashing import HASH_BYTES, ht
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import body
from veen.overlays.operations.external_facts import AccessFact, ExternalFacts
from veen.overlays.operations.operation_events import QueryAudit
from veen.overlays.operations.operation_index import LoggedOperation, of_kind
from veen.overlays.operations.rules import Rule, RuleFinding, RuleVerdict, open_finding, rule_finding
from veen.overlays.overlay import FoldStep, MergeOverlay


@dataclass(frozen=True, slots=True)
class QueryReads(Wire):
    """The reads of one resource by one requester: how many, and when the hub logged the first and the last."""

    count: int = 0
    first_ts: int = 0
    last_ts: int = 0
    last_purpose: str | None = None

    LAYOUT: ClassVar = body(
        "reads",
        Uint("count"),
        Uint("first_ts"),
        Uint("last_ts"),
        Text("last_purpose", MAX_BODY_BYTES, optional=True),
    )


NONE = QueryReads()
States: TypeAlias = Mapping[bytes, QueryReads]


class QueryAudits(MergeOverlay[QueryReads]):
    """A part per requester and resource."""

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

    def encode_state(self, state: QueryReads) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> QueryReads:
        return QueryReads.decode(data)

    def plain(self, part: bytes, state: QueryReads) -> Mapping[str, cbor.Value]:
        requester, resource_class, resource = resource_of(part)
        return {
            "requester_identity": requester,
            "resource_class": resource_class,
            "resource_identifier": resource,
            "count": state.count,
            "first_ts": state.first_ts,
            "last_ts": state.last_ts,
            "last_purpose": state.last_purpose,
        }


QUERY_AUDITS = QueryAudits()


def reads_part(requester: bytes, resource_class: str, resource_identifier: str) -> bytes:
    return requester + cbor.encode([resource_class, resource_identifier])


def resource_of(part: bytes) -> tuple[bytes, str, str]:
    """Requester, class and identifier of a part."""
    match cbor.decode(part[HASH_BYTES:]):
        case (str() as resource_class, str() as resource):
            return part[:HASH_BYTES], resource_class, resource
    raise ValueError("no part of query.audit")


def result_digest(result: bytes) -> bytes:
    """How we derive `result_digest` from the bytes that were returned; §9.2 asks for one way, written down."""
    return ht("veen/query-result", result)


def check(known: Iterable[LoggedOperation], facts: ExternalFacts) -> Iterator[RuleFinding]:
    """Q1 for every audit message, and for every access to a regulated resource that has none.

    One message answers for one access: two equal reads take two messages.
    """
    listed = of_kind(known, QueryAudit)
    if facts.accesses is None:
        for one, _ in listed:
            yield open_finding(Rule.QUERY_Q1, one, "no service has said what was read")
        return
    unmatched = [event for _, event in listed]
    # Those whose result is known choose first, and each what fits it best: then nobody is left without need.
    for access in sorted(facts.accesses, key=lambda access: access.result_digest is None):
        if facts.regulated is not None and access.resource_class not in facts.regulated:
            continue
        fitting = [event for event in unmatched if _tells_of(event, access)]
        if fitting:
            unmatched.remove(min(fitting, key=lambda event: event.result_digest != access.result_digest))
        else:
            what = f"{access.resource_class} {access.resource_identifier}"
            reason = f"{access.requester_identity.hex()} read {what}, and no message says so"
            yield RuleFinding(Rule.QUERY_Q1, RuleVerdict.VIOLATED, None, (), reason)
    for one, _ in listed:
        yield rule_finding(Rule.QUERY_Q1, one, None)


def _tells_of(event: QueryAudit, access: AccessFact) -> bool:
    who_and_what = ("requester_identity", "resource_identifier", "resource_class")
    same = all(getattr(event, name) == getattr(access, name) for name in who_and_what)
    digests = (event.result_digest, access.result_digest)
    return same and (None in digests or digests[0] == digests[1])
