"""`veen id`: identities of people, devices and organizations, held as entries in streams instead of by a provider."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, command, group, option
from veen.cli.id import auth, context, device, handle, link, orgs, principals
from veen.cli.id.principals import Principal, Reason, ScopeSender, account_id
from veen.cli.kit import context_file, key_files
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, Result
from veen.cli.kit.state_session import (
    Answer,
    ReadSession,
    SendSession,
    SentResult,
    faults_answer,
    read_command,
    send_command,
)
from veen.cli.kit.values import id_parser
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
for _subcommand in (
    device.app,
    context.app,
    orgs.org_app,
    orgs.group_app,
    orgs.role_app,
    handle.app,
    link.app,
    auth.app,
):
    app.add_typer(_subcommand)


ScopeRealm: TypeAlias = Annotated[
    bytes | None, option("--realm NAME|HEX", "the stream of the account in this realm", parser=principals.realm_id_of)
]
ScopeOrg: TypeAlias = Annotated[
    bytes | None,
    option(
        "--org HEX|PATH",
        "the stream of an organization: org_id, directory or card",
        parser=principals.org_id_of,
    ),
]
ScopeHandles: TypeAlias = Annotated[bool, option("--handles", "the stream of the handles of --realm")]


@send_command(app, "create", "veen id create --client ann", "veen id create --client ann --info name=Ann")
async def create(
    session: SendSession,
    info: Annotated[list[str] | None, option("--info NAME=TEXT", "information about the principal")] = None,
) -> SentResult:
    """Create a principal, or change its info.

    Creates the key of its stream if there is none. A later record replaces the info; the principal's key and its
    creation time stay as they are.
    """
    pairs, principal_pk = principals.pairs_of(info), principals.own_key(session)
    event = IdentityPrincipal(principal_pk, principals.now(), cbor.encode(pairs) if pairs else None)
    sender = ScopeSender(session, PrincipalStream(principal_pk), begins=True)
    return await sender.send(event, principal_pk=principal_pk)


@read_command(app, "show", "veen id show --client ann", "veen id show --principal ann.card --prove --json")
async def show(session: ReadSession, principal: Principal = None) -> Answer:
    """Show a principal: its creation time and its info."""
    principal_pk = principal or principals.own_key(session)
    state = await principals.open_scope(session, PrincipalStream(principal_pk))
    found = identity_views.principal(state.states, principal_pk)
    if found is None:
        raise hinted(Unavailable(f"there is no record of principal {principal_pk.hex()}"), "veen id create creates one")
    data = {
        "principal_pk": principal_pk,
        "principal_id": principal_id(principal_pk),
        "created_at": Moment(found.created_at),
        "info": None if found.info is None else cbor.decode(found.info),
    }
    return Answer(data, parts=(identity.part_key(identity.PRINCIPAL, principal_pk),))


@send_command(
    app,
    "revoke",
    "veen id revoke --client ann --auth-ref 64-HEX-DIGITS --reason lost",
    "veen id revoke --client ann --realm shop --account 64-HEX-DIGITS",
)
async def revoke(
    session: SendSession,
    auth_ref: Annotated[
        bytes | None, option("--auth-ref HEX", "a capability, by its auth_ref", parser=id_parser("an auth_ref"))
    ] = None,
    account: Annotated[bytes | None, option("--account HEX", "an account, by its ctx_id", parser=account_id)] = None,
    realm: Annotated[
        bytes | None,
        option(
            "--realm NAME|HEX",
            "the realm in which the account is disabled",
            default="all realms",
            parser=principals.realm_id_of,
        ),
    ] = None,
    as_org: Annotated[bool, option("--as-org", "act as the organization of your own keys")] = False,
    reason: Reason = None,
) -> SentResult:
    """Revoke a capability, an account or an organization.

    --as-org without --auth-ref and --account revokes the organization itself. A revocation is permanent and takes
    effect at its entry: applications that read the stream reject what it names.
    """
    if auth_ref is None and account is None and not as_org:
        raise Misuse("missing --auth-ref or --account", "give --auth-ref HEX or --account HEX, or --as-org")
    own = principals.own_key(session)
    scope: Scope = OrgStream(org_id(own)) if as_org else PrincipalStream(own)
    by = {"principal_pk": None if as_org else own, "org_id": org_id(own) if as_org else None}
    named = {"revoked_auth_ref": auth_ref, "ctx_id": account, "realm_id": realm}
    event = IdentityRevocation(**by, **named, reason=reason, ts=principals.now())
    return await ScopeSender(session, scope).send(event, **by, **named)


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
    scope: Any = _scope(principal, realm, org, handles, client)
    named = {field.name: getattr(scope, field.name) for field in fields(scope)}
    Result({**named, "stream_id": scope.stream_id}, text=scope.stream_id.hex()).show(as_json)


@read_command(app, "faults", "veen id faults --client ann", "veen id faults --org company.card --at 100 --json")
async def faults(
    session: ReadSession,
    principal: Principal = None,
    realm: ScopeRealm = None,
    org: ScopeOrg = None,
    handles: ScopeHandles = False,
) -> Answer:
    """List the entries that veen id could not apply, with the reasons.

    They stay in the log. Every command skips them. Records of others are faults on the own stream of a principal,
    account or organization; a stream that --stream names may hold several of them.
    """
    scope = _scope(principal, realm, org, handles, session.options.client)
    return faults_answer("veen id", await principals.open_scope(session, scope))


def _scope(
    principal: bytes | None, realm: bytes | None, org: bytes | None, handles: bool, client: Path | None
) -> Scope:
    if handles:
        if realm is None:
            raise Misuse("--handles needs a realm", "give --realm NAME")
        return HandleStream(realm)
    if org is not None:
        return OrgStream(org, realm)
    own = principal or key_files.read_card(context_file.need_client(client)).id_sign
    return PrincipalStream(own) if realm is None else CtxStream.of(own, realm)
