"""Login by an external provider: OpenID Connect ID tokens signed with Ed25519. id-spec §10.2, RFC 8037.

The gateway verifies the token, finds or creates the account linked to its subject, and returns the events to send. It
accepts only the providers on its own list.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from veen.core import Malformed, Unverified, cbor, signing, strict_json
from veen.core.wire_json import Fields
from veen.overlays.event import Event
from veen.overlays.identity import identity_ids, views
from veen.overlays.identity.identity_events import CtxProfile, ExternalLink
from veen.overlays.identity.views import States

CLOCK_SKEW_SEC = 60
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
    if not fields.number("iat") - CLOCK_SKEW_SEC <= now <= fields.number("exp") + CLOCK_SKEW_SEC:
        raise Unverified("id token", f"it is valid from {fields.number('iat')} to {fields.number('exp')}, not at {now}")
    if nonce is not None and fields.text("nonce") != nonce:
        raise Unverified("id token", "its nonce belongs to another request")
    if not fields.text("sub"):
        raise Malformed("id token", "sub is empty")
    return Subject(provider.name, fields.text("sub"), tuple((name, fields.text(name)) for name in provider.mirrored))


def login(subject: Subject, realm_id: bytes, states: States, *, new_principal_pk: bytes, now: int) -> Login:
    """The subject's account in a realm. If it has none, one is derived from `new_principal_pk`."""
    found = views.link(states, realm_id, subject.provider, subject.external_sub)
    linked = None if found is None else found.ctx_id
    if linked is not None and views.ctx_revocation(states, linked, realm_id) is not None:
        raise Unverified("login", "the account is revoked in this realm")
    attributes = cbor.encode(dict(subject.attributes)) if subject.attributes else None
    if found is not None and linked is not None and attributes == found.attributes:
        return Login(linked, ())
    ctx_id = identity_ids.ctx_id(new_principal_pk, realm_id) if linked is None else linked
    # If the existing link's ts is ahead of our clock, reuse it: then the later entry wins.
    ts = now if found is None else max(now, found.ts)
    org_id = None if found is None else found.org_id
    link = ExternalLink(realm_id, ctx_id, org_id, subject.provider, subject.external_sub, attributes, ts)
    profile = CtxProfile(ctx_id, realm_id, None, None, None, now)
    known = views.ctx_profile(states, ctx_id, realm_id) is not None
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
