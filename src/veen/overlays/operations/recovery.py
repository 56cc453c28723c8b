"""Recovery: requests, approvals and executions that replace an identity. 001, spec-3 §8."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, TypeAlias

from veen.core import cbor
from veen.core.cbor import Bstr, ListOf, Nested, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import FoldEntry, body_text
from veen.overlays.operations.operation_events import RecoveryApproval, RecoveryExecution, RecoveryRequest
from veen.overlays.operations.operation_index import LoggedOperation, of_kind, own_id
from veen.overlays.operations.rules import (
    ExternalFacts,
    Guardians,
    Rule,
    RuleFinding,
    Speakers,
    permits,
    rule_finding,
    speaks,
)
from veen.overlays.overlay import FoldStep, WalkOverlay

APPROVE = "approve"
NOT_AN_EXECUTOR = "the sender may not execute recoveries"


@text_map("asked")
class RecoveryRequested(Wire):
    operation_id: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    new_identity: Annotated[bytes, Bstr()]


@text_map("answer")
class RecoveryAnswer(Wire):
    """The decision of an approver on an open request."""

    operation_id: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    new_identity: Annotated[bytes, Bstr()]
    approver_identity: Annotated[bytes, Bstr()]
    decision: Annotated[str, body_text()]
    policy_group_id: Annotated[bytes | None, Bstr(optional=True)] = None


@text_map("recovery")
class RecoveryState(Wire):
    """The open requests and decisions for an identity, and its last replacement."""

    asked: Annotated[
        tuple[RecoveryRequested, ...], ListOf(Nested(RecoveryRequested, name="asked"), most=MAX_BODY_BYTES)
    ] = ()
    answers: Annotated[
        tuple[RecoveryAnswer, ...], ListOf(Nested(RecoveryAnswer, name="answer"), most=MAX_BODY_BYTES)
    ] = ()
    new_identity: Annotated[bytes | None, Bstr(optional=True)] = None
    epoch: Annotated[int | None, Uint(optional=True)] = None  # place of the replacement
    stream_seq: Annotated[int | None, Uint(optional=True)] = None

    def is_asked(self, new_identity: bytes) -> bool:
        return any(one.new_identity == new_identity for one in self.asked)

    def approvers(self, new_identity: bytes, references: Iterable[bytes]) -> set[bytes]:
        """The approvers of the referenced decisions whose latest decision on this change is to approve."""
        latest = {one.approver_identity: one for one in self.answers if one.new_identity == new_identity}
        named = set(references)
        referenced = {one.approver_identity for one in self.answers if one.operation_id in named}
        return {one for one in referenced if one in latest and latest[one].decision == APPROVE}


States: TypeAlias = Mapping[bytes, RecoveryState]


class Recoveries(WalkOverlay[RecoveryState]):
    """One part per identity to be replaced.

    `guardians` are the approvers of an identity, `otherwise` those of all other identities. `executors` are the clients
    and capabilities that may execute; None allows everyone. With `speakers`, an approval is applied only from a client
    that acts for its approver.
    """

    CLASS = "recovery"
    EVENTS = (RecoveryRequest, RecoveryApproval, RecoveryExecution)
    PART = "target_identity"
    INITIAL = RecoveryState()

    def __init__(
        self,
        guardians: Mapping[bytes, Guardians] | None = None,
        otherwise: Guardians | None = None,
        executors: Iterable[bytes] | None = None,
        speakers: Speakers | None = None,
    ) -> None:
        self._guardians = dict(guardians or {})
        self._otherwise = otherwise or Guardians()
        self._executors = None if executors is None else frozenset(executors)
        self._speakers = speakers

    def settings(self) -> bytes:
        default = (not self._guardians, self._otherwise == Guardians(), self._executors is None, self._speakers is None)
        if all(default):
            return b""
        named = [(one, _guardians_value(self._guardians[one])) for one in sorted(self._guardians)]
        speakers = self._speakers
        listed = None if speakers is None else [(one, sorted(speakers[one])) for one in sorted(speakers)]
        executors = None if self._executors is None else sorted(self._executors)
        return cbor.encode([named, _guardians_value(self._otherwise), executors, listed])

    def refusal(self, state: RecoveryState, step: FoldStep) -> str | None:
        event = step.event
        if isinstance(event, RecoveryRequest):
            return "the same request is already open" if state.is_asked(event.requested_new_identity) else None
        if isinstance(event, RecoveryApproval):
            return self._approval_refusal(state, event, step.entry)
        assert isinstance(event, RecoveryExecution)
        if not permits(self._executors, step.entry):
            return f"{Rule.RECOVERY_R3}: {NOT_AN_EXECUTOR}"
        open_answers = {one.operation_id: one for one in state.answers}
        for number, reference in enumerate(event.approval_references, 1):
            answer = open_answers.get(reference)
            if answer is None:
                return f"{Rule.RECOVERY_R1}: reference {number} is not an open approval for this identity"
            if answer.decision != APPROVE or answer.new_identity != event.new_identity:
                return f"{Rule.RECOVERY_R2}: reference {number} does not approve this change"
        threshold = self._of(event.target_identity).threshold
        approving = len(state.approvers(event.new_identity, event.approval_references))
        return None if approving >= threshold else f"{approving} of {threshold} required approvals"

    def apply(self, state: RecoveryState, step: FoldStep) -> RecoveryState:
        event, where = step.event, (own_id(step.entry, step.event), *step.at)
        if isinstance(event, RecoveryRequest):
            return replace(state, asked=(*state.asked, RecoveryRequested(*where, event.requested_new_identity)))
        if isinstance(event, RecoveryApproval):
            change, approver = event.requested_new_identity, event.approver_identity
            answer = RecoveryAnswer(*where, change, approver, event.decision, event.policy_group_id)
            return replace(state, answers=(*state.answers, answer))
        assert isinstance(event, RecoveryExecution)
        return RecoveryState((), (), event.new_identity, *step.at)

    def plain(self, part: bytes, state: RecoveryState) -> Mapping[str, cbor.Value]:
        return {
            "target_identity": part,
            "new_identity": state.new_identity,
            "requests": [
                {"operation_id": one.operation_id, "requested_new_identity": one.new_identity} for one in state.asked
            ],
            "approvals": [
                {
                    "operation_id": one.operation_id,
                    "requested_new_identity": one.new_identity,
                    "approver_identity": one.approver_identity,
                    "decision": one.decision,
                }
                for one in state.answers
            ],
        }

    def live(self, state: RecoveryState) -> bool:
        return bool(state.asked)

    def _of(self, target: bytes) -> Guardians:
        return self._guardians.get(target, self._otherwise)

    def _approval_refusal(self, state: RecoveryState, event: RecoveryApproval, entry: FoldEntry) -> str | None:
        """An approval must answer an open request and come from a guardian. §8.3."""
        if not state.is_asked(event.requested_new_identity):
            return "there is no open request for this change"
        guardians = self._of(event.target_identity).identities
        if guardians is not None and event.approver_identity not in guardians:
            return "the approver is not a guardian of this identity"
        return (
            None
            if speaks(self._speakers, event.approver_identity, entry.client_id)
            else "the sender does not act for this approver"
        )


RECOVERIES = Recoveries()


def current(states: States, identity: bytes) -> bytes:
    """Follow the replacements of an identity to the current one."""
    seen = {identity}
    while (found := states.get(identity)) is not None and found.new_identity is not None:
        if found.new_identity in seen:
            break
        identity = found.new_identity
        seen.add(identity)
    return identity


def check(known: Iterable[LoggedOperation], facts: ExternalFacts) -> Iterator[RuleFinding]:
    """Check R1 to R3 for every execution."""
    listed = list(known)
    approvals = {one.operation_id: (one, event) for one, event in of_kind(listed, RecoveryApproval)}
    for one, event in of_kind(listed, RecoveryExecution):
        named = [approvals[ref] for ref in event.approval_references if ref in approvals]
        before = [(approval, answer) for approval, answer in named if approval.at < one.at]
        absent = len(event.approval_references) - len(before)
        fault = f"named approvals that do not precede the recovery: {absent}" if absent else None
        yield rule_finding(Rule.RECOVERY_R1, one, fault, *(approval.at for approval, _ in before))
        wrong = [(approval, reason) for approval, answer in before if (reason := _differs(answer, event)) is not None]
        places = [approval.at for approval, _ in wrong]
        yield rule_finding(Rule.RECOVERY_R2, one, wrong[0][1] if wrong else None, *places)
        allowed = permits(facts.executors, one.entry)
        yield rule_finding(Rule.RECOVERY_R3, one, None if allowed else NOT_AN_EXECUTOR)


def _differs(answer: RecoveryApproval, event: RecoveryExecution) -> str | None:
    if answer.decision != APPROVE:
        return f"a named approval says {answer.decision!r}"
    if answer.target_identity != event.target_identity:
        return "a named approval is for another identity"
    return None if answer.requested_new_identity == event.new_identity else "a named approval is for another change"


def _guardians_value(guardians: Guardians) -> cbor.Value:
    named = None if guardians.identities is None else sorted(guardians.identities)
    return (named, guardians.threshold)
