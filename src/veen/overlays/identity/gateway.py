"""Login by an outside provider: OpenID Connect ID tokens that are signed with Ed25519. id-spec §10.2, RFC 8037.

The gateway checks the token, finds the account that the subject is linked to, or makes one, and says which events to
send. Which providers are trusted is the gateway's list; a subject of one that is not on it is nobody.
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
    """A provider that is trusted: its name in links, what its tokens say of it and of us, and its keys by `kid`."""

    name: str
    issuer: str
    audience: str
    keys: Mapping[str, bytes]
    mirrored: tuple[str, ...] = ()  # text claims that a link keeps as `attributes`


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a valid token is about."""

    provider: str
    external_sub: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """The account, and what is to be sent so that the next login finds it; nothing where it is linked already."""

    ctx_id: bytes
    events: tuple[Event, ...]


def validate(provider: Provider, id_token: str, *, now: int, nonce: str | None = None) -> Subject:
    """The subject of a token, if the provider signed it for us, now. Raises `Malformed` or `Unverified`."""
    if len(id_token) > MAX_TOKEN_BYTES or id_token.count(".") != 2:
        raise Malformed("id token", "not three parts of a signed token")
    head, claims, signature = id_token.split(".")
    header = Fields.of("id token", strict_json.decode(_unpadded(head), "id token"))
    if header.text("alg") != _ALGORITHM:
        raise Unverified("id token", f"signed with {header.text('alg')!r}, and only {_ALGORITHM} is taken")
    key = provider.keys.get(header.text("kid"))
    if key is None:
        raise Unverified("id token", "signed with a key that the provider does not have")
    signing.verify(key, f"{head}.{claims}".encode(), _unpadded(signature), "id token")
    said = Fields.of("id token", strict_json.decode(_unpadded(claims), "id token"))
    if said.text("iss") != provider.issuer:
        raise Unverified("id token", "of another issuer")
    if said.text("aud") != provider.audience:
        raise Unverified("id token", "meant for someone else")
    if not said.number("iat") - CLOCK_SKEW_SEC <= now <= said.number("exp") + CLOCK_SKEW_SEC:
        raise Unverified("id token", f"it holds from {said.number('iat')} to {said.number('exp')}")
    if nonce is not None and said.text("nonce") != nonce:
        raise Unverified("id token", "it answers another request")
    if not said.text("sub"):
        raise Malformed("id token", "it names nobody")
    return Subject(provider.name, said.text("sub"), tuple((name, said.text(name)) for name in provider.mirrored))


def login(subject: Subject, realm_id: bytes, states: States, *, new_principal_pk: bytes, now: int) -> Login:
    """The subject's account in a realm, of `new_principal_pk` where it has none yet."""
    found = views.link(states, realm_id, subject.provider, subject.external_sub)
    linked = None if found is None else found.ctx_id
    if linked is not None and views.ctx_revocation(states, linked, realm_id) is not None:
        raise Unverified("login", "the account is revoked in this realm")
    attributes = cbor.encode(dict(subject.attributes)) if subject.attributes else None
    if found is not None and linked is not None and attributes == found.attributes:
        return Login(linked, ())
    ctx_id = identity_ids.ctx_id(new_principal_pk, realm_id) if linked is None else linked
    # Under the time that stands, where that is ahead of our clock: then the later entry wins.
    ts = now if found is None else max(now, found.ts)
    org_id = None if found is None else found.org_id
    link = ExternalLink(realm_id, ctx_id, org_id, subject.provider, subject.external_sub, attributes, ts)
    profile = CtxProfile(ctx_id, realm_id, None, None, None, now)
    known = views.ctx_profile(states, ctx_id, realm_id) is not None
    return Login(ctx_id, (link,) if known else (profile, link))


def _unpadded(part: str) -> bytes:
    """base64url without padding, in its one spelling."""
    try:
        decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise Malformed("id token", "not base64url") from None
    if base64.urlsafe_b64encode(decoded).rstrip(b"=").decode() != part:
        raise Malformed("id token", "not base64url in its one spelling")
    return decoded
