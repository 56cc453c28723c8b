"""`veen id role`: what accounts and groups may do, as an organization says it."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import group
from veen.cli.id.principals import InRealm, Org, ScopedTo
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from veen.cli.id.principals import IdReading
    from veen.cli.kit.read_state import StateAnswer

app = group(
    "role",
    """Give roles of an organization to accounts and groups, and take them back.

    Roles add up: an account has its own and those of its groups. A role of one realm holds there alone.
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
    asked: SendOptions,
    role: Role,
    account: ToAccounts = None,
    group_name: ToGroups = None,
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Give a role to accounts or groups."""
    _bind(asked, role, tuple(account or ()), tuple(group_name or ()), (realm, org, scoped), grants=True)


@send_command(app, "revoke", "veen id role revoke admin --group staff --client company")
def revoke(
    asked: SendOptions,
    role: Role,
    account: ToAccounts = None,
    group_name: ToGroups = None,
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Take a role back from accounts or groups that were given it."""
    _bind(asked, role, tuple(account or ()), tuple(group_name or ()), (realm, org, scoped), grants=False)


@read_command(
    app, "list", "veen id role list 64-HEX-DIGITS --org company.card", "veen id role list 64-HEX-DIGITS --json"
)
def list_(
    asked: ReadOptions,
    account: Annotated[str, typer.Argument(metavar="CTX_ID", help="the account, by its ctx_id")],
    realm: InRealm = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """List the roles of an account: its own, and those of the groups it is in."""
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.cli.kit.sanitize import printable
    from veen.overlays.identity import identity_state, views

    scope = principals.org_scope(org, scoped, asked.client)
    ctx_id, realm_id = principals.id_of(account, "a ctx_id"), principals.realm_or_all(realm) or scope.realm_id
    overlay, stream = principals.folding(scope, asked.stream)

    def look(reading: "IdReading") -> "StateAnswer":
        states, org_id = reading.states, scope.own_id
        found, groups = sorted(views.roles(states, org_id, ctx_id, realm_id)), views.groups_of(states, org_id, ctx_id)
        proved = [identity_state.groups_of(org_id, ctx_id)]
        for one in (realm_id, None) if realm_id else (None,):
            proved.append(identity_state.roles_of_ctx(org_id, ctx_id, one))
            proved += (identity_state.roles_of_group(org_id, group_id, one) for group_id in groups)
        data = {"org_id": org_id, "ctx_id": ctx_id, "realm_id": realm_id, "roles": found, "groups": groups}
        rows = [(printable(role),) for role in found]
        there = tuple(part for part in proved if part in states)
        return read_state.StateAnswer(columns=("role",), rows=rows, data=data, parts=there)

    read_state.show_state(asked, overlay, look, stream=stream)


def _bind(
    asked: SendOptions,
    role: str,
    accounts: tuple[str, ...],
    groups: tuple[str, ...],
    where: tuple[str | None, str | None, str | None],
    *,
    grants: bool,
) -> None:
    from plumbing.cli.command import Misuse
    from veen.cli.id import principals
    from veen.cli.kit import send_event
    from veen.overlays.identity import RoleBinding, RoleRevoke, group_id

    if not accounts and not groups:
        raise Misuse("a role is for someone", "give --account HEX or --group NAME")
    realm, org, scoped = where
    scope = principals.org_scope(org, scoped, asked.client)
    realm_id = principals.realm_or_all(realm) or scope.realm_id
    to_ctx = principals.ids_of(accounts, "a ctx_id") or None
    to_group = tuple(group_id(scope.own_id, one) for one in groups) or None
    kind = RoleBinding if grants else RoleRevoke
    event = kind(scope.own_id, realm_id, role, to_ctx, to_group, principals.now())
    overlay, stream = principals.folding(scope, asked.stream)
    shown = {"role": role, **principals.shown({"org_id": scope.own_id, "realm_id": realm_id})}
    send_event.send_checked(asked, overlay, lambda _: event, shown, stream=stream, blind=event)
