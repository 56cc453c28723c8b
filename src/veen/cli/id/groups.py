"""`veen id group`: who is in which group of an organization."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import group
from veen.cli.id.principals import Accounts, Org, ScopedTo
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from veen.cli.id.principals import IdReading
    from veen.cli.kit.read_state import StateAnswer

app = group(
    "group",
    """Add accounts to groups of an organization, and take them out.

    A group is known by its local name, which never changes; --called changes what it is shown as. Whoever was added is
    a member until a later entry removes them.
    """,
)

Local: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="the group, by its local name")]
Called: TypeAlias = Annotated[
    str | None, typer.Option("--called", metavar="TEXT", help="what it is called", show_default="what it was")
]


@send_command(
    app, "add", "veen id group add staff 64-HEX-DIGITS --client company", "veen id group add staff --called Staff"
)
def add(
    asked: SendOptions,
    name: Local,
    accounts: Annotated[list[str] | None, typer.Argument(metavar="CTX_ID", help="which accounts")] = None,
    called: Called = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Add accounts to a group; without any, name the group."""
    _change(asked, name, tuple(accounts or ()), (), called, org, scoped)


@send_command(app, "remove", "veen id group remove staff 64-HEX-DIGITS --client company")
def remove(
    asked: SendOptions, name: Local, accounts: Accounts, called: Called = None, org: Org = None, scoped: ScopedTo = None
) -> None:
    """Take accounts out of a group; they can be added again."""
    _change(asked, name, (), tuple(accounts), called, org, scoped)


@read_command(
    app, "list", "veen id group list --client company", "veen id group list --org company.card --at 12 --json"
)
def list_(asked: ReadOptions, org: Org = None, scoped: ScopedTo = None) -> None:
    """List the groups of an organization, and who is in them."""
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.cli.kit.sanitize import printable, short
    from veen.overlays.identity import identity_state, views

    scope = principals.org_scope(org, scoped, asked.client)
    overlay, stream = principals.folding(scope, asked.stream)

    def look(reading: "IdReading") -> "StateAnswer":
        states, org_id = dict(reading.states), scope.own_id
        found = tuple(views.groups(states, org_id))
        rows = [
            (short(one.group_id), printable(one.name), None if member is None else short(member))
            for one in found
            for member in one.members or (None,)
        ]
        data = [
            {"group_id": one.group_id, "name": one.name, "realm_id": one.realm_id, "members": one.members}
            for one in found
        ]
        kinds = (identity_state.GROUP + org_id, identity_state.GROUPS_OF + org_id)
        proved = tuple(sorted(part for part in states if part.startswith(kinds)))
        columns = ("group_id", "name", "member")
        return read_state.StateAnswer(columns=columns, rows=rows, data={"org_id": org_id, "groups": data}, parts=proved)

    read_state.show_state(asked, overlay, look, stream=stream)


def _change(
    asked: SendOptions,
    name: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    called: str | None,
    org: str | None,
    scoped: str | None,
) -> None:
    from veen.cli.id import principals
    from veen.cli.kit import send_event
    from veen.overlays.identity import IdentityGroup, group_id, identity_state
    from veen.overlays.identity.identity_state import GroupName

    scope = principals.org_scope(org, scoped, asked.client)
    group_ = group_id(scope.own_id, name)
    joins, leaves = (principals.ids_of(listed, "a ctx_id") for listed in (added, removed))
    overlay, stream = principals.folding(scope, asked.stream)

    def make(reading: "IdReading | None") -> IdentityGroup:
        found = None if reading is None else reading.state(identity_state.group(scope.own_id, group_))
        now = principals.now()
        shown_as, ts = (found.name, max(now, found.ts)) if isinstance(found, GroupName) else (name, now)
        return IdentityGroup(
            scope.own_id, scope.realm_id, group_, called or shown_as, joins or None, leaves or None, ts
        )

    shown = principals.shown({"org_id": scope.own_id, "group_id": group_})
    send_event.send_checked(asked, overlay, make, shown, stream=stream, blind=make(None))
