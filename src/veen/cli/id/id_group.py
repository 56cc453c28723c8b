"""`veen id`: who people, devices and organizations are, without accounts at anyone's."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import command, group
from veen.cli.id import auth, context, device, groups, handle, link, orgs, roles
from veen.cli.id.principals import Principal
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from veen.cli.id.principals import IdReading
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays.identity import Scope

app = group(
    "id",
    """Keep identities: principals, their devices, accounts per realm, organizations, handles.

    A principal is the long-term key of a client directory, and so is an organization. Each has a stream of its own that
    follows from its key, and so has every account; --stream names another one, where several are kept together.
    """,
)
for _under in (device, context, orgs, groups, roles, handle, link, auth):
    app.add_typer(_under.app)


ScopeRealm: TypeAlias = Annotated[
    str | None, typer.Option("--realm", metavar="NAME|HEX", help="the stream of the account in this realm")
]
ScopeOrg: TypeAlias = Annotated[
    str | None, typer.Option("--org", metavar="HEX|PATH", help="that of an organization: org_id, directory or card")
]
ScopeHandles: TypeAlias = Annotated[bool, typer.Option("--handles", help="that of the handles of --realm")]


@send_command(app, "create", "veen id create --client ann", "veen id create --client ann --info name=Ann")
def create(
    asked: SendOptions,
    info: Annotated[
        list[str] | None, typer.Option("--info", metavar="NAME=TEXT", help="something to say of the principal")
    ] = None,
) -> None:
    """Begin a principal, or say something else of it.

    The key of its stream is made where there is none. A second record may bring other info; the key it is of, and when
    it began, stay as they are.
    """
    from veen.cli.id import principals
    from veen.cli.kit import send_event
    from veen.core import cbor
    from veen.overlays.identity import IdentityPrincipal, PrincipalStream

    principal_pk = principals.own_key(asked.client)
    said = dict(principals.pair_of(one) for one in info or ())
    event = IdentityPrincipal(principal_pk, principals.now(), cbor.encode(said) if said else None)
    overlay, stream = principals.folding(PrincipalStream(principal_pk), asked.stream)
    shown = principals.shown({"principal_pk": principal_pk})
    send_event.send_checked(asked, overlay, lambda _: event, shown, stream=stream, blind=event, begins=True)


@read_command(app, "show", "veen id show --client ann", "veen id show --principal ann.card --prove --json")
def show(asked: ReadOptions, principal: Principal = None) -> None:
    """Show a principal: when it began, and what is said of it."""
    from veen.cli.id import principals
    from veen.cli.kit import output, read_state, render_state
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable, cbor
    from veen.overlays.identity import PrincipalStream, identity_state, principal_id, views

    principal_pk = principals.principal_of(principal, asked.client)
    overlay, stream = principals.folding(PrincipalStream(principal_pk), asked.stream)

    def look(reading: "IdReading") -> "StateAnswer":
        part = identity_state.principal(principal_pk)
        found = views.principal(reading.states, principal_pk)
        if found is None:
            raise hinted(Unavailable("nothing is said of this principal"), "veen id create begins one")
        info = None if found.info is None else cbor.decode(found.info)
        names = {"principal_pk": principal_pk, "principal_id": principal_id(principal_pk)}
        rows: dict[str, output.Value] = {**names, "created_at": output.moment(found.created_at)}
        data = {**names, "created_at": found.created_at, "info": render_state.plain_json(info)}
        return read_state.StateAnswer(facts={**rows, "info": render_state.plain_cell(info)}, data=data, parts=(part,))

    read_state.show_state(asked, overlay, look, stream=stream)


@send_command(
    app,
    "revoke",
    "veen id revoke --client ann --auth-ref 64-HEX-DIGITS --reason lost",
    "veen id revoke --client ann --realm shop --account 64-HEX-DIGITS",
)
def revoke(
    asked: SendOptions,
    auth_ref: Annotated[
        str | None, typer.Option("--auth-ref", metavar="HEX", help="a capability, by its auth_ref")
    ] = None,
    account: Annotated[str | None, typer.Option("--account", metavar="HEX", help="an account, by its ctx_id")] = None,
    realm: Annotated[
        str | None,
        typer.Option(
            "--realm", metavar="NAME|HEX", help="where the account is disabled", show_default="wherever it is"
        ),
    ] = None,
    as_org: Annotated[bool, typer.Option("--as-org", help="as the organization of your own keys")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why")] = None,
) -> None:
    """Revoke a capability, an account or an organization.

    With --as-org and neither of the others it is the organization itself. A revocation is for good, and holds from
    its entry on: applications that read the stream refuse what it names.
    """
    from plumbing.cli.command import Misuse
    from veen.cli.id import principals
    from veen.cli.kit import send_event
    from veen.overlays.identity import IdentityRevocation, OrgStream, PrincipalStream, Scope, org_id

    own = principals.own_key(asked.client)
    if auth_ref is None and account is None and not as_org:
        raise Misuse("nothing is named that could be revoked", "give --auth-ref HEX or --account HEX")
    scope: Scope = OrgStream(org_id(own)) if as_org else PrincipalStream(own)
    named = {
        "revoked_auth_ref": None if auth_ref is None else principals.id_of(auth_ref, "an auth_ref"),
        "ctx_id": None if account is None else principals.id_of(account, "a ctx_id"),
        "realm_id": principals.realm_or_all(realm),
    }
    by = {"principal_pk": None if as_org else own, "org_id": org_id(own) if as_org else None}
    event = IdentityRevocation(**by, **named, reason=reason, ts=principals.now())
    overlay, stream = principals.folding(scope, asked.stream)
    send_event.send_checked(
        asked, overlay, lambda _: event, principals.shown({**by, **named}), stream=stream, blind=event
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
    """Show which stream a principal, an account, an organization or handles are on.

    With --org and --realm it is that of the organization's twin in the realm.
    """
    import sys

    from veen.cli.kit import output

    scope = _scope(principal, realm, org, handles, client)
    if as_json:
        named = {field.name: getattr(scope, field.name) for field in fields(scope)}
        output.document({**named, "stream_id": scope.stream_id})
    else:
        sys.stdout.write(scope.stream_id.hex() + "\n")


@read_command(app, "faults", "veen id faults --client ann", "veen id faults --org company.card --at 100 --json")
def faults(
    asked: ReadOptions,
    principal: Principal = None,
    realm: ScopeRealm = None,
    org: ScopeOrg = None,
    handles: ScopeHandles = False,
) -> None:
    """List the entries that changed nothing for id, with their reasons.

    They stay in the log, and no command stops at them. A stream of one principal, account or organization says nothing
    of another; on one that --stream names, several may be kept together.
    """
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.cli.kit.faults_command import fault_answer

    overlay, stream = principals.folding(_scope(principal, realm, org, handles, asked.client), asked.stream)
    read_state.show_state(asked, overlay, fault_answer("veen id"), stream=stream)


def _scope(principal: str | None, realm: str | None, org: str | None, handles: bool, client: Path | None) -> "Scope":
    """Whose stream the options name."""
    from plumbing.cli.command import Misuse
    from veen.cli.id import principals
    from veen.overlays.identity import CtxStream, HandleStream, OrgStream, PrincipalStream

    realm_id = principals.realm_or_all(realm)
    if handles:
        if realm_id is None:
            raise Misuse("handles are of a realm", "give --realm NAME")
        return HandleStream(realm_id)
    if org is not None:
        return OrgStream(principals.org_of(org, client), realm_id)
    if realm_id is not None:
        return CtxStream.of(principals.principal_of(principal, client), realm_id)
    return PrincipalStream(principals.principal_of(principal, client))
