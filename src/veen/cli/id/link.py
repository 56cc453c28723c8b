"""`veen id link`: link accounts to subjects of external providers, and log in with their tokens."""

import json
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.id import principals
from veen.cli.id.principals import Account, IdReading, Realm
from veen.cli.kit import output, read_state, send_event
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.client.client import Client
from veen.core import SigningKey
from veen.core.hashing import u32be
from veen.core.hpke import hkdf
from veen.overlays import identity, identity_auth, identity_views
from veen.overlays.identity import IDENTITY
from veen.overlays.identity_auth import Provider
from veen.overlays.identity_events import CtxStream, ExternalLink
from veen.state.event_sender import EventSender
from veen.state.state_view import StateView

app = group(
    "link",
    """Link accounts to subjects of external providers, and log people in with their tokens.

    A link reveals who someone is at the provider. Use it only where that is intended.
    """,
)

OfProvider: TypeAlias = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="the provider, such as google or saml:corp")
]
Subject: TypeAlias = Annotated[str, typer.Argument(metavar="SUBJECT", help="the account's subject at the provider")]


@send_command(app, "add", "veen id link add github ann-42 --realm shop --client ann")
def add(options: SendOptions, provider: OfProvider, subject: Subject, realm: Realm) -> None:
    """Link the account of your own keys in a realm to a subject of a provider."""

    scope = CtxStream.of(principals.own_key(options.client), principals.realm_of(realm))
    overlay, stream = principals.folding(scope, options.stream)

    def make(reading: IdReading | None) -> ExternalLink:
        found = None if reading is None else identity_views.link(reading.states, scope.realm_id, provider, subject)
        ts = principals.now() if found is None else max(principals.now(), found.ts)
        return ExternalLink(scope.realm_id, scope.ctx_id, None, provider, subject, None, ts)

    shown = {"provider": provider, "external_sub": subject, **principals.shown({"ctx_id": scope.ctx_id})}
    send_event.send_checked(options, overlay, make, shown, stream=stream, blind=make(None), begins=True)


@read_command(
    app, "list", "veen id link list --realm shop --client ann", "veen id link list --realm shop --stream logins"
)
def list_(options: ReadOptions, realm: Realm, account: Account = None) -> None:
    """List the links of an account, or all links on --stream."""

    realm_id = principals.realm_of(realm)
    ctx_id = principals.account_of(account, realm_id, options.client)
    overlay, stream = principals.folding(CtxStream(ctx_id, realm_id), options.stream)

    def look(reading: IdReading) -> StateAnswer:
        found = [one for one in identity_views.links(dict(reading.states)) if one.realm_id == realm_id]
        rows = [
            (printable(one.provider), printable(one.external_sub), short(target))
            for one in found
            if (target := one.ctx_id or one.org_id) is not None
        ]
        data = [
            {"provider": one.provider, "external_sub": one.external_sub, "ctx_id": one.ctx_id, "org_id": one.org_id}
            for one in found
        ]
        proved = tuple(identity.link(realm_id, one.provider, one.external_sub) for one in found)
        columns = ("provider", "external_sub", "linked to")
        return read_state.StateAnswer(
            columns=columns, rows=rows, data={"realm_id": realm_id, "links": data}, parts=proved
        )

    read_state.show_state(options, overlay, look, stream=stream)


@send_command(
    app, "login", "veen id link login token.jwt --provider corp.json --realm shop --stream logins --client gate"
)
def login(
    options: SendOptions,
    token: Annotated[Path, typer.Argument(metavar="FILE", help="the ID token from the provider")],
    provider: Annotated[
        Path,
        typer.Option("--provider", metavar="FILE", help="JSON: name, issuer, audience, keys by kid in hex, mirrored"),
    ],
    realm: Realm,
    nonce: Annotated[
        str | None, typer.Option("--nonce", metavar="TEXT", help="the nonce that the token must have")
    ] = None,
) -> None:
    """Log in the subject of an OpenID Connect token.

    Finds the account that is linked to the subject, or creates one. The provider must sign with Ed25519. Accounts and
    links are on --stream. The principal of a new account is derived from the gateway's own key, so the gateway can act
    for the account until its owner brings a key.
    """

    realm_id, trusted = principals.realm_of(realm), _provider(provider)
    text = token.read_bytes().decode("ascii", errors="replace").strip()
    subject = identity_auth.validate(trusted, text, now=principals.now(), nonce=nonce)

    async def work(client: Client, name: str) -> tuple[identity_auth.Login, list[int]]:
        key = _principal_of(client.dir.identity.id_sign, subject.provider, subject.external_sub)
        async with StateView.of(client, name, IDENTITY, cached=not options.no_cache) as view:
            channel = EventSender(view)
            async with view.reading() as reading:
                made = identity_auth.login(
                    subject, realm_id, reading.states, new_principal_pk=key.public_key, now=principals.now()
                )
            return made, [(await channel.send(event)).sent.stream_seq for event in made.events]

    made, entries = send_event.run_at_hub(options, IDENTITY, work)
    names: dict[str, output.Value] = {
        "ctx_id": made.ctx_id,
        "provider": subject.provider,
        "external_sub": subject.external_sub,
    }
    output.facts({**names, "entries": len(entries)}, options.as_json, {**names, "entries": entries})


def _principal_of(gateway_key: SigningKey, provider: str, subject: str) -> SigningKey:
    """Derive the principal of a subject. It is deterministic, so the gateway stores no key but its own."""

    named = provider.encode()
    info = b"veen/gateway-principal" + u32be(len(named)) + named + subject.encode()
    return SigningKey(hkdf(gateway_key.seed, salt=b"", info=info, length=32))


def _provider(path: Path) -> Provider:
    try:
        found = json.loads(path.read_text("utf-8"))
        keys = {str(kid): principals.id_of(str(key), "a key") for kid, key in dict(found["keys"]).items()}
        names = (str(found["name"]), str(found["issuer"]), str(found["audience"]))
        return Provider(*names, keys, tuple(map(str, found.get("mirrored", ()))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misuse(
            f"{path} is not a provider file: {error!r}", "veen id link login --help lists its fields"
        ) from None
