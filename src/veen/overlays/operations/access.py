"""Access grants and revocations: the write permissions of each subject. 001, spec-3 §3."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated

from veen.core import CapToken, Rate, cbor
from veen.core.cap_token import mint
from veen.core.cbor import Bool, Bstr, ListOf, Nested, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.core.signing import SigningKey
from veen.overlays.event import At, ascending, plain_wire
from veen.overlays.fold import Fold
from veen.overlays.operations.operation_events import AccessGrant, Revoke
from veen.overlays.operations.operation_index import LoggedOperation, own_id
from veen.overlays.operations.rules import (
    ExternalFacts,
    Rule,
    RuleFinding,
    identities_of,
    open_finding,
    permits,
    rule_finding,
)
from veen.overlays.overlay import FoldStep, WalkOverlay

NOT_A_GRANTER = "the sender may not change permissions"
NOT_ALL = "this domain requires target_capability_reference in a revocation"


@text_map("permission")
class Permission(Wire):
    """A grant that is not revoked. Whether it has expired depends on the time of the query."""

    operation_id: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    client_id: Annotated[bytes, Bstr()]  # the granting client
    grant: Annotated[AccessGrant, Nested(AccessGrant)]

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def covers(self, stream_id: bytes, hub_ts: int) -> bool:
        return stream_id in self.grant.allowed_stream_ids and hub_ts < self.grant.expiry_time


@text_map("permissions")
class Permissions(Wire):
    """The permissions of a subject: its grants in stream order, and its revoked capabilities."""

    grants: Annotated[tuple[Permission, ...], ListOf(Nested(Permission, name="permission"), most=MAX_BODY_BYTES)] = ()
    revoked: Annotated[
        tuple[bytes, ...], ListOf(Bstr(name="auth_ref"), most=MAX_BODY_BYTES)
    ] = ()  # auth_refs, ascending
    all_revoked: Annotated[bool, Bool()] = False  # grants made afterwards are valid

    def flaw(self) -> str | None:
        places = [one.at for one in self.grants]
        ordered = places == sorted(set(places)) and ascending(self.revoked)
        return None if ordered else "grants or revocations are not in ascending order"


NOTHING = Permissions()


class Access(WalkOverlay[Permissions]):
    """One part per subject.

    `granters` are the clients and capabilities that may change permissions; None allows everyone. A revocation without
    a capability revokes all of a subject's capabilities, or is refused if `revokes_all` is false.
    """

    CLASS = "access.grant"
    EVENTS = (AccessGrant, Revoke)
    PART = "subject_identity"
    INITIAL = NOTHING

    def __init__(self, granters: Iterable[bytes] | None = None, *, revokes_all: bool = True) -> None:
        self._granters = None if granters is None else frozenset(granters)
        self._revokes_all = revokes_all

    def settings(self) -> bytes:
        if self._granters is None and self._revokes_all:
            return b""
        return cbor.encode([None if self._granters is None else sorted(self._granters), self._revokes_all])

    def refusal(self, state: Permissions, step: FoldStep) -> str | None:
        event = step.event
        if not permits(self._granters, step.entry):
            return f"{Rule.ACCESS_A1}: {NOT_A_GRANTER}"
        if isinstance(event, Revoke) and event.target_capability_reference is None and not self._revokes_all:
            return NOT_ALL
        return None

    def apply(self, state: Permissions, step: FoldStep) -> Permissions:
        event, entry = step.event, step.entry
        if isinstance(event, AccessGrant):
            granted = Permission(own_id(entry, event), *step.at, entry.client_id, event)
            return replace(state, grants=(*state.grants, granted))
        assert isinstance(event, Revoke)
        target = event.target_capability_reference
        if target is None:
            return replace(state, grants=(), all_revoked=True)
        # A grant without a capability has no auth_ref, so a revocation names its operation id.
        left = tuple(one for one in state.grants if one.operation_id != target)
        return replace(state, grants=left, revoked=tuple(sorted({*state.revoked, target})))

    def plain(self, part: bytes, state: Permissions) -> Mapping[str, cbor.Value]:
        grants = [
            {"operation_id": one.operation_id, "stream_seq": one.stream_seq, **plain_wire(one.grant)}
            for one in state.grants
        ]
        return {
            "subject_identity": part,
            "grants": grants,
            "revoked": state.revoked,
            "all_revoked": state.all_revoked,
        }


ACCESS = Access()


def admits(
    state: Permissions, stream_id: bytes, hub_ts: int, auth_ref: bytes | None, bootstrapped: frozenset[bytes]
) -> bool:
    """Whether a subject may write, from grants, revocations and bootstrapped capabilities alone. A2."""
    if auth_ref in state.revoked:
        return False
    if auth_ref in bootstrapped and not state.all_revoked:
        return True
    return any(one.covers(stream_id, hub_ts) for one in state.grants)


def token_of(grant: AccessGrant, issuer: SigningKey, issued_at: int, client_id: bytes | None = None) -> CapToken:
    """The capability for a grant, if the hub logs it at `issued_at`. It expires together with the grant.

    It is for the subject's own key, or for a `client_id` that the caller knows to belong to the subject. A revocation
    names its `auth_ref`. If only one of rate and burst is given, it is used for both.
    """
    if grant.expiry_time <= issued_at:
        raise ValueError("the grant has expired")
    bounds = [one for one in (grant.maximum_rate_per_second, grant.maximum_burst) if one is not None]
    rate = Rate(bounds[0], bounds[-1]) if bounds else None
    ttl = grant.expiry_time - 1 - issued_at  # a token is valid in its last second, a grant is not
    return mint(issuer, client_id or grant.subject_identity, grant.allowed_stream_ids, ttl, rate)


def check(known: Iterable[LoggedOperation], facts: ExternalFacts) -> Iterator[RuleFinding]:
    """Check A1 for every grant and revocation, and A2 for every operation."""
    granters, bootstrapped, stream_id = facts.granters, facts.bootstrapped, facts.stream_id
    folded = Fold(Access(granters))
    for one in known:
        if bootstrapped is None or stream_id is None:
            yield open_finding(Rule.ACCESS_A2, one, "the bootstrapped capabilities are not known")
        else:
            entry = one.entry
            states = [folded.state(subject) for subject in identities_of(facts.speakers, entry.client_id)]
            allowed = any(admits(state, stream_id, entry.hub_ts, entry.auth_ref, bootstrapped) for state in states)
            yield rule_finding(
                Rule.ACCESS_A2, one, None if allowed else "neither a grant nor a bootstrapped capability"
            )
        if isinstance(one.event, AccessGrant | Revoke):
            if granters is None:
                yield open_finding(Rule.ACCESS_A1, one, "the clients that may change permissions are not known")
            else:
                yield rule_finding(Rule.ACCESS_A1, one, None if permits(granters, one.entry) else NOT_A_GRANTER)
        folded.add(one.entry)
