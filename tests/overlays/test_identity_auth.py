"""The way from a message, or an answer to a challenge, to an account: id-spec §9, with real keys and signatures."""

from dataclasses import replace

import pytest

from tests.overlays.logs import START, log
from veen.core import Malformed, Rate, SigningKey, Unverified, cap_token, msg, naming
from veen.core.naming import realm_id
from veen.overlays import Event, fold, identity_auth
from veen.overlays.identity import IDENTITY
from veen.overlays.identity_auth import (
    CLOCK_SKEW_SEC,
    MAX_CHALLENGE_SEC,
    AuthPolicy,
    Challenge,
    ChallengeAnswer,
    IdentityGrant,
    Session,
    authenticate,
    delegate,
)
from veen.overlays.identity_events import (
    Device,
    Flags,
    IdentityGroup,
    IdentityRevocation,
    OrgProfile,
    RoleBinding,
    ctx_id,
    ctx_stream,
    device_id,
    group_id,
    org_id,
    principal_stream,
)
from veen.overlays.identity_views import States

ANN, PHONE, COMPANY, STRANGER = (SigningKey(bytes([number]) * 32) for number in range(1, 5))
REALM = realm_id("example-app")
MINE = ctx_id(ANN.public_key, REALM)
ORG = org_id(COMPANY.public_key)
STAFF = group_id(ORG, "staff")
APP, OTHER_STREAM = naming.stream_id("app"), naming.stream_id("other")
ROUTING = naming.routing_key(bytes(32))
TTL, NOW = 100, START + 50
POLICY = AuthPolicy(REALM, frozenset({APP}))
TOKEN = cap_token.mint(ANN, PHONE.public_key, [APP], TTL)
GRANT = IdentityGrant(TOKEN, START)
DEVICE = Device(ANN.public_key, device_id(PHONE.public_key), PHONE.public_key, bytes(32), None, START)


def states(*events: Event) -> States:
    folded = fold(IDENTITY, log(*events))
    assert folded.faults == []
    return folded.states


KNOWN = states(DEVICE)


def message(key: SigningKey = PHONE, auth_ref: bytes | None = TOKEN.auth_ref(), stream: bytes = APP) -> msg.Msg:
    label = naming.label(ROUTING, stream, 0)
    return msg.sign(
        key, profile_id=bytes(32), label=label, client_seq=1, prev_ack=0, auth_ref=auth_ref, ciphertext=b"sealed"
    )


def session(
    sent: msg.Msg | None = None,
    grant: IdentityGrant = GRANT,
    policy: AuthPolicy = POLICY,
    known: States = KNOWN,
    now: int = NOW,
) -> Session:
    return authenticate(sent or message(), grant, policy, known, hub_ts=now, labels={naming.label(ROUTING, APP, 0)})


def test_a_device_key_with_its_principals_capability_authenticates_as_the_account() -> None:
    found = session()
    assert (found.ctx_id, found.realm_id, found.subject_pk) == (MINE, REALM, PHONE.public_key)
    assert (found.issuer_pk, found.expires_at, found.org_id) == (ANN.public_key, START + TTL, None)
    elsewhere = realm_id("tenant-123")
    other = session(policy=replace(POLICY, realm_id=elsewhere))
    assert other.ctx_id == ctx_id(ANN.public_key, elsewhere) != MINE


def test_a_delegation_covers_the_identity_streams_and_those_of_the_application() -> None:
    token = delegate(ANN, PHONE.public_key, realm_ids=[REALM], stream_ids=[APP], ttl=TTL, rate=Rate(1, 2))
    mine = {APP, principal_stream(ANN.public_key), ctx_stream(MINE, REALM)}
    assert set(token.allow.stream_ids) == mine
    assert (token.issuer_pk, token.subject_pk) == (ANN.public_key, PHONE.public_key)
    token.verify()
    sent = message(auth_ref=token.auth_ref())
    asked = AuthPolicy(REALM, frozenset({APP, ctx_stream(MINE, REALM)}))
    assert session(sent, IdentityGrant(token, START), asked).ctx_id == MINE


def forged() -> cap_token.CapToken:
    return replace(cap_token.mint(STRANGER, PHONE.public_key, [APP], TTL), issuer_pk=ANN.public_key)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sent": message(STRANGER)}, "for another key"),
        ({"sent": replace(message(), client_id=STRANGER.public_key)}, "signature does not verify"),
        ({"sent": replace(message(), ciphertext=b"other")}, "ct_hash"),
        ({"sent": message(auth_ref=None)}, "not sent under this capability"),
        ({"sent": message(auth_ref=bytes(32))}, "not sent under this capability"),
        ({"sent": message(stream=OTHER_STREAM)}, "none of the required streams"),
        ({"grant": IdentityGrant(forged(), START), "sent": message(auth_ref=forged().auth_ref())}, "does not verify"),
        ({"policy": AuthPolicy(REALM, frozenset({APP, OTHER_STREAM}))}, "does not cover"),
        ({"now": START - 1}, "valid from"),
        ({"now": START + TTL + 1}, "valid from"),
        ({"known": {}}, "not a device"),
        ({"known": states(replace(DEVICE, flags=Flags(True)))}, "disabled"),
        ({"known": states(replace(DEVICE, expires_at=NOW - 1))}, "expired"),
        ({"known": states(DEVICE, IdentityRevocation(device_id=DEVICE.device_id, ts=1))}, "revoked"),
        (
            {"known": states(DEVICE, IdentityRevocation(revoked_auth_ref=TOKEN.auth_ref(), ts=1))},
            "capability was revoked",
        ),
        ({"known": states(DEVICE, IdentityRevocation(ctx_id=MINE, realm_id=REALM, ts=1))}, "account was revoked"),
        ({"known": states(replace(DEVICE, principal_pk=STRANGER.public_key))}, "not a device"),
    ],
)
def test_each_broken_link_of_the_chain_is_refused(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(Unverified, match=reason):
        session(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("now", [START, START + TTL])
def test_a_capability_is_valid_from_its_first_to_its_last_second(now: int) -> None:
    assert session(now=now).ctx_id == MINE


def test_a_device_without_a_record_passes_only_if_check_device_is_off() -> None:
    lax = replace(POLICY, check_device=False)
    assert session(policy=lax, known={}).ctx_id == MINE
    for known in (
        states(replace(DEVICE, flags=Flags(True))),
        states(IdentityRevocation(device_id=DEVICE.device_id, ts=1)),
    ):
        with pytest.raises(Unverified, match="device"):
            session(policy=lax, known=known)


def test_a_revocation_by_someone_else_of_their_own_account_changes_nothing() -> None:
    theirs = IdentityRevocation(ctx_id=ctx_id(STRANGER.public_key, REALM), realm_id=REALM, ts=1)
    foreign = IdentityRevocation(STRANGER.public_key, None, DEVICE.device_id, ts=1)
    assert session(known=states(DEVICE, theirs, foreign)).ctx_id == MINE


def test_required_roles_and_groups_must_be_held() -> None:
    asked = AuthPolicy(REALM, frozenset({APP}), ORG, frozenset({"admin"}), frozenset({STAFF}))
    joined = IdentityGroup(ORG, None, STAFF, "Staff", (MINE,), None, 1)
    admin = RoleBinding(ORG, None, "admin", None, (STAFF,), 1)
    assert session(policy=asked, known=states(DEVICE, joined, admin)).roles == {"admin"}
    for known, reason in [
        (states(DEVICE), "lacks the role 'admin'"),
        (states(DEVICE, admin), "lacks the role"),
        (states(DEVICE, RoleBinding(ORG, REALM, "admin", (MINE,), None, 1)), "not in a required group"),
        (states(DEVICE, joined, admin, replace(joined, members_add=None, members_remove=(MINE,))), "lacks the role"),
        (states(DEVICE, joined, admin, IdentityRevocation(org_id=ORG, ts=1)), "organization is revoked"),
    ]:
        with pytest.raises(Unverified, match=reason):
            session(policy=asked, known=known)


def test_roles_without_an_organization_raise_a_value_error() -> None:
    with pytest.raises(ValueError, match="require org_id"):
        AuthPolicy(REALM, frozenset(), roles=frozenset({"admin"}))


def test_a_service_of_an_organization_has_no_account() -> None:
    token = cap_token.mint(COMPANY, PHONE.public_key, [APP], TTL)
    sent, grant, known = (
        message(auth_ref=token.auth_ref()),
        IdentityGrant(token, START),
        states(OrgProfile(ORG, "C", None, 0, 0)),
    )
    found = session(sent, grant, known=known)
    assert (found.org_id, found.ctx_id) == (ORG, None)
    cases: list[tuple[dict[str, object], str]] = [
        ({"policy": replace(POLICY, org_id=ORG, roles=frozenset({"admin"}))}, "no account"),
        ({"known": states(OrgProfile(ORG, "C", None, 0, 0), IdentityRevocation(org_id=ORG, ts=1))}, "revoked"),
        (
            {"known": states(OrgProfile(ORG, "C", None, 0, 0), IdentityRevocation(org_id=ORG, realm_id=REALM, ts=1))},
            "revoked",
        ),
        ({"known": {}}, "not a device"),
    ]
    for changed, reason in cases:
        with pytest.raises(Unverified, match=reason):
            session(sent, grant, **{"known": known, **changed})  # type: ignore[arg-type]


def test_the_rate_of_a_capability_is_kept() -> None:
    token = cap_token.mint(ANN, PHONE.public_key, [APP], TTL, Rate(1, 2))
    sent, grant = message(auth_ref=token.auth_ref()), IdentityGrant(token, START)

    def after(*accepted: int) -> Session:
        return authenticate(
            sent, grant, POLICY, KNOWN, hub_ts=NOW, labels={naming.label(ROUTING, APP, 0)}, accepted=accepted
        )

    assert after().ctx_id == after(NOW).ctx_id == after(NOW - 1, NOW - 1).ctx_id == MINE
    with pytest.raises(Unverified, match="1 per second, burst 2"):
        after(NOW, NOW)
    with pytest.raises(Unverified, match="cannot have been accepted"):
        after(NOW, NOW, NOW)


ASKED = Challenge("app.example", REALM, b"\x07" * 32, NOW, NOW + 60)


def answered(**changed: object) -> ChallengeAnswer:
    given: dict[str, object] = {"device": PHONE, "token": TOKEN, "audience": "app.example", "now": NOW, **changed}
    return identity_auth.answer(ASKED, **given)  # type: ignore[arg-type]


def verified(asked: Challenge = ASKED, answer: ChallengeAnswer | None = None, **changed: object) -> Session:
    given: dict[str, object] = {"policy": POLICY, "states": KNOWN, "issued_at": START, "now": NOW, **changed}
    return identity_auth.verify(asked, answer or answered(), **given)  # type: ignore[arg-type]


def test_a_device_that_signs_a_challenge_is_its_principals_account() -> None:
    assert verified().ctx_id == MINE
    assert ChallengeAnswer.decode(answered().encode()) == answered()
    assert Challenge.decode(ASKED.encode()) == ASKED


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"audience": "app.evil"}, "audience is 'app.example'"),
        ({"now": NOW + 61}, "valid from"),
        ({"now": NOW - CLOCK_SKEW_SEC - 1}, "valid from"),
        ({"device": STRANGER}, "not for this device"),
        ({"token": forged()}, "does not verify"),
    ],
)
def test_a_device_signs_only_for_the_expected_audience_and_in_time(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(Unverified, match=reason):
        answered(**changed)


def other_signature() -> ChallengeAnswer:
    return replace(answered(), sig=STRANGER.sign(b"anything"))


def swapped_token() -> ChallengeAnswer:
    return replace(answered(), token=cap_token.mint(ANN, PHONE.public_key, [APP, OTHER_STREAM], TTL))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"asked": replace(ASKED, nonce=bytes(32))}, "another challenge"),
        ({"asked": replace(ASKED, audience="app.evil")}, "another challenge"),
        ({"asked": replace(ASKED, realm_id=bytes(32))}, "another realm"),
        ({"answer": other_signature()}, "signature does not verify"),
        ({"answer": swapped_token()}, "signature does not verify"),
        ({"now": NOW + 61}, "valid from"),
        ({"issued_at": NOW + 1}, "capability is valid from"),
        ({"issued_at": NOW - TTL - 1}, "capability is valid from"),
        ({"states": {}}, "not a device"),
        ({"states": states(DEVICE, IdentityRevocation(device_id=DEVICE.device_id, ts=0))}, "revoked"),
        ({"policy": AuthPolicy(REALM, frozenset({OTHER_STREAM}))}, "does not cover"),
    ],
)
def test_an_answer_that_is_not_to_this_challenge_by_this_device_is_refused(
    changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(Unverified, match=reason):
        verified(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        Challenge("", REALM, bytes(32), NOW, NOW),
        Challenge("a", REALM, bytes(32), NOW, NOW - 1),
        Challenge("a", REALM, bytes(32), NOW, NOW + MAX_CHALLENGE_SEC + 1),
    ],
)
def test_a_challenge_has_an_audience_and_is_short_lived(bad: Challenge) -> None:
    with pytest.raises(Malformed):
        Challenge.decode(Challenge.LAYOUT.write(Challenge.LAYOUT.fields_of(bad)))
