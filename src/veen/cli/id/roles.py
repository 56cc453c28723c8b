"""`veen id role`: roles that an organization grants to accounts and groups."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.id import principals
from veen.cli.id.principals import IdReading, InRealm, Org, ScopedTo
from veen.cli.kit import read_state, send_event
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.overlays import identity, identity_views
from veen.overlays.identity_events import RoleBinding, RoleRevoke, group_id

app = group(
    "role",
    """Grant roles of an organization to accounts and groups, and revoke them.

    An account has its own roles and those of its groups. A role of one realm is valid only there.
    """,
)

Role: TypeAlias = Annotated[str, typer.Argument(metavar="ROLE", help="the role, such as admin or editor")]
ToAccounts: TypeAlias = Annotated[
    list[str] | None, typer.Option("--account", metavar="HEX", help="an account, by its ctx_id; can be repeated")
]
ToGroups: TypeAlias = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="a group, by its local name; can be repeated")
]


@send_command(app, "grant", "veen id role grant admin --group staff --client company")
def grant(
    options: SendOptions,
    role: Role,
    account: ToAccounts = None,
    group_name: ToGroups = None,
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Grant a role to accounts or groups."""
    _bind(options, role, tuple(account or ()), tuple(group_name or ()), (realm, org, scoped), grants=True)


@send_command(app, "revoke", "veen id role revoke admin --group staff --client company")
def revoke(
    options: SendOptions,
    role: Role,
    account: ToAccounts = None,
    group_name: ToGroups = None,
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Revoke a role of accounts or groups."""
    _bind(options, role, tuple(account or ()), tuple(group_name or ()), (realm, org, scoped), grants=False)


@read_command(
    app, "list", "veen id role list 64-HEX-DIGITS --org company.card", "veen id role list 64-HEX-DIGITS --json"
)
def list_(
    options: ReadOptions,
    account: Annotated[str, typer.Argument(metavar="CTX_ID", help="the account, by its ctx_id")],
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """List the roles of an account: its own and those of its groups."""

    scope = principals.org_scope(org, scoped, options.client)
    ctx_id, realm_id = principals.id_of(account, "a ctx_id"), principals.realm_or_all(realm) or scope.realm_id
    overlay, stream = principals.folding(scope, options.stream)

    def look(reading: IdReading) -> StateAnswer:
        states, org_id = reading.states, scope.own_id
        found, groups = (
            sorted(identity_views.roles(states, org_id, ctx_id, realm_id)),
            identity_views.groups_of(states, org_id, ctx_id),
        )
        proved = [identity.part_key(identity.GROUPS_OF, org_id, ctx_id)]
        for one in (realm_id, None) if realm_id else (None,):
            proved.append(identity.part_key(identity.ROLES_OF_CTX, org_id, ctx_id, one))
            proved += (identity.part_key(identity.ROLES_OF_GROUP, org_id, group_id, one) for group_id in groups)
        data = {"org_id": org_id, "ctx_id": ctx_id, "realm_id": realm_id, "roles": found, "groups": groups}
        rows = [(printable(role),) for role in found]
        present = tuple(part for part in proved if part in states)
        return read_state.StateAnswer(columns=("role",), rows=rows, data=data, parts=present)

    read_state.show_state(options, overlay, look, stream=stream)


def _bind(
    options: SendOptions,
    role: str,
    accounts: tuple[str, ...],
    groups: tuple[str, ...],
    where: tuple[str | None, str | None, str | None],
    *,
    grants: bool,
) -> None:
    if not accounts and not groups:
        raise Misuse("missing --account or --group", "give --account HEX or --group NAME")
    realm, org, scoped = where
    scope = principals.org_scope(org, scoped, options.client)
    realm_id = principals.realm_or_all(realm) or scope.realm_id
    to_ctx = principals.ids_of(accounts, "a ctx_id") or None
    to_group = tuple(group_id(scope.own_id, one) for one in groups) or None
    kind = RoleBinding if grants else RoleRevoke
    event = kind(scope.own_id, realm_id, role, to_ctx, to_group, principals.now())
    overlay, stream = principals.folding(scope, options.stream)
    shown = {"role": role, **principals.shown({"org_id": scope.own_id, "realm_id": realm_id})}
    send_event.send_checked(options, overlay, lambda _: event, shown, stream=stream, blind=event)
