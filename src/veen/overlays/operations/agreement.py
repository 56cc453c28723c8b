"""Agreements of several parties: versions of terms, and each party's decision on each version. 001, spec-3 §5."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, TypeAlias

from veen.core import cbor
from veen.core.cbor import Bstr, ListOf, Nested, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import At, ascending, body_text, plain_wire
from veen.overlays.operations.operation_events import Confirmation, Definition
from veen.overlays.operations.operation_index import LoggedOperation, of_kind, own_id
from veen.overlays.operations.rules import Decision, ExternalFacts, Rule, RuleFinding, Speakers, rule_finding, speaks
from veen.overlays.overlay import FoldStep, WalkOverlay

ACCEPT = "accept"


class Quorum(StrEnum):
    """How many parties must accept for a version to be active. §5.3."""

    ALL = "all"
    MAJORITY = "majority"


@text_map("decided")
class PartyDecision(Wire):
    """The latest decision of a party, and its place."""

    party_identity: Annotated[bytes, Bstr()]
    decision: Annotated[str, body_text()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    decision_time: Annotated[int | None, Uint(optional=True)] = None


@text_map("version")
class TermsVersion(Wire):
    """One version of the terms with the decisions on it, by party."""

    operation_id: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    definition: Annotated[Definition, Nested(Definition)]
    decided: Annotated[
        tuple[PartyDecision, ...], ListOf(Nested(PartyDecision, name="decided"), most=MAX_BODY_BYTES)
    ] = ()

    def flaw(self) -> str | None:
        return (
            None
            if ascending(one.party_identity for one in self.decided)
            else "decisions are not in ascending order of parties"
        )

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def decision(self, party: bytes) -> str | None:
        """The latest decision of a party, or None. M1."""
        return next((one.decision for one in self.decided if one.party_identity == party), None)

    def accepted(self, quorum: Quorum = Quorum.ALL) -> bool:
        """Whether enough parties accept. An agreement without parties is never accepted."""
        parties = self.definition.parties
        accepting = sum(self.decision(party) == ACCEPT for party in parties)
        enough = len(parties) if quorum is Quorum.ALL else len(parties) // 2 + 1
        return bool(parties) and accepting >= enough

    def in_time(self, time: int) -> bool:
        """Whether the terms apply at a time: from `effective_time` until `expiry_time` (exclusive)."""
        start, end = self.definition.effective_time, self.definition.expiry_time
        return (start is None or start <= time) and (end is None or time < end)


@text_map("agreement")
class Agreement(Wire):
    """The versions of an agreement, ascending."""

    versions: Annotated[
        tuple[TermsVersion, ...], ListOf(Nested(TermsVersion, name="version"), most=MAX_BODY_BYTES)
    ] = ()

    def flaw(self) -> str | None:
        numbers = [one.definition.version for one in self.versions]
        return None if numbers == sorted(set(numbers)) else "versions are not in ascending order"

    def version(self, number: int) -> TermsVersion | None:
        return next((one for one in self.versions if one.definition.version == number), None)

    def active(self, time: int | None = None, quorum: Quorum = Quorum.ALL) -> TermsVersion | None:
        """The version in force: the highest that enough parties accept and that applies at `time`, if given."""
        for one in reversed(self.versions):
            if one.accepted(quorum) and (time is None or one.in_time(time)):
                return one
        return None


class Agreements(WalkOverlay[Agreement]):
    """One part per agreement. With `speakers`, a confirmation is applied only from a client that acts for its party."""

    CLASS = "agreement"
    EVENTS = (Definition, Confirmation)
    PART = "agreement_id"
    INITIAL = Agreement()

    def __init__(self, speakers: Speakers | None = None) -> None:
        self._speakers = speakers

    def settings(self) -> bytes:
        if self._speakers is None:
            return b""
        return cbor.encode([(one, sorted(self._speakers[one])) for one in sorted(self._speakers)])

    def refusal(self, state: Agreement, step: FoldStep) -> str | None:
        event = step.event
        if isinstance(event, Definition):
            last = state.versions[-1] if state.versions else None
            stable = last is None or event.version > last.definition.version
            return None if stable or last is None else f"{Rule.AGREEMENT_M2}: {_not_above(event, last)}"
        assert isinstance(event, Confirmation)
        version = state.version(event.version)
        if version is None:
            return f"version {event.version} is not defined"
        if event.party_identity not in version.definition.parties:
            return f"party_identity is not a party to version {event.version}"
        return (
            None
            if speaks(self._speakers, event.party_identity, step.entry.client_id)
            else "the sender does not act for this party"
        )

    def apply(self, state: Agreement, step: FoldStep) -> Agreement:
        event = step.event
        if isinstance(event, Definition):
            return Agreement((*state.versions, TermsVersion(own_id(step.entry, event), *step.at, event)))
        assert isinstance(event, Confirmation)
        made = PartyDecision(event.party_identity, event.decision, *step.at, event.decision_time)
        return Agreement(
            tuple(_decide(one, made) if one.definition.version == event.version else one for one in state.versions)
        )

    def plain(self, part: bytes, state: Agreement) -> Mapping[str, cbor.Value]:
        active = state.active()
        versions = [
            {**plain_wire(one.definition), "stream_seq": one.stream_seq, "accepted": one.accepted()}
            | {"decisions": {party.party_identity.hex(): party.decision for party in one.decided}}
            for one in state.versions
        ]
        return {
            "agreement_id": part,
            "active_version": active.definition.version if active else None,
            "versions": versions,
        }


AGREEMENTS = Agreements()


Confirmed: TypeAlias = tuple[bytes, int, bytes]  # agreement, version, party


def check(known: Iterable[LoggedOperation], facts: ExternalFacts) -> Iterator[RuleFinding]:
    """Check M1 for every confirmation and M2 for every definition."""
    listed = list(known)
    confirmations, definitions = of_kind(listed, Confirmation), of_kind(listed, Definition)
    latest = {_key(event): one for one, event in confirmations}
    used = _used_decisions(facts.decisions or ())
    for one, event in confirmations:
        # Consumers must use the latest decision; earlier ones are superseded and not compared.
        compared = used.get(_key(event), ()) if latest[_key(event)] is one else ()
        wrong = [decision for decision in compared if decision != event.decision]
        yield rule_finding(Rule.AGREEMENT_M1, one, f"a consumer uses the decision {wrong[0]!r}" if wrong else None)
    for one, definition in definitions:
        agreement = definition.agreement_id
        earlier = [
            (other, before) for other, before in definitions if before.agreement_id == agreement and other.at < one.at
        ]
        confirmed = sum(made.agreement_id == agreement and other.at < one.at for other, made in confirmations)
        yield _definition(one, definition, earlier, confirmed)


def _key(event: Confirmation) -> Confirmed:
    return event.agreement_id, event.version, event.party_identity


def _used_decisions(decisions: Iterable[Decision]) -> dict[Confirmed, tuple[str, ...]]:
    used: dict[Confirmed, tuple[str, ...]] = {}
    for one in decisions:
        key = (one.agreement_id, one.version, one.party_identity)
        used[key] = (*used.get(key, ()), one.decision)
    return used


def _definition(
    one: LoggedOperation, event: Definition, earlier: list[tuple[LoggedOperation, Definition]], confirmed: int
) -> RuleFinding:
    """M2: the version is above all earlier ones, and the agreement is not redefined more often than confirmed."""
    for other, before in earlier:
        if before.version >= event.version:
            return rule_finding(Rule.AGREEMENT_M2, one, _not_above(event, other), other.at)
    too_many = f"definition {len(earlier) + 1} of this agreement, after {confirmed} confirmations"
    return rule_finding(Rule.AGREEMENT_M2, one, None if confirmed >= len(earlier) else too_many)


def _not_above(event: Definition, earlier: TermsVersion | LoggedOperation) -> str:
    return f"version {event.version} is not above the version that entry {earlier.at.stream_seq} defines"


def _decide(version: TermsVersion, made: PartyDecision) -> TermsVersion:
    others = [one for one in version.decided if one.party_identity != made.party_identity]
    return replace(version, decided=tuple(sorted((*others, made), key=lambda one: one.party_identity)))
