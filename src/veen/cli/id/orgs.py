"""`veen id org`, `veen id group` and `veen id role`: organizations, their groups, and the roles that they grant."""

from typing import Annotated, TypeAlias

from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.id import principals
from veen.cli.id.principals import Accounts, InRealm, Org, ScopedTo, ScopeSender, account_id
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, fields_of
from veen.cli.kit.state_session import Answer, ReadSession, SendSession, SentResult, read_command, send_command
from veen.core import Unavailable, cbor
from veen.overlays import identity, identity_views
from veen.overlays.identity import GroupName
from veen.overlays.identity_events import IdentityGroup, OrgProfile, OrgStream, RoleBinding, RoleRevoke, group_id

org_app = group(
    "org",
    """Create and show organizations.

    An organization is the long-term key of a client directory. With --scoped it has a twin in one realm with its own
    stream, groups and roles.
    """,
)


@send_command(org_app, "create", "veen id org create --client company --name Company")
async def create_org(
    session: SendSession,
    name: Annotated[str | None, option("--name TEXT", "the display name")] = None,
    metadata: Annotated[list[str] | None, option("--meta NAME=TEXT", "information about the organization")] = None,
    scoped: ScopedTo = None,
) -> SentResult:
    """Create the organization of your own keys, or replace its profile.

    Creates the key of its stream if there is none.
    """
    pairs = principals.pairs_of(metadata)
    scope = principals.org_scope(None, scoped, session)
    sender = ScopeSender(session, scope, begins=True)
    state = await sender.state()
    found = None if state is None else identity_views.org_profile(state.states, scope.own_id)
    updated_at = principals.now(found.updated_at if found else 0)
    created_at = found.created_at if found else updated_at
    event = OrgProfile(scope.own_id, name, cbor.encode(pairs) if pairs else None, created_at, updated_at)
    return await sender.send(event, org_id=scope.own_id, realm_id=scope.realm_id)


@read_command(org_app, "show", "veen id org show --client company", "veen id org show --org company.card --prove")
async def show_org(session: ReadSession, org: Org = None, scoped: ScopedTo = None) -> Answer:
    """Show an organization: its profile, and whether it is revoked."""
    scope = principals.org_scope(org, scoped, session)
    states, org_id = (await principals.open_scope(session, scope)).states, scope.own_id
    found, revoked = (
        identity_views.org_profile(states, org_id),
        identity_views.org_revocation(states, org_id, scope.realm_id),
    )
    if found is None:
        raise hinted(
            Unavailable(f"there is no record of organization {org_id.hex()}"), "veen id org create creates one"
        )
    data = {
        "org_id": org_id,
        "realm_id": scope.realm_id,
        "display_name": found.display_name,
        "metadata": None if found.metadata is None else cbor.decode(found.metadata),
        "created_at": Moment(found.created_at),
        "updated_at": Moment(found.updated_at),
        "revoked_at": Moment.of(revoked.ts if revoked else None),
    }
    revocations = [
        part
        for one in {scope.realm_id, None}
        if (part := identity.part_key(identity.REVOKED_ORG, org_id, one)) in states
    ]
    facts = [name for name in data if name != "realm_id"]
    return Answer(data, facts=facts, parts=(identity.part_key(identity.ORG, org_id), *revocations))


group_app = group(
    "group",
    """Add accounts to groups of an organization, and remove them.

    A group is identified by its local name, which never changes; --called changes its display name. An account stays a
    member until a later entry removes it.
    """,
)

Local: TypeAlias = Annotated[str, argument("GROUP", "the group, by its local name")]
Called: TypeAlias = Annotated[str | None, option("--called TEXT", "its display name", default="the current one")]


@send_command(
    group_app, "add", "veen id group add staff 64-HEX-DIGITS --client company", "veen id group add staff --called Staff"
)
async def add_members(
    session: SendSession,
    name: Local,
    accounts: Annotated[list[bytes] | None, argument("CTX_ID", "the accounts", parser=account_id)] = None,
    called: Called = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> SentResult:
    """Add accounts to a group; without any, create or rename the group."""
    return await _change_members(session, name, accounts, None, called, principals.org_scope(org, scoped, session))


@send_command(group_app, "remove", "veen id group remove staff 64-HEX-DIGITS --client company")
async def remove_members(
    session: SendSession,
    name: Local,
    accounts: Accounts,
    called: Called = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> SentResult:
    """Remove accounts from a group.

    They can be added again.
    """
    return await _change_members(session, name, None, accounts, called, principals.org_scope(org, scoped, session))


async def _change_members(
    session: SendSession,
    name: str,
    added: list[bytes] | None,
    removed: list[bytes] | None,
    called: str | None,
    scope: OrgStream,
) -> SentResult:
    org_id, group_ = scope.own_id, group_id(scope.own_id, name)
    joins, leaves = principals.listable(added), principals.listable(removed)
    sender = ScopeSender(session, scope)
    state = await sender.state()
    found = None if state is None else state.state(identity.part_key(identity.GROUP, org_id, group_))
    current_name, ts = (found.name, found.ts) if isinstance(found, GroupName) else (name, 0)
    event = IdentityGroup(org_id, scope.realm_id, group_, called or current_name, joins, leaves, principals.now(ts))
    return await sender.send(event, org_id=org_id, group_id=group_)


@read_command(
    group_app, "list", "veen id group list --client company", "veen id group list --org company.card --at 12 --json"
)
async def list_groups(session: ReadSession, org: Org = None, scoped: ScopedTo = None) -> Answer:
    """List the groups of an organization and their members."""
    scope = principals.org_scope(org, scoped, session)
    states, org_id = dict((await principals.open_scope(session, scope)).states), scope.own_id
    data = [fields_of(one, "group_id", "name", "realm_id", "members") for one in identity_views.groups(states, org_id)]
    kinds = (identity.GROUP + org_id, identity.GROUPS_OF + org_id)
    members = [{**row, "member": member} for row in data for member in row["members"] or (None,)]
    return Answer(
        {"org_id": org_id, "groups": data, "_members": members},
        rows="_members",
        columns=("group_id", "name", "member"),
        parts=tuple(sorted(part for part in states if part.startswith(kinds))),
    )


role_app = group(
    "role",
    """Grant roles of an organization to accounts and groups, and revoke them.

    An account has its own roles and those of its groups. A role of one realm is valid only there.
    """,
)

Role: TypeAlias = Annotated[str, argument("ROLE", "the role, such as admin or editor")]
ToAccounts: TypeAlias = Annotated[
    list[bytes] | None, option("--account HEX", "an account, by its ctx_id; can be repeated", parser=account_id)
]
ToGroups: TypeAlias = Annotated[list[str] | None, option("--group NAME", "a group, by its local name; can be repeated")]


def _add_role_command(name: str, event: type[RoleBinding] | type[RoleRevoke], text: str) -> None:
    """Add `grant` or `revoke`, which differ only in the event that they send."""

    async def change(
        session: SendSession,
        role: Role,
        account: ToAccounts = None,
        group_name: ToGroups = None,
        realm: InRealm = None,
        org: Org = None,
        scoped: ScopedTo = None,
    ) -> SentResult:
        if not account and not group_name:
            raise Misuse("missing --account or --group", "give --account HEX or --group NAME")
        scope = principals.org_scope(org, scoped, session)
        org_id, realm_id = scope.own_id, realm or scope.realm_id
        groups = tuple(group_id(org_id, one) for one in group_name or ()) or None
        made = event(org_id, realm_id, role, principals.listable(account), groups, principals.now())
        return await ScopeSender(session, scope).send(made, role=role, org_id=org_id, realm_id=realm_id)

    change.__doc__ = text
    send_command(role_app, name, f"veen id role {name} admin --group staff --client company")(change)


_add_role_command("grant", RoleBinding, "Grant a role to accounts or groups.")
_add_role_command("revoke", RoleRevoke, "Revoke a role of accounts or groups.")


@read_command(
    role_app, "list", "veen id role list 64-HEX-DIGITS --org company.card", "veen id role list 64-HEX-DIGITS --json"
)
async def list_roles(
    session: ReadSession,
    account: Annotated[bytes, argument("CTX_ID", "the account, by its ctx_id", parser=account_id)],
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> Answer:
    """List the roles of an account: its own and those of its groups."""
    scope = principals.org_scope(org, scoped, session)
    org_id, realm_id = scope.own_id, realm or scope.realm_id
    states = (await principals.open_scope(session, scope)).states
    roles, groups = (
        sorted(identity_views.roles(states, org_id, account, realm_id)),
        identity_views.groups_of(states, org_id, account),
    )
    proved = [identity.part_key(identity.GROUPS_OF, org_id, account)]
    for one in (realm_id, None) if realm_id else (None,):
        proved.append(identity.part_key(identity.ROLES_OF_CTX, org_id, account, one))
        proved += (identity.part_key(identity.ROLES_OF_GROUP, org_id, group_id, one) for group_id in groups)
    data = {"org_id": org_id, "ctx_id": account, "realm_id": realm_id, "roles": roles, "groups": groups}
    return Answer(
        {**data, "_roles": [{"role": role} for role in roles]},
        rows="_roles",
        columns=("role",),
        parts=tuple(part for part in proved if part in states),
    )
