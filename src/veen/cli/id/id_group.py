"""`veen id`: identities of people, devices and organizations, held as entries in streams instead of by a provider."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veen.cli.id import auth, context, device, groups, handle, link, orgs, principals, roles
from veen.cli.id.principals import IdReading, Principal
from veen.cli.kit import output, read_state, render_state, send_event
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.faults_command import fault_answer
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.core import Unavailable, cbor
from veen.overlays import identity, identity_views
from veen.overlays.identity_events import (
    CtxStream,
    HandleStream,
    IdentityPrincipal,
    IdentityRevocation,
    OrgStream,
    PrincipalStream,
    Scope,
    org_id,
    principal_id,
)

app = group(
    "id",
    """Manage identities: principals, their devices, accounts per realm, organizations, handles.

    A principal is the long-term key of a client directory, and so is an organization. Each principal, organization and
    account has its own stream, derived from its key; --stream names a stream that holds several of them.
    """,
)
for _subcommand in (device, context, orgs, groups, roles, handle, link, auth):
    app.add_typer(_subcommand.app)


ScopeRealm: TypeAlias = Annotated[
    str | None, typer.Option("--realm", metavar="NAME|HEX", help="the stream of the account in this realm")
]
ScopeOrg: TypeAlias = Annotated[
    str | None,
    typer.Option("--org", metavar="HEX|PATH", help="the stream of an organization: org_id, directory or card"),
]
ScopeHandles: TypeAlias = Annotated[bool, typer.Option("--handles", help="the stream of the handles of --realm")]


@send_command(app, "create", "veen id create --client ann", "veen id create --client ann --info name=Ann")
def create(
    options: SendOptions,
    info: Annotated[
        list[str] | None, typer.Option("--info", metavar="NAME=TEXT", help="information about the principal")
    ] = None,
) -> None:
    """Create a principal, or change its info.

    Creates the key of its stream if there is none. A later record replaces the info; the principal's key and its
    creation time stay as they are.
    """

    principal_pk = principals.own_key(options.client)
    pairs = dict(principals.pair_of(one) for one in info or ())
    event = IdentityPrincipal(principal_pk, principals.now(), cbor.encode(pairs) if pairs else None)
    overlay, stream = principals.folding(PrincipalStream(principal_pk), options.stream)
    shown = principals.shown({"principal_pk": principal_pk})
    send_event.send_checked(options, overlay, lambda _: event, shown, stream=stream, blind=event, begins=True)


@read_command(app, "show", "veen id show --client ann", "veen id show --principal ann.card --prove --json")
def show(options: ReadOptions, principal: Principal = None) -> None:
    """Show a principal: its creation time and its info."""

    principal_pk = principals.principal_of(principal, options.client)
    overlay, stream = principals.folding(PrincipalStream(principal_pk), options.stream)

    def look(reading: IdReading) -> StateAnswer:
        part = identity.part_key(identity.PRINCIPAL, principal_pk)
        found = identity_views.principal(reading.states, principal_pk)
        if found is None:
            raise hinted(
                Unavailable(f"there is no record of principal {principal_pk.hex()}"), "veen id create creates one"
            )
        info = None if found.info is None else cbor.decode(found.info)
        names = {"principal_pk": principal_pk, "principal_id": principal_id(principal_pk)}
        rows: dict[str, output.Value] = {**names, "created_at": output.moment(found.created_at)}
        data = {**names, "created_at": found.created_at, "info": render_state.plain_json(info)}
        return read_state.StateAnswer(facts={**rows, "info": render_state.plain_cell(info)}, data=data, parts=(part,))

    read_state.show_state(options, overlay, look, stream=stream)


@send_command(
    app,
    "revoke",
    "veen id revoke --client ann --auth-ref 64-HEX-DIGITS --reason lost",
    "veen id revoke --client ann --realm shop --account 64-HEX-DIGITS",
)
def revoke(
    options: SendOptions,
    auth_ref: Annotated[
        str | None, typer.Option("--auth-ref", metavar="HEX", help="a capability, by its auth_ref")
    ] = None,
    account: Annotated[str | None, typer.Option("--account", metavar="HEX", help="an account, by its ctx_id")] = None,
    realm: Annotated[
        str | None,
        typer.Option(
            "--realm", metavar="NAME|HEX", help="the realm in which the account is disabled", show_default="all realms"
        ),
    ] = None,
    as_org: Annotated[bool, typer.Option("--as-org", help="act as the organization of your own keys")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="the reason")] = None,
) -> None:
    """Revoke a capability, an account or an organization.

    --as-org without --auth-ref and --account revokes the organization itself. A revocation is permanent and takes
    effect at its entry: applications that read the stream reject what it names.
    """

    own = principals.own_key(options.client)
    if auth_ref is None and account is None and not as_org:
        raise Misuse("missing --auth-ref or --account", "give --auth-ref HEX or --account HEX, or --as-org")
    scope: Scope = OrgStream(org_id(own)) if as_org else PrincipalStream(own)
    named = {
        "revoked_auth_ref": None if auth_ref is None else principals.id_of(auth_ref, "an auth_ref"),
        "ctx_id": None if account is None else principals.id_of(account, "a ctx_id"),
        "realm_id": principals.realm_or_all(realm),
    }
    by = {"principal_pk": None if as_org else own, "org_id": org_id(own) if as_org else None}
    event = IdentityRevocation(**by, **named, reason=reason, ts=principals.now())
    overlay, stream = principals.folding(scope, options.stream)
    send_event.send_checked(
        options, overlay, lambda _: event, principals.shown({**by, **named}), stream=stream, blind=event
    )


@command(app, "stream", "veen id stream --client ann", "veen id stream --client ann --realm shop")
def stream(
    principal: Principal = None,
    realm: ScopeRealm = None,
    org: ScopeOrg = None,
    handles: ScopeHandles = False,
    client: ClientDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show the stream id of a principal, an account, an organization or a realm's handles.

    With --org and --realm it is the stream of the organization's twin in that realm.
    """

    scope = _scope(principal, realm, org, handles, client)
    if as_json:
        named = {field.name: getattr(scope, field.name) for field in fields(scope)}
        output.document({**named, "stream_id": scope.stream_id})
    else:
        sys.stdout.write(scope.stream_id.hex() + "\n")


@read_command(app, "faults", "veen id faults --client ann", "veen id faults --org company.card --at 100 --json")
def faults(
    options: ReadOptions,
    principal: Principal = None,
    realm: ScopeRealm = None,
    org: ScopeOrg = None,
    handles: ScopeHandles = False,
) -> None:
    """List the entries that veen id could not apply, with the reasons.

    They stay in the log. Every command skips them. Records of others are faults on the own stream of a principal,
    account or organization; a stream that --stream names may hold several of them.
    """

    overlay, stream = principals.folding(_scope(principal, realm, org, handles, options.client), options.stream)
    read_state.show_state(options, overlay, fault_answer("veen id"), stream=stream)


def _scope(principal: str | None, realm: str | None, org: str | None, handles: bool, client: Path | None) -> Scope:
    realm_id = principals.realm_or_all(realm)
    if handles:
        if realm_id is None:
            raise Misuse("--handles needs a realm", "give --realm NAME")
        return HandleStream(realm_id)
    if org is not None:
        return OrgStream(principals.org_of(org, client), realm_id)
    if realm_id is not None:
        return CtxStream.of(principals.principal_of(principal, client), realm_id)
    return PrincipalStream(principals.principal_of(principal, client))
