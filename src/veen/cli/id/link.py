"""`veen id link`: link accounts to subjects of external providers, and log in with their tokens."""

import json
from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.id import principals
from veen.cli.id.principals import Account, Realm, ScopeSender
from veen.cli.kit.result import Result, fields_of
from veen.cli.kit.state_session import Answer, ReadSession, SendSession, SentResult, read_command, send_command
from veen.cli.kit.values import id_of
from veen.core import SigningKey
from veen.core.hashing import u32be
from veen.core.hpke import hkdf
from veen.overlays import identity, identity_auth, identity_views
from veen.overlays.identity import IDENTITY
from veen.overlays.identity_auth import Provider
from veen.overlays.identity_events import CtxStream, ExternalLink
from veen.state.event_sender import EventSender

app = group(
    "link",
    """Link accounts to subjects of external providers, and log people in with their tokens.

    A link reveals who someone is at the provider. Use it only where that is intended.
    """,
)

OfProvider: TypeAlias = Annotated[str, argument("PROVIDER", "the provider, such as google or saml:corp")]
Subject: TypeAlias = Annotated[str, argument("SUBJECT", "the account's subject at the provider")]


@send_command(app, "add", "veen id link add github ann-42 --realm shop --client ann")
async def add(session: SendSession, provider: OfProvider, subject: Subject, realm: Realm) -> SentResult:
    """Link the account of your own keys in a realm to a subject of a provider."""
    scope = CtxStream.of(principals.own_key(session), realm)
    sender = ScopeSender(session, scope, begins=True)
    state = await sender.state()
    found = None if state is None else identity_views.link(state.states, realm, provider, subject)
    ts = principals.now(found.ts if found else 0)
    event = ExternalLink(realm, scope.ctx_id, None, provider, subject, None, ts)
    return await sender.send(event, provider=provider, external_sub=subject, ctx_id=scope.ctx_id)


@read_command(
    app, "list", "veen id link list --realm shop --client ann", "veen id link list --realm shop --stream logins"
)
async def list_(session: ReadSession, realm: Realm, account: Account = None) -> Answer:
    """List the links of an account, or all links on --stream."""
    ctx_id = principals.account_of(account, realm, session)
    state = await principals.open_scope(session, CtxStream(ctx_id, realm))
    found = [one for one in identity_views.links(dict(state.states)) if one.realm_id == realm]
    return Answer(
        {
            "realm_id": realm,
            "links": [fields_of(one, "provider", "external_sub", "ctx_id", "org_id") for one in found],
        },
        rows="links",
        columns=("provider", "external_sub", ("linked to", lambda row: row["ctx_id"] or row["org_id"])),
        parts=tuple(identity.link(realm, one.provider, one.external_sub) for one in found),
    )


@send_command(
    app, "login", "veen id link login token.jwt --provider corp.json --realm shop --stream logins --client gate"
)
async def login(
    session: SendSession,
    token: Annotated[Path, argument("FILE", "the ID token from the provider")],
    provider: Annotated[Path, option("--provider FILE", "JSON: name, issuer, audience, keys by kid in hex, mirrored")],
    realm: Realm,
    nonce: Annotated[str | None, option("--nonce TEXT", "the nonce that the token must have")] = None,
) -> Result:
    """Log in the subject of an OpenID Connect token.

    Finds the account that is linked to the subject, or creates one. The provider must sign with Ed25519. Accounts and
    links are on --stream. The principal of a new account is derived from the gateway's own key, so the gateway can act
    for the account until its owner brings a key.
    """
    trusted = _provider(provider)
    text = token.read_bytes().decode("ascii", errors="replace").strip()
    subject = identity_auth.validate(trusted, text, now=principals.now(), nonce=nonce)
    await session.at_hub(IDENTITY)
    key = _principal_of(session.folder.identity.id_sign, subject.provider, subject.external_sub)
    state = await session.open(IDENTITY)
    made = identity_auth.login(subject, realm, state.states, new_principal_pk=key.public_key, now=principals.now())
    sender = EventSender(session.view_of(state))
    await session.close_states()
    entries = [(await sender.send(event)).sent.stream_seq for event in made.events]
    data = {"ctx_id": made.ctx_id, **fields_of(subject, "provider", "external_sub"), "entries": entries}
    facts = ("ctx_id", "provider", "external_sub", ("entries", lambda data: len(data["entries"])))
    return Result(data, facts=facts)


def _principal_of(gateway_key: SigningKey, provider: str, subject: str) -> SigningKey:
    """Derive the principal of a subject. It is deterministic, so the gateway stores no key but its own."""
    named = provider.encode()
    info = b"veen/gateway-principal" + u32be(len(named)) + named + subject.encode()
    return SigningKey(hkdf(gateway_key.seed, salt=b"", info=info, length=32))


def _provider(path: Path) -> Provider:
    try:
        found = json.loads(path.read_text("utf-8"))
        keys = {str(kid): id_of(str(key), "a key") for kid, key in dict(found["keys"]).items()}
        names = (str(found["name"]), str(found["issuer"]), str(found["audience"]))
        return Provider(*names, keys, tuple(map(str, found.get("mirrored", ()))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misuse(
            f"{path} is not a provider file: {error!r}", "veen id link login --help lists its fields"
        ) from None
