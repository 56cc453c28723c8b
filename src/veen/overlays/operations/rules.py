"""The rules of the nine profiles, the findings of validators, and the facts from outside the log that they use.

001, spec-3, the invariants of §2 to §10. The facts are a domain's policy and reports of services. All are optional: if
a rule depends on a missing fact, its verdict is `open`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias

from veen.core import CapToken, Malformed, Receipt, wire_json
from veen.core.cbor import Bool, Bstr, Bytes, FieldType, ListOf, Nested, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES, MAX_MSG_BYTES
from veen.overlays.event import At, FoldEntry, body_text
from veen.overlays.operations.operation_index import LoggedOperation


class RuleVerdict(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    OPEN = "open"  # a fact that decides it is not known


class Rule(StrEnum):
    """The profile and the name of its invariant in the specification, and the meaning of the rule."""

    def __new__(cls, name: str, meaning: str) -> "Rule":
        rule = str.__new__(cls, name)
        rule._value_ = name
        rule.meaning = meaning
        return rule

    meaning: str

    PAID_P1 = "paid.P1", "a paid operation is processed once per place"
    PAID_P2 = "paid.P2", "the side effects are idempotent or keyed by the operation id"
    ACCESS_A1 = "access.A1", "the sender of a grant or revocation may change permissions"
    ACCESS_A2 = "access.A2", "the sender had a valid grant or a bootstrapped capability"
    DELEGATED_D1 = "delegated.D1", "the delegation chain is not empty"
    DELEGATED_D2 = "delegated.D2", "each capability of the chain is valid"
    DELEGATED_D3 = "delegated.D3", "the chain connects the principal to the agent without a gap"
    AGREEMENT_M1 = "agreement.M1", "the latest decision of a party counts"
    AGREEMENT_M2 = "agreement.M2", "versions ascend, and an agreement is not redefined more often than confirmed"
    PUBLICATION_P1 = "publication.P1", "each id and version is published once"
    PUBLICATION_P2 = "publication.P2", "consumers use the version that their rule selects"
    SNAPSHOT_S1 = "snapshot.S1", "each state and place has one checkpoint"
    SNAPSHOT_S2 = "snapshot.S2", "root and state hash of the checkpoint match the log"
    RECOVERY_R1 = "recovery.R1", "all named approvals precede the recovery"
    RECOVERY_R2 = "recovery.R2", "each named approval is for this change"
    RECOVERY_R3 = "recovery.R3", "the sender may execute recoveries"
    QUERY_Q1 = "query.Q1", "every access to a regulated resource has an audit message"
    MIRROR_F1 = "mirror.F1", "the mirrored message matches its hub's receipt"
    MIRROR_F2 = "mirror.F2", "a source message is mirrored once per target"


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
    return RuleFinding(rule, verdict, one.operation_id, (*before, one.at), fault or rule.meaning)


def repeat_finding(rule: Rule, one: LoggedOperation, first: LoggedOperation, fault: str) -> RuleFinding:
    """A finding that the rule holds for the first operation of its kind and is violated by the others."""
    return rule_finding(rule, one, None) if first is one else rule_finding(rule, one, fault, first.at)


def open_finding(rule: Rule, one: LoggedOperation, reason: str) -> RuleFinding:
    """A finding that the rule cannot be decided, because a fact is not known."""
    return RuleFinding(rule, RuleVerdict.OPEN, one.operation_id, (one.at,), reason)


class Survivorship(StrEnum):
    """Which of several versions a consumer uses. §6.4."""

    LATEST = "latest"  # in stream order
    HIGHEST = "highest"  # by version name, with numbers compared as numbers


@text_map("place")
class LogPlace(Wire):
    """The place of an entry: label and stream_seq."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint()]


@text_map("effect")
class Effect(Wire):
    """A side effect that a service performed. `key` is the service's deduplication key. §2.5."""

    operation_id: Annotated[bytes, Bstr()]
    idempotent: Annotated[bool, Bool()]
    key: Annotated[bytes | None, Bstr(optional=True)] = None


@text_map("decision")
class Decision(Wire):
    """The decision of a party as a consumer uses it. §5.4."""

    agreement_id: Annotated[bytes, Bstr()]
    version: Annotated[int, Uint()]
    party_identity: Annotated[bytes, Bstr()]
    decision: Annotated[str, body_text()]


@text_map("taken")
class UsedVersion(Wire):
    """The version that a consumer uses. §6.4."""

    publication_id: Annotated[bytes, Bstr()]
    version: Annotated[str, body_text()]


@text_map("access")
class AccessFact(Wire):
    """A read that a data access service served. §9.3."""

    requester_identity: Annotated[bytes, Bstr()]
    resource_identifier: Annotated[str, body_text()]
    resource_class: Annotated[str, body_text()]
    result_digest: Annotated[bytes | None, Bstr(optional=True)] = None


class FactSource(NamedTuple):
    """A message of another hub. §10.2."""

    hub_identifier: str
    label: bytes
    stream_seq: int


@dataclass(frozen=True, slots=True)
class CapabilityFact:
    """A capability and the time when its hub logged it. Without `issued_at` its expiry is unknown."""

    token: CapToken
    issued_at: int | None = None
    revoked_at: int | None = None  # invalid from that second on


@dataclass(frozen=True, slots=True)
class Guardians:
    """The approvers of a recovery and the number required. Without `identities` anyone may approve. §8.3."""

    identities: frozenset[bytes] | None = None
    threshold: int = 1


RootAt: TypeAlias = Callable[[LogPlace], bytes | None]
StateAt: TypeAlias = Callable[[str, bytes, LogPlace], bytes | None]  # class, state_id, place -> state_hash
Speakers: TypeAlias = Mapping[bytes, frozenset[bytes]]  # the clients that act for an identity


def speaks(speakers: Speakers | None, identity: bytes, client_id: bytes) -> bool:
    """Whether a client acts for an identity: its own, or one listed in `speakers`. None means unchecked."""
    return speakers is None or client_id == identity or client_id in speakers.get(identity, frozenset())


def permits(allowed: frozenset[bytes] | None, entry: FoldEntry) -> bool:
    """Whether an entry's writer or its capability is among the allowed. None allows everyone."""
    return allowed is None or entry.client_id in allowed or entry.auth_ref in allowed


def identities_of(speakers: Speakers | None, client_id: bytes) -> tuple[bytes, ...]:
    """The identities that a client acts for, its own first."""
    return (client_id, *(identity for identity, clients in (speakers or {}).items() if client_id in clients))


@dataclass(frozen=True, slots=True)
class ExternalFacts:
    """The facts that validators use. None means unknown."""

    stream_id: bytes | None = None  # of the checked log
    speakers: Speakers | None = None
    processed: tuple[LogPlace, ...] | None = None  # places that a wallet service has processed
    effects: tuple[Effect, ...] | None = None
    granters: frozenset[bytes] | None = None  # clients and capabilities that may change permissions
    bootstrapped: frozenset[bytes] | None = None  # capabilities that are valid without a grant
    capabilities: Mapping[bytes, CapabilityFact] = field(default_factory=dict)  # by auth_ref
    decisions: tuple[Decision, ...] | None = None
    survivorship: Survivorship = Survivorship.LATEST
    taken: tuple[UsedVersion, ...] | None = None
    root_at: RootAt | None = None
    state_at: StateAt | None = None
    executors: frozenset[bytes] | None = None  # clients that may execute a recovery; None means anyone
    accesses: tuple[AccessFact, ...] | None = None
    regulated: frozenset[str] | None = None  # resource classes; None means all
    sources: Mapping[FactSource, Receipt] = field(default_factory=dict)  # verified receipts of other hubs


def _rows(item: FieldType, *, name: str = "") -> ListOf:
    return ListOf(item, name=name, most=MAX_BODY_BYTES, optional=True)


@text_map("capability")
class KnownCapability(Wire):
    """A capability in CBOR, and the times when its hub logged it and when it was revoked."""

    token: Annotated[bytes, Bytes(MAX_MSG_BYTES)]
    issued_at: Annotated[int | None, Uint(optional=True)] = None
    revoked_at: Annotated[int | None, Uint(optional=True)] = None


@text_map("source")
class KnownReceipt(Wire):
    """A receipt of another hub in CBOR, with the key that signed it."""

    hub_identifier: Annotated[str, body_text()]
    hub_pk: Annotated[bytes, Bstr()]
    receipt: Annotated[bytes, Bytes(MAX_MSG_BYTES)]


@text_map("speaker")
class Speaker(Wire):
    """A client that acts for an identity."""

    identity: Annotated[bytes, Bstr()]
    client_id: Annotated[bytes, Bstr()]


@text_map("evidence")
class FactsFile(Wire):
    """The JSON file of external facts, as `veen op check` reads it."""

    speakers: Annotated[tuple[Speaker, ...] | None, _rows(Nested(Speaker, name="speaker"))] = None
    processed: Annotated[tuple[LogPlace, ...] | None, _rows(Nested(LogPlace, name="place"))] = None
    effects: Annotated[tuple[Effect, ...] | None, _rows(Nested(Effect, name="effect"))] = None
    granters: Annotated[tuple[bytes, ...] | None, _rows(Bstr(name="granter"))] = None
    bootstrapped: Annotated[tuple[bytes, ...] | None, _rows(Bstr(name="auth_ref"))] = None
    capabilities: Annotated[tuple[KnownCapability, ...] | None, _rows(Nested(KnownCapability, name="capability"))] = (
        None
    )
    decisions: Annotated[tuple[Decision, ...] | None, _rows(Nested(Decision, name="decision"))] = None
    survivorship: Annotated[str | None, body_text(optional=True)] = None
    taken: Annotated[tuple[UsedVersion, ...] | None, _rows(Nested(UsedVersion, name="taken"))] = None
    executors: Annotated[tuple[bytes, ...] | None, _rows(Bstr(name="executor"))] = None
    accesses: Annotated[tuple[AccessFact, ...] | None, _rows(Nested(AccessFact, name="access"))] = None
    regulated: Annotated[tuple[str, ...] | None, _rows(body_text(name="resource_class"))] = None
    sources: Annotated[tuple[KnownReceipt, ...] | None, _rows(Nested(KnownReceipt, name="source"))] = None

    def flaw(self) -> str | None:
        known = self.survivorship is None or self.survivorship in Survivorship.__members__.values()
        return None if known else f"survivorship must be {' or '.join(Survivorship)}"


def read(data: bytes, stream_id: bytes | None = None) -> ExternalFacts:
    """Decode a file of facts. Raises `Malformed`, or `Unverified` if a receipt's signature is invalid."""
    found = wire_json.decode(FactsFile, data)
    unchanged = ("processed", "effects", "decisions", "taken", "accesses")
    sets = ("granters", "bootstrapped", "executors", "regulated")
    given: dict[str, Any] = {name: getattr(found, name) for name in unchanged}
    given |= {name: None if (one := getattr(found, name)) is None else frozenset(one) for name in sets}
    if found.survivorship is not None:
        given["survivorship"] = Survivorship(found.survivorship)
    held = [
        CapabilityFact(CapToken.decode(one.token), one.issued_at, one.revoked_at) for one in found.capabilities or ()
    ]
    given["capabilities"] = {one.token.auth_ref(): one for one in held}
    return ExternalFacts(stream_id, _speakers(found.speakers), sources=_sources(found.sources or ()), **given)


def _speakers(listed: tuple[Speaker, ...] | None) -> Speakers | None:
    if listed is None:
        return None
    identities = dict.fromkeys(one.identity for one in listed)
    return {named: frozenset(one.client_id for one in listed if one.identity == named) for named in identities}


def _sources(listed: tuple[KnownReceipt, ...]) -> Mapping[FactSource, Receipt]:
    sources: dict[FactSource, Receipt] = {}
    for one in listed:
        receipt = Receipt.decode(one.receipt)
        receipt.verify_signature(one.hub_pk)
        source = FactSource(one.hub_identifier, receipt.label, receipt.stream_seq)
        if sources.setdefault(source, receipt) != receipt:
            raise Malformed(
                "evidence", f"two different receipts for message {receipt.stream_seq} of {one.hub_identifier}"
            )
    return sources
