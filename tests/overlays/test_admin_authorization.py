"""KEX1+: what a capability is worth at any time, from the control stream and the revocations of a realm."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.overlays.logs import START, LogLine, log, logs
from veen.core import CapToken, cap_token, control_stream, naming
from veen.core.admin import RevocationKind
from veen.core.cap_token import Rate
from veen.core.hashing import U64_MAX, h
from veen.core.signing import SigningKey
from veen.overlays import AnyOverlay, FaultKind, FoldEntry, FoldStep, check_laws, fold
from veen.overlays.admin_records import States
from veen.overlays.authorization import (
    AUTHORIZATIONS,
    REVOCATIONS,
    CapabilityStatus,
    RevocationEvent,
    ShownCapability,
    ShownPresentation,
    ShownToken,
    Validity,
    capability_status,
    of_client,
)
from veen.overlays.crdt import Write

ISSUER, STRANGER = SigningKey(h(b"issuer")), SigningKey(h(b"stranger"))
SUBJECTS = [SigningKey(h(b"subject %d" % number)).public_key for number in range(2)]
STREAMS = [naming.stream_id(name) for name in ("doors", "windows")]


def capability(token: CapToken) -> ShownToken:
    return ShownToken.decode(token.encode())


def minted(ttl: int = 60, subject: int = 0, rate: Rate | None = None) -> ShownToken:
    return capability(cap_token.mint(ISSUER, SUBJECTS[subject], STREAMS, ttl, rate))


def forged() -> ShownToken:
    """A grant with somebody else's signature."""
    good, other = minted(), cap_token.mint(STRANGER, SUBJECTS[0], STREAMS, 60)
    return replace(good, sig_chain=other.sig_chain)


def presented(token: CapToken, after: int, hub_id: bytes = h(b"hub")) -> ShownPresentation:
    bare = CapToken.decode(token.encode())
    return ShownPresentation.decode(cap_token.present(ISSUER, bare, hub_id, START + after).encode())


TOKENS = [minted(ttl, subject) for ttl in (0, 3, 60) for subject in (0, 1)]
RESIGNED = capability(cap_token.resign(TOKENS[0], ISSUER))
KEPT = [*TOKENS, RESIGNED]
PRESENTED = [presented(token, end) for token in TOKENS[2:] for end in (0, 2, 30)]
capabilities = st.sampled_from([*KEPT, forged(), *PRESENTED, replace(PRESENTED[0], not_after=U64_MAX)])
revocations = st.builds(
    lambda kind, token, ts, ttl: RevocationEvent(kind, _target(kind, token), None, START + ts, ttl),
    st.sampled_from(list(RevocationKind)),
    st.sampled_from(KEPT),
    st.integers(0, 60),
    st.one_of(st.none(), st.integers(0, 60)),
)


def _target(kind: str, token: CapToken) -> bytes:
    if kind == "client-id":
        return token.subject_pk
    return token.auth_ref() if kind == "auth-ref" else h(token.encode())


@settings(deadline=None)
@given(logs(capabilities, most=10))
def test_authorizations_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(AUTHORIZATIONS, entries)


@given(logs(capabilities, most=12), logs(revocations, most=8), st.integers(0, 130))
def test_a_capability_is_valid_if_and_only_if_the_specification_says_so(
    logged_caps: list[FoldEntry], told: list[FoldEntry], after: int
) -> None:
    now, logged, revoked = START + after, fold(AUTHORIZATIONS, logged_caps), fold(REVOCATIONS, told)
    issued: dict[bytes, int] = {}
    ends: dict[bytes, int] = {}
    for step in _steps(AUTHORIZATIONS, logged_caps):
        issued.setdefault(step.part, step.entry.hub_ts)
        ends.setdefault(step.part, step.event.not_after if isinstance(step.event, ShownPresentation) else U64_MAX)
    said = [step.event for step in _steps(REVOCATIONS, told)]
    for token in KEPT:
        auth_ref = token.auth_ref()
        blocked = any(
            one.target == _target(one.kind, token) and one.ts <= now and (one.ttl is None or now < one.ts + one.ttl)
            for one in said
            if isinstance(one, RevocationEvent)
        )
        end = min(issued[auth_ref] + token.allow.ttl, ends[auth_ref]) if auth_ref in issued else 0
        valid = auth_ref in issued and issued[auth_ref] <= now <= end and not blocked
        found = capability_status(logged.states, revoked.states, auth_ref, now)
        assert (found.validity is Validity.VALID) is valid
        assert found.issued_at == issued.get(auth_ref)
        assert capability_status(logged.states, revoked.states, auth_ref, now, token).validity == (
            Validity.REVOKED if blocked else found.validity
        )


def _steps(overlay: AnyOverlay, entries: list[FoldEntry]) -> list[FoldStep]:
    found = [overlay.read(entry) for entry in entries]
    return [step for steps in found if isinstance(steps, tuple) for step in steps]


def shown(*tokens: ShownCapability | LogLine) -> States[ShownCapability]:
    return fold(AUTHORIZATIONS, log(*tokens)).states


@pytest.mark.parametrize(
    ("now", "worth"),
    [
        (0, Validity.LATER),
        (9, Validity.VALID),
        (9 + 60, Validity.VALID),
        (9 + 61, Validity.EXPIRED),
        (U64_MAX, Validity.EXPIRED),
    ],
)
def test_a_capability_is_valid_up_to_and_in_its_last_second(now: int, worth: Validity) -> None:
    states = shown(LogLine(minted(60), after=9 - START))
    found = capability_status(states, {}, minted(60).auth_ref(), now)
    assert found.validity is worth
    assert (found.issued_at, found.expires_at) == (9, 69)


def test_a_presented_capability_ends_at_its_date_and_shows_hub_and_date() -> None:
    shorter = presented(minted(60), 20)
    states = shown(LogLine(shorter, after=9))
    auth_ref = minted(60).auth_ref()
    for now, worth in ((START + 20, Validity.VALID), (START + 21, Validity.EXPIRED)):
        assert capability_status(states, {}, auth_ref, now).validity is worth
    plain = AUTHORIZATIONS.plain(auth_ref, states[auth_ref])
    assert (plain["hub_id"], plain["not_after"], plain["expires_at"]) == (h(b"hub"), START + 20, START + 20)
    assert plain["token_hash"] == h(minted(60).encode())


def test_the_first_presentation_of_a_token_counts() -> None:
    folded = fold(AUTHORIZATIONS, log(presented(minted(60), 20), LogLine(presented(minted(60), 50), after=1)))
    auth_ref = minted(60).auth_ref()
    assert capability_status(folded.states, {}, auth_ref, START + 30).expires_at == START + 20
    assert [fault.stream_seq for fault in folded.faults] == [2]


def test_a_capability_that_the_hub_never_logged_is_unknown() -> None:
    assert capability_status(shown(minted(1)), {}, minted(2).auth_ref(), START) == CapabilityStatus(Validity.UNKNOWN)
    assert capability_status({}, {}, bytes(32), START).expires_at is None


def test_presenting_a_capability_again_does_not_renew_it() -> None:
    folded = fold(AUTHORIZATIONS, log(minted(60), LogLine(minted(60), after=50)))
    assert capability_status(folded.states, {}, minted(60).auth_ref(), START + 62).validity is Validity.EXPIRED
    assert [(fault.kind, fault.reason) for fault in folded.faults] == [
        (FaultKind.REFUSED, "entry 1 already authorized this capability")
    ]


def test_a_reissued_capability_has_its_own_expiry() -> None:
    states = shown(TOKENS[0], LogLine(RESIGNED, after=50))
    assert capability_status(states, {}, TOKENS[0].auth_ref(), START + 51).validity is Validity.EXPIRED
    assert capability_status(states, {}, RESIGNED.auth_ref(), START + 51).validity is Validity.VALID


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_a_capability_is_revoked_by_hash_auth_ref_or_subject_during_the_period(kind: RevocationKind) -> None:
    token = minted(60)
    states = shown(token)
    revoked = fold(REVOCATIONS, log(RevocationEvent(kind, _target(kind, token), "lost", START + 10, 5))).states
    worth = {
        now: capability_status(states, revoked, token.auth_ref(), START + now).validity
        for now in (9, 10, 14, 15, 61, 62)
    }
    assert list(worth.values()) == ["valid", "revoked", "revoked", "valid", "valid", "expired"]
    found = capability_status(states, revoked, token.auth_ref(), START + 10)
    assert found.revoked is not None
    assert found.revoked.event.reason == "lost"


def test_a_revoked_capability_stays_revoked_once_it_has_expired_too() -> None:
    token = minted(3)
    revoked = fold(REVOCATIONS, log(RevocationEvent("auth-ref", token.auth_ref(), None, START))).states
    assert capability_status(shown(token), revoked, token.auth_ref(), START + 1000).validity is Validity.REVOKED


def test_a_token_can_be_revoked_before_a_hub_has_logged_it() -> None:
    token = minted(60)
    revoked = fold(REVOCATIONS, log(RevocationEvent("cap-token", h(token.encode()), None, 0))).states
    assert (
        capability_status({}, revoked, token.auth_ref(), START).validity is Validity.UNKNOWN
    )  # nobody can tell from the name
    assert capability_status({}, revoked, token.auth_ref(), START, token).validity is Validity.REVOKED
    by_name = fold(REVOCATIONS, log(RevocationEvent("auth-ref", token.auth_ref(), None, 0))).states
    assert capability_status({}, by_name, token.auth_ref(), START).validity is Validity.REVOKED


def test_a_revocation_of_one_client_leaves_the_others_alone() -> None:
    revoked = fold(REVOCATIONS, log(RevocationEvent("client-id", SUBJECTS[0], None, 0))).states
    states = shown(minted(60, 0), minted(60, 1))
    assert capability_status(states, revoked, minted(60, 1).auth_ref(), START + 5).validity is Validity.VALID


def test_the_capabilities_of_a_client_are_found_by_its_key() -> None:
    states = shown(*TOKENS)
    mine = dict(of_client(states, {}, SUBJECTS[1], START + 6))
    assert set(mine) == {token.auth_ref() for token in TOKENS if token.subject_pk == SUBJECTS[1]}
    assert sorted(found.validity for found in mine.values()) == ["expired", "valid", "valid"]
    assert dict(of_client(states, {}, bytes(32), START)) == {}


def test_a_token_with_an_invalid_signature_is_a_fault_and_not_valid() -> None:
    folded = fold(AUTHORIZATIONS, log(forged()))
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]
    assert "link 1" in folded.faults[0].reason


@pytest.mark.parametrize("spoil", [b"\0", b"", b"\xa0"])
def test_a_body_that_is_not_a_token_is_a_fault(spoil: bytes) -> None:
    (entry,) = log(minted())
    assert entry.body is not None
    body = entry.body + spoil if spoil == b"\0" else spoil
    folded = fold(AUTHORIZATIONS, [replace(entry, body=body)])
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


def test_other_control_events_are_ignored() -> None:
    (entry,) = log(Write(b"k", 0, b"v"))
    assert entry.header is not None
    told = replace(entry, header=replace(entry.header, schema=control_stream.STREAM.schema), body=bytes(32))
    assert fold(AUTHORIZATIONS, [told]).faults == []


def test_the_plain_form_of_a_capability_has_all_its_grants() -> None:
    token = minted(60, rate=Rate(5, 10))
    states = shown(token)
    plain = AUTHORIZATIONS.plain(token.auth_ref(), states[token.auth_ref()])
    assert plain["auth_ref"] == token.auth_ref()
    assert plain["token_hash"] == h(token.encode())
    assert (plain["issuer_pk"], plain["subject_pk"]) == (ISSUER.public_key, SUBJECTS[0])
    assert (plain["ttl"], plain["issued_at"], plain["expires_at"]) == (60, START + 1, START + 61)
    assert (plain["stream_ids"], plain["rate"]) == (tuple(sorted(STREAMS)), (5, 10))


def test_a_ttl_beyond_the_maximum_time_is_capped() -> None:
    token = minted(U64_MAX)
    found = capability_status(shown(token), {}, token.auth_ref(), U64_MAX)
    assert (found.validity, found.expires_at) == (Validity.VALID, U64_MAX)
