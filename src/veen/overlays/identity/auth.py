"""Who a key is: from a message or an answer, by a capability, to an account. id-spec §9.

Nothing here keeps passwords or sessions: who holds a device's key and a capability that a principal made for it is that
principal's account in the realm. A check that fails raises `Unverified`, which says which one.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from veen.core import Bucket, CapToken, Msg, Rate, SigningKey, Unverified, cap_token, signing
from veen.core import cap_token as rates
from veen.core.cbor import Bstr, Nested, Text, Uint, Wire
from veen.core.hashing import ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays.fields import body
from veen.overlays.identity import identity_ids, views
from veen.overlays.identity.scope import CtxStream
from veen.overlays.identity.views import States


@dataclass(frozen=True, slots=True)
class IdentityGrant:
    """A capability, and when its time began: the `hub_ts` at which a hub took it into its log."""

    token: CapToken
    issued_at: int


@dataclass(frozen=True, slots=True)
class AuthPolicy:
    """What an application asks of whoever comes."""

    realm_id: bytes
    stream_ids: frozenset[bytes]  # what the capability must cover
    org_id: bytes | None = None  # whose groups and roles are meant: the scoped id where one is used
    roles: frozenset[str] = frozenset()  # all of them
    groups: frozenset[bytes] = frozenset()  # all of them
    check_device: bool = True  # whether a principal's device must have a record; never false where records are kept

    def __post_init__(self) -> None:
        if (self.roles or self.groups) and self.org_id is None:
            raise ValueError("roles and groups are of an organization: say which")


@dataclass(frozen=True, slots=True)
class Session:
    """Whom an application talks to. `ctx_id` is None for one that an organization sent, not a principal."""

    realm_id: bytes
    subject_pk: bytes
    issuer_pk: bytes
    auth_ref: bytes
    expires_at: int  # the last second in which the capability holds
    ctx_id: bytes | None
    org_id: bytes | None
    roles: frozenset[str]


def delegate(
    principal: SigningKey,
    device_pk: bytes,
    *,
    realm_ids: Iterable[bytes] = (),
    stream_ids: Iterable[bytes] = (),
    ttl: int,
    rate: Rate | None = None,
) -> CapToken:
    """Leave for a device to act for its principal: on its stream, its accounts', and some of an application. §9.1."""
    of_accounts = (CtxStream.of(principal.public_key, realm_id).stream_id for realm_id in realm_ids)
    streams = (identity_ids.principal_stream(principal.public_key), *of_accounts, *stream_ids)
    return cap_token.mint(principal, device_pk, streams, ttl, rate)


def authenticate(
    message: Msg,
    grant: IdentityGrant,
    policy: AuthPolicy,
    states: States,
    *,
    hub_ts: int,
    labels: Collection[bytes],
    accepted: Iterable[int] = (),
) -> Session:
    """The path of §9.2 for one message, at the time its receipt says.

    `labels` are those that the policy's streams have at the hub in the message's epoch; `accepted` are the times of the
    messages before it under the same capability, where the application keeps its rate itself.
    """
    message.check_ct_hash()
    message.verify_signature()
    if message.auth_ref != grant.token.auth_ref():
        raise Unverified("auth", "the message was not sent under this capability")
    if message.label not in labels:
        raise Unverified("auth", "the message is on none of the streams asked for")
    return admit(message.client_id, grant, policy, states, now=hub_ts, accepted=accepted)


def admit(
    subject_pk: bytes,
    grant: IdentityGrant,
    policy: AuthPolicy,
    states: States,
    *,
    now: int,
    accepted: Iterable[int] = (),
) -> Session:
    """Steps 2 to 4 of §9.2, for a key whose possession has been shown."""
    token = grant.token
    token.verify()
    if token.subject_pk != subject_pk:
        raise Unverified("auth", "the capability is for another key")
    if not policy.stream_ids <= set(token.allow.stream_ids):
        raise Unverified("auth", "the capability does not cover the streams asked for")
    if now < grant.issued_at or token.expired(grant.issued_at, now):
        raise Unverified("auth", f"the capability holds from {grant.issued_at} to {token.expires_at(grant.issued_at)}")
    _check_rate(token, accepted, now)
    auth_ref = token.auth_ref()
    revoked = views.auth_ref_revocation(states, auth_ref)
    if revoked is not None:
        raise Unverified("auth", f"the capability was revoked at {revoked.ts}")
    org_id = identity_ids.org_id(token.issuer_pk)
    ends = token.expires_at(grant.issued_at)
    fixed = (policy.realm_id, subject_pk, token.issuer_pk, auth_ref, ends)
    if views.org_profile(states, org_id) is not None:
        _check_org(org_id, policy, states)
        return Session(*fixed, None, org_id, frozenset())
    ctx_id = identity_ids.ctx_id(token.issuer_pk, policy.realm_id)
    return Session(*fixed, ctx_id, None, _checked_roles(ctx_id, subject_pk, token.issuer_pk, policy, states, now))


def _check_rate(token: CapToken, accepted: Iterable[int], now: int) -> None:
    allowed = token.allow.rate
    if allowed is None:
        return
    try:
        bucket = rates.replay(allowed, accepted)
    except ValueError as error:
        raise Unverified("auth", str(error)) from None
    if (bucket or Bucket.full(allowed, now)).take(allowed, now) is None:
        raise Unverified("auth", f"more than {allowed.per_sec} a second, {allowed.burst} at once")


def _check_org(org_id: bytes, policy: AuthPolicy, states: States) -> None:
    if views.org_revocation(states, org_id, policy.realm_id) is not None:
        raise Unverified("auth", "the organization is revoked")
    if policy.roles or policy.groups:
        raise Unverified("auth", "who an organization sent has no account, and so no roles and no groups")


def _checked_roles(
    ctx_id: bytes, device_pk: bytes, principal_pk: bytes, policy: AuthPolicy, states: States, now: int
) -> frozenset[str]:
    """The roles of the account, once its device, the account and what the policy asks for stand."""
    unregistered = views.device(states, principal_pk, identity_ids.device_id(device_pk)) is None
    why = views.inactive_reason(states, principal_pk, device_pk, now)
    if why is not None and (policy.check_device or not unregistered):
        raise Unverified("auth", f"the device may not authenticate: {why}")
    if views.device_revocation(states, principal_pk, identity_ids.device_id(device_pk)) is not None:
        raise Unverified("auth", "the device was revoked")
    revoked = views.ctx_revocation(states, ctx_id, policy.realm_id)
    if revoked is not None:
        raise Unverified("auth", f"the account was revoked at {revoked.ts}")
    if policy.org_id is None:
        return frozenset()
    if views.org_revocation(states, policy.org_id, policy.realm_id) is not None:
        raise Unverified("auth", "the organization is revoked")
    held = views.roles(states, policy.org_id, ctx_id, policy.realm_id)
    missing = policy.roles - held
    if missing:
        raise Unverified("auth", f"the account lacks the role {min(missing)!r}")
    if not policy.groups <= set(views.groups_of(states, policy.org_id, ctx_id)):
        raise Unverified("auth", "the account is not in a group that is asked for")
    return held


MAX_CHALLENGE_SEC = 300
CLOCK_SKEW_SEC = 30


@dataclass(frozen=True, slots=True)
class Challenge(Wire):
    """`audience` is the name under which people know who asks; `nonce` is fresh randomness."""

    audience: str
    realm_id: bytes
    nonce: bytes
    issued_at: int
    expires_at: int

    LAYOUT: ClassVar = body(
        "id.auth.challenge.v1",
        Text("audience", MAX_TEXT_BYTES),
        Bstr("realm_id"),
        Bstr("nonce"),
        Uint("issued_at"),
        Uint("expires_at"),
    )

    def flaw(self) -> str | None:
        if not self.audience:
            return "it does not say who asks"
        lasts = self.expires_at - self.issued_at
        return None if 0 <= lasts <= MAX_CHALLENGE_SEC else f"it does not last for 0 to {MAX_CHALLENGE_SEC} seconds"

    def check_time(self, now: int) -> None:
        if not self.issued_at - CLOCK_SKEW_SEC <= now <= self.expires_at:
            raise Unverified("challenge", f"it holds from {self.issued_at} to {self.expires_at}")


@dataclass(frozen=True, slots=True)
class ChallengeAnswer(Wire):
    """A device's signature over a challenge and the capability it shows."""

    challenge_hash: bytes
    token: CapToken
    sig: bytes

    LAYOUT: ClassVar = body(
        "id.auth.answer.v1", Bstr("challenge_hash"), Nested("token", CapToken), Bstr("sig", SIGNATURE_BYTES)
    )


def answer(challenge: Challenge, device: SigningKey, token: CapToken, *, audience: str, now: int) -> ChallengeAnswer:
    """The device's answer. Refuses to sign for another audience than the one its user means, and too late."""
    if challenge.audience != audience:
        raise Unverified("challenge", f"it is asked by {challenge.audience!r}, not by {audience!r}")
    challenge.check_time(now)
    token.verify()
    if token.subject_pk != device.public_key:
        raise Unverified("challenge", "the capability is not for this device's key")
    return ChallengeAnswer(_hash(challenge), token, device.sign(_digest(challenge, token)))


def verify(
    challenge: Challenge, answered: ChallengeAnswer, policy: AuthPolicy, states: States, *, issued_at: int, now: int
) -> Session:
    """Whom the answer is from. `challenge` is the application's own copy, which it takes no second answer to.

    `issued_at` is when a hub took the capability into its log.
    """
    challenge.check_time(now)
    if challenge.realm_id != policy.realm_id:
        raise Unverified("challenge", "it is of another realm")
    if answered.challenge_hash != _hash(challenge):
        raise Unverified("answer", "it answers another challenge")
    token = answered.token
    signing.verify(token.subject_pk, _digest(challenge, token), answered.sig, "answer")
    return admit(token.subject_pk, IdentityGrant(token, issued_at), policy, states, now=now)


def _hash(challenge: Challenge) -> bytes:
    return ht("id/auth/challenge", challenge.encode())


def _digest(challenge: Challenge, token: CapToken) -> bytes:
    return ht("id/auth/answer", _hash(challenge) + token.auth_ref())
