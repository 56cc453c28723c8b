"""Authentication: from a message, a challenge answer or an external login to an account. id-spec §9, §10.2.

No passwords or sessions are stored. The holder of a device key, with a capability that a principal issued for that key,
is authenticated as the principal's account in the realm. A failed check raises `Unverified` with the reason.

An external login is an OpenID Connect ID token signed with Ed25519 (RFC 8037). `validate` verifies the token of a
provider on the application's own list; `login` finds or creates the linked account and returns the events to send.
"""

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from veen.core import (
    Bucket,
    CapToken,
    Malformed,
    Msg,
    Rate,
    SigningKey,
    Unverified,
    cap_token,
    cbor,
    signing,
    strict_json,
)
from veen.core import cap_token as rates
from veen.core.cbor import Bstr, Nested, Text, Uint, Wire, text_map
from veen.core.hashing import U64_MAX, ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.core.wire_json import Fields
from veen.overlays import identity_events, identity_views
from veen.overlays.event import Event
from veen.overlays.identity_events import CtxProfile, CtxStream, ExternalLink
from veen.overlays.identity_views import States


@dataclass(frozen=True, slots=True)
class IdentityGrant:
    """A capability, and the `hub_ts` at which a hub logged it."""

    token: CapToken
    issued_at: int
    not_after: int = U64_MAX  # of its presentation, if it has one

    @property
    def expires_at(self) -> int:
        """The last second in which the capability is valid."""
        return min(self.token.expires_at(self.issued_at), self.not_after)


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
    streams = (identity_events.principal_stream(principal.public_key), *of_accounts, *stream_ids)
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
    if not grant.issued_at <= now <= grant.expires_at:
        valid = f"from {grant.issued_at} to {grant.expires_at}"
        raise Unverified("auth", f"the capability is valid {valid}, not at {now}")
    _check_rate(token, accepted, now)
    auth_ref = token.auth_ref()
    revoked = identity_views.auth_ref_revocation(states, auth_ref)
    if revoked is not None:
        raise Unverified("auth", f"the capability was revoked at {revoked.ts}")
    org_id = identity_events.org_id(token.issuer_pk)
    common = (policy.realm_id, subject_pk, token.issuer_pk, auth_ref, grant.expires_at)
    if identity_views.org_profile(states, org_id) is not None:
        _check_org(org_id, policy, states)
        return Session(*common, None, org_id, frozenset())
    ctx_id = identity_events.ctx_id(token.issuer_pk, policy.realm_id)
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
    if identity_views.org_revocation(states, org_id, policy.realm_id) is not None:
        raise Unverified("auth", "the organization is revoked")
    if policy.roles or policy.groups:
        raise Unverified("auth", "a key of an organization has no account, so it has no roles or groups")


def _checked_roles(
    ctx_id: bytes, device_pk: bytes, principal_pk: bytes, policy: AuthPolicy, states: States, now: int
) -> frozenset[str]:
    """Check the device, the account and the policy's requirements, and return the account's roles."""
    unregistered = identity_views.device(states, principal_pk, identity_events.device_id(device_pk)) is None
    why = identity_views.inactive_reason(states, principal_pk, device_pk, now)
    if why is not None and (policy.check_device or not unregistered):
        raise Unverified("auth", f"the device may not authenticate: {why}")
    if identity_views.device_revocation(states, principal_pk, identity_events.device_id(device_pk)) is not None:
        raise Unverified("auth", "the device was revoked")
    revoked = identity_views.ctx_revocation(states, ctx_id, policy.realm_id)
    if revoked is not None:
        raise Unverified("auth", f"the account was revoked at {revoked.ts}")
    if policy.org_id is None:
        return frozenset()
    if identity_views.org_revocation(states, policy.org_id, policy.realm_id) is not None:
        raise Unverified("auth", "the organization is revoked")
    held = identity_views.roles(states, policy.org_id, ctx_id, policy.realm_id)
    missing = policy.roles - held
    if missing:
        raise Unverified("auth", f"the account lacks the role {min(missing)!r}")
    if not policy.groups <= set(identity_views.groups_of(states, policy.org_id, ctx_id)):
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
    """Sign a challenge. Raises if the user expects another audience, or if it has expired."""
    if challenge.audience != audience:
        raise Unverified("challenge", f"its audience is {challenge.audience!r}, not {audience!r}")
    challenge.check_time(now)
    token.verify()
    if token.subject_pk != device.public_key:
        raise Unverified("challenge", "the capability is not for this device's key")
    return ChallengeAnswer(_hash(challenge), token, device.sign(_digest(challenge, token)))


def verify(
    challenge: Challenge,
    answered: ChallengeAnswer,
    policy: AuthPolicy,
    states: States,
    *,
    issued_at: int,
    not_after: int = U64_MAX,
    now: int,
) -> Session:
    """Verify an answer and return the session.

    `challenge` is the application's own copy; it must accept only one answer to it. `issued_at` is the `hub_ts` at
    which a hub logged the capability, `not_after` the end in its presentation.
    """
    challenge.check_time(now)
    if challenge.realm_id != policy.realm_id:
        raise Unverified("challenge", "it belongs to another realm")
    if answered.challenge_hash != _hash(challenge):
        raise Unverified("answer", "it answers another challenge")
    token = answered.token
    signing.verify(token.subject_pk, _digest(challenge, token), answered.sig, "answer")
    return admit(token.subject_pk, IdentityGrant(token, issued_at, not_after), policy, states, now=now)


def _hash(challenge: Challenge) -> bytes:
    return ht("id/auth/challenge", challenge.encode())


def _digest(challenge: Challenge, token: CapToken) -> bytes:
    return ht("id/auth/answer", _hash(challenge) + token.auth_ref())


TOKEN_CLOCK_SKEW_SEC = 60
MAX_TOKEN_BYTES = 16_384
_ALGORITHM = "EdDSA"


@dataclass(frozen=True, slots=True)
class Provider:
    """A trusted provider: its name in links, the issuer and audience of its tokens, and its keys by `kid`."""

    name: str
    issuer: str
    audience: str
    keys: Mapping[str, bytes]
    mirrored: tuple[str, ...] = ()  # text claims that are copied to `attributes` of the link


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a valid token."""

    provider: str
    external_sub: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """The account, and the events that link it to the subject. There are none if it is already linked."""

    ctx_id: bytes
    events: tuple[Event, ...]


def validate(provider: Provider, id_token: str, *, now: int, nonce: str | None = None) -> Subject:
    """Verify a token and return its subject. Raises `Malformed` or `Unverified`."""
    if len(id_token) > MAX_TOKEN_BYTES or id_token.count(".") != 2:
        raise Malformed("id token", "not a signed token of three parts")
    head, claims, signature = id_token.split(".")
    header = Fields.of("id token", strict_json.decode(_unpadded(head), "id token"))
    if header.text("alg") != _ALGORITHM:
        raise Unverified("id token", f"signed with {header.text('alg')!r}; only {_ALGORITHM} is accepted")
    key = provider.keys.get(header.text("kid"))
    if key is None:
        raise Unverified("id token", "signed with an unknown key of the provider")
    signing.verify(key, f"{head}.{claims}".encode(), _unpadded(signature), "id token")
    fields = Fields.of("id token", strict_json.decode(_unpadded(claims), "id token"))
    if fields.text("iss") != provider.issuer:
        raise Unverified("id token", f"its issuer is {fields.text('iss')!r}, not {provider.issuer!r}")
    if fields.text("aud") != provider.audience:
        raise Unverified("id token", f"its audience is {fields.text('aud')!r}, not {provider.audience!r}")
    if not fields.number("iat") - TOKEN_CLOCK_SKEW_SEC <= now <= fields.number("exp") + TOKEN_CLOCK_SKEW_SEC:
        raise Unverified("id token", f"it is valid from {fields.number('iat')} to {fields.number('exp')}, not at {now}")
    if nonce is not None and fields.text("nonce") != nonce:
        raise Unverified("id token", "its nonce belongs to another request")
    if not fields.text("sub"):
        raise Malformed("id token", "sub is empty")
    return Subject(provider.name, fields.text("sub"), tuple((name, fields.text(name)) for name in provider.mirrored))


def login(subject: Subject, realm_id: bytes, states: States, *, new_principal_pk: bytes, now: int) -> Login:
    """The subject's account in a realm. If it has none, one is derived from `new_principal_pk`."""
    found = identity_views.link(states, realm_id, subject.provider, subject.external_sub)
    linked = None if found is None else found.ctx_id
    if linked is not None and identity_views.ctx_revocation(states, linked, realm_id) is not None:
        raise Unverified("login", "the account is revoked in this realm")
    attributes = cbor.encode(dict(subject.attributes)) if subject.attributes else None
    if found is not None and linked is not None and attributes == found.attributes:
        return Login(linked, ())
    ctx_id = identity_events.ctx_id(new_principal_pk, realm_id) if linked is None else linked
    # If the existing link's ts is ahead of our clock, reuse it: then the later entry wins.
    ts = now if found is None else max(now, found.ts)
    org_id = None if found is None else found.org_id
    link = ExternalLink(realm_id, ctx_id, org_id, subject.provider, subject.external_sub, attributes, ts)
    profile = CtxProfile(ctx_id, realm_id, None, None, None, now)
    known = identity_views.ctx_profile(states, ctx_id, realm_id) is not None
    return Login(ctx_id, (link,) if known else (profile, link))


def _unpadded(part: str) -> bytes:
    """Decode canonical base64url without padding."""
    try:
        decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise Malformed("id token", "not base64url") from None
    if base64.urlsafe_b64encode(decoded).rstrip(b"=").decode() != part:
        raise Malformed("id token", "not canonical base64url")
    return decoded
