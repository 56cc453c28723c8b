"""Authentication: from a message or a challenge answer, by a capability, to an account. id-spec §9.

No passwords or sessions are stored. The holder of a device key, with a capability that a principal issued for that key,
is authenticated as the principal's account in the realm. A failed check raises `Unverified` with the reason.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated

from veen.core import Bucket, CapToken, Msg, Rate, SigningKey, Unverified, cap_token, signing
from veen.core import cap_token as rates
from veen.core.cbor import Bstr, Nested, Text, Uint, Wire, text_map
from veen.core.hashing import ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays.identity import identity_ids, views
from veen.overlays.identity.scope import CtxStream
from veen.overlays.identity.views import States


@dataclass(frozen=True, slots=True)
class IdentityGrant:
    """A capability, and the `hub_ts` at which a hub logged it."""

    token: CapToken
    issued_at: int


@dataclass(frozen=True, slots=True)
class AuthPolicy:
    """The requirements of an application for a login."""

    realm_id: bytes
    stream_ids: frozenset[bytes]  # all must be covered by the capability
    org_id: bytes | None = None  # of the groups and roles; the scoped id if one is used
    roles: frozenset[str] = frozenset()  # all are required
    groups: frozenset[bytes] = frozenset()  # all are required
    check_device: bool = True  # require a device record; set to False only if no device records are kept

    def __post_init__(self) -> None:
        if (self.roles or self.groups) and self.org_id is None:
            raise ValueError("roles and groups require org_id")


@dataclass(frozen=True, slots=True)
class Session:
    """The authenticated peer of an application. `ctx_id` is None if an organization issued the capability."""

    realm_id: bytes
    subject_pk: bytes
    issuer_pk: bytes
    auth_ref: bytes
    expires_at: int  # the last second in which the capability is valid
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
    """Issue a device's capability for the streams of its principal, its accounts and an application. §9.1."""
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
    """Authenticate one message at the hub time of its receipt. §9.2.

    `labels` are the labels of the policy's streams at the hub in the message's epoch. `accepted` are the times of
    earlier messages under the same capability, if the application enforces the rate itself.
    """
    message.check_ct_hash()
    message.verify_signature()
    if message.auth_ref != grant.token.auth_ref():
        raise Unverified("auth", "the message was not sent under this capability")
    if message.label not in labels:
        raise Unverified("auth", "the message is on none of the required streams")
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
    """Steps 2 to 4 of §9.2, for a key whose possession is proven."""
    token = grant.token
    token.verify()
    if token.subject_pk != subject_pk:
        raise Unverified("auth", "the capability is for another key")
    if not policy.stream_ids <= set(token.allow.stream_ids):
        raise Unverified("auth", "the capability does not cover the required streams")
    if now < grant.issued_at or token.expired(grant.issued_at, now):
        valid = f"from {grant.issued_at} to {token.expires_at(grant.issued_at)}"
        raise Unverified("auth", f"the capability is valid {valid}, not at {now}")
    _check_rate(token, accepted, now)
    auth_ref = token.auth_ref()
    revoked = views.auth_ref_revocation(states, auth_ref)
    if revoked is not None:
        raise Unverified("auth", f"the capability was revoked at {revoked.ts}")
    org_id = identity_ids.org_id(token.issuer_pk)
    expires_at = token.expires_at(grant.issued_at)
    common = (policy.realm_id, subject_pk, token.issuer_pk, auth_ref, expires_at)
    if views.org_profile(states, org_id) is not None:
        _check_org(org_id, policy, states)
        return Session(*common, None, org_id, frozenset())
    ctx_id = identity_ids.ctx_id(token.issuer_pk, policy.realm_id)
    return Session(*common, ctx_id, None, _checked_roles(ctx_id, subject_pk, token.issuer_pk, policy, states, now))


def _check_rate(token: CapToken, accepted: Iterable[int], now: int) -> None:
    allowed = token.allow.rate
    if allowed is None:
        return
    try:
        bucket = rates.replay(allowed, accepted)
    except ValueError as error:
        raise Unverified("auth", str(error)) from None
    if (bucket or Bucket.full(allowed, now)).take(allowed, now) is None:
        raise Unverified("auth", f"rate limit exceeded: {allowed.per_sec} per second, burst {allowed.burst}")


def _check_org(org_id: bytes, policy: AuthPolicy, states: States) -> None:
    if views.org_revocation(states, org_id, policy.realm_id) is not None:
        raise Unverified("auth", "the organization is revoked")
    if policy.roles or policy.groups:
        raise Unverified("auth", "a key of an organization has no account, so it has no roles or groups")


def _checked_roles(
    ctx_id: bytes, device_pk: bytes, principal_pk: bytes, policy: AuthPolicy, states: States, now: int
) -> frozenset[str]:
    """Check the device, the account and the policy's requirements, and return the account's roles."""
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
        raise Unverified("auth", "the account is not in a required group")
    return held


MAX_CHALLENGE_SEC = 300
CLOCK_SKEW_SEC = 30


@text_map("id.auth.challenge.v1")
class Challenge(Wire):
    """`audience` is the name of the application as users know it; `nonce` is fresh randomness."""

    audience: Annotated[str, Text(MAX_TEXT_BYTES)]
    realm_id: Annotated[bytes, Bstr()]
    nonce: Annotated[bytes, Bstr()]
    issued_at: Annotated[int, Uint()]
    expires_at: Annotated[int, Uint()]

    def flaw(self) -> str | None:
        if not self.audience:
            return "audience is empty"
        lifetime = self.expires_at - self.issued_at
        return None if 0 <= lifetime <= MAX_CHALLENGE_SEC else f"its lifetime is not 0 to {MAX_CHALLENGE_SEC} seconds"

    def check_time(self, now: int) -> None:
        if not self.issued_at - CLOCK_SKEW_SEC <= now <= self.expires_at:
            raise Unverified("challenge", f"it is valid from {self.issued_at} to {self.expires_at}, not at {now}")


@text_map("id.auth.answer.v1")
class ChallengeAnswer(Wire):
    """A device's signature over a challenge and the capability it presents."""

    challenge_hash: Annotated[bytes, Bstr()]
    token: Annotated[CapToken, Nested(CapToken)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]


def answer(challenge: Challenge, device: SigningKey, token: CapToken, *, audience: str, now: int) -> ChallengeAnswer:
    """Sign a challenge. Raises if its audience is not the one the user expects, or if it has expired."""
    if challenge.audience != audience:
        raise Unverified("challenge", f"its audience is {challenge.audience!r}, not {audience!r}")
    challenge.check_time(now)
    token.verify()
    if token.subject_pk != device.public_key:
        raise Unverified("challenge", "the capability is not for this device's key")
    return ChallengeAnswer(_hash(challenge), token, device.sign(_digest(challenge, token)))


def verify(
    challenge: Challenge, answered: ChallengeAnswer, policy: AuthPolicy, states: States, *, issued_at: int, now: int
) -> Session:
    """Verify an answer and return the session.

    `challenge` is the application's own copy; it must accept only one answer to it. `issued_at` is the `hub_ts` at
    which a hub logged the capability.
    """
    challenge.check_time(now)
    if challenge.realm_id != policy.realm_id:
        raise Unverified("challenge", "it belongs to another realm")
    if answered.challenge_hash != _hash(challenge):
        raise Unverified("answer", "it answers another challenge")
    token = answered.token
    signing.verify(token.subject_pk, _digest(challenge, token), answered.sig, "answer")
    return admit(token.subject_pk, IdentityGrant(token, issued_at), policy, states, now=now)


def _hash(challenge: Challenge) -> bytes:
    return ht("id/auth/challenge", challenge.encode())


def _digest(challenge: Challenge, token: CapToken) -> bytes:
    return ht("id/auth/answer", _hash(challenge) + token.auth_ref())
