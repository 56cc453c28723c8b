"""A gateway for one kind of outside provider: OpenID Connect with Ed25519. id-spec §10.2."""

import base64
import json
from typing import Any

import pytest

from tests.overlays.logs import log
from veen.core import Malformed, SigningKey, Unverified, cbor
from veen.core.naming import realm_id
from veen.overlays import Event, fold
from veen.overlays.identity import IDENTITY
from veen.overlays.identity_auth import TOKEN_CLOCK_SKEW_SEC, Provider, Subject, login, validate
from veen.overlays.identity_events import CtxProfile, ExternalLink, IdentityRevocation, ctx_id
from veen.overlays.identity_views import States

KEY, STRANGER = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
NOW = 1_700_000_000
PROVIDER = Provider("oidc:corp", "https://id.corp.example", "veen-app", {"k1": KEY.public_key}, ("email",))
CLAIMS = {"iss": PROVIDER.issuer, "aud": "veen-app", "sub": "4711", "iat": NOW, "exp": NOW + 60, "email": "a@b.c"}
REALM = realm_id("example-app")
NEW = b"\x09" * 32
MINE = ctx_id(NEW, REALM)
SUBJECT = Subject("oidc:corp", "4711", (("email", "a@b.c"),))


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(key: SigningKey = KEY, header: dict[str, Any] | None = None, **changed: object) -> str:
    head = {"alg": "EdDSA", "kid": "k1", **(header or {})}
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    signed = packed(json.dumps(head).encode()) + "." + packed(json.dumps(claims).encode())
    return signed + "." + packed(key.sign(signed.encode()))


def states(*events: Event) -> States:
    return fold(IDENTITY, log(*events)).states


def test_a_token_that_the_provider_signed_for_us_names_its_subject() -> None:
    assert validate(PROVIDER, token(), now=NOW) == SUBJECT
    assert validate(PROVIDER, token(nonce="n"), now=NOW, nonce="n") == SUBJECT


@pytest.mark.parametrize(
    ("id_token", "reason"),
    [
        (token(STRANGER), "signature does not verify"),
        (token(header={"alg": "none"}), "only EdDSA"),
        (token(header={"alg": "HS256"}), "only EdDSA"),
        (token(header={"kid": "k2"}), "unknown key"),
        (token(iss="https://evil.example"), "its issuer is"),
        (token(aud="someone-else"), "its audience is"),
        (token(iat=NOW + TOKEN_CLOCK_SKEW_SEC + 1), "valid from"),
        (token(exp=NOW - TOKEN_CLOCK_SKEW_SEC - 1), "valid from"),
        (token(nonce="other"), "another request"),
    ],
)
def test_a_token_that_is_not_for_us_now_is_refused(id_token: str, reason: str) -> None:
    with pytest.raises(Unverified, match=reason):
        validate(PROVIDER, id_token, now=NOW, nonce="n" if "another request" in reason else None)


@pytest.mark.parametrize(
    "id_token",
    [
        "",
        "a.b",
        "a.b.c.d",
        "..",
        token() + "=",
        token()[:-1],
        "é.b.c",
        token(header={"alg": 7}),
        token(sub=None),
        token(sub=""),
        token(aud=["veen-app"]),
        token(exp="soon"),
        token(email=None),
        token(nonce=None),
        "x" * 20_000,
        packed(b'{"alg":"EdDSA","kid":"\\ud800"}') + ".e30.AA",
    ],
)
def test_a_text_that_is_not_a_token_is_malformed(id_token: str) -> None:
    asks_nonce = id_token == token(nonce=None)
    with pytest.raises(Malformed):
        validate(PROVIDER, id_token, now=NOW, nonce="n" if asks_nonce else None)


def test_every_change_of_a_byte_of_a_token_is_noticed() -> None:
    good = token()
    for at in range(0, len(good), 7):
        other = good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :]
        with pytest.raises((Malformed, Unverified)):
            validate(PROVIDER, other, now=NOW)


def test_a_first_login_creates_and_links_an_account() -> None:
    made = login(SUBJECT, REALM, {}, new_principal_pk=NEW, now=NOW)
    attributes = cbor.encode({"email": "a@b.c"})
    link = ExternalLink(REALM, MINE, None, "oidc:corp", "4711", attributes, NOW)
    assert made.ctx_id == MINE
    assert made.events == (CtxProfile(MINE, REALM, None, None, None, NOW), link)
    again = login(SUBJECT, REALM, states(*made.events), new_principal_pk=b"\x0a" * 32, now=NOW + 1)
    assert (again.ctx_id, again.events) == (MINE, ())


def test_claims_that_changed_update_the_link_and_not_the_account() -> None:
    made = login(SUBJECT, REALM, {}, new_principal_pk=NEW, now=NOW)
    moved = Subject("oidc:corp", "4711", (("email", "new@b.c"),))
    for now, ts in [(NOW + 5, NOW + 5), (NOW - 5, NOW)]:
        after = login(moved, REALM, states(*made.events), new_principal_pk=b"\x0a" * 32, now=now)
        attributes = cbor.encode({"email": "new@b.c"})
        assert after.events == (ExternalLink(REALM, MINE, None, "oidc:corp", "4711", attributes, ts),)


def test_a_subject_has_another_account_in_another_realm() -> None:
    made = login(SUBJECT, REALM, {}, new_principal_pk=NEW, now=NOW)
    other = login(SUBJECT, realm_id("tenant-123"), states(*made.events), new_principal_pk=NEW, now=NOW)
    assert other.ctx_id != MINE
    assert len(other.events) == 2


def test_a_revoked_account_does_not_log_in_and_gets_no_new_one() -> None:
    made = login(SUBJECT, REALM, {}, new_principal_pk=NEW, now=NOW)
    revoked = states(*made.events, IdentityRevocation(ctx_id=MINE, realm_id=REALM, ts=NOW))
    with pytest.raises(Unverified, match="revoked"):
        login(SUBJECT, REALM, revoked, new_principal_pk=b"\x0a" * 32, now=NOW)


def test_an_organizations_link_keeps_its_organization() -> None:
    linked = ExternalLink(REALM, None, b"\x03" * 32, "oidc:corp", "4711", None, 5)
    after = login(SUBJECT, REALM, states(linked), new_principal_pk=NEW, now=NOW)
    link = after.events[-1]
    assert isinstance(link, ExternalLink)
    assert (link.ctx_id, link.org_id) == (MINE, b"\x03" * 32)
