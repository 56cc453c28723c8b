"""`veen id group`: groups of an organization and their members."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import group
from veen.cli.id import principals
from veen.cli.id.principals import Accounts, IdReading, Org, ScopedTo
from veen.cli.kit import read_state, send_event
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.overlays import identity, identity_views
from veen.overlays.identity import GroupName
from veen.overlays.identity_events import IdentityGroup, group_id

app = group(
    "group",
    """Add accounts to groups of an organization, and remove them.

    A group is identified by its local name, which never changes; --called changes its display name. An account stays a
    member until a later entry removes it.
    """,
)

Local: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="the group, by its local name")]
Called: TypeAlias = Annotated[
    str | None, typer.Option("--called", metavar="TEXT", help="its display name", show_default="the current one")
]


@send_command(
    app, "add", "veen id group add staff 64-HEX-DIGITS --client company", "veen id group add staff --called Staff"
)
def add(
    options: SendOptions,
    name: Local,
    accounts: Annotated[list[str] | None, typer.Argument(metavar="CTX_ID", help="the accounts")] = None,
    called: Called = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Add accounts to a group; without any, create or rename the group."""
    _change(options, name, tuple(accounts or ()), (), called, org, scoped)


@send_command(app, "remove", "veen id group remove staff 64-HEX-DIGITS --client company")
def remove(
    options: SendOptions,
    name: Local,
    accounts: Accounts,
    called: Called = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Remove accounts from a group.

    They can be added again.
    """
    _change(options, name, (), tuple(accounts), called, org, scoped)


@read_command(
    app, "list", "veen id group list --client company", "veen id group list --org company.card --at 12 --json"
)
def list_(options: ReadOptions, org: Org = None, scoped: ScopedTo = None) -> None:
    """List the groups of an organization and their members."""

    scope = principals.org_scope(org, scoped, options.client)
    overlay, stream = principals.folding(scope, options.stream)

    def look(reading: IdReading) -> StateAnswer:
        states, org_id = dict(reading.states), scope.own_id
        found = tuple(identity_views.groups(states, org_id))
        rows = [
            (short(one.group_id), printable(one.name), None if member is None else short(member))
            for one in found
            for member in one.members or (None,)
        ]
        data = [
            {"group_id": one.group_id, "name": one.name, "realm_id": one.realm_id, "members": one.members}
            for one in found
        ]
        kinds = (identity.GROUP + org_id, identity.GROUPS_OF + org_id)
        proved = tuple(sorted(part for part in states if part.startswith(kinds)))
        columns = ("group_id", "name", "member")
        return read_state.StateAnswer(columns=columns, rows=rows, data={"org_id": org_id, "groups": data}, parts=proved)

    read_state.show_state(options, overlay, look, stream=stream)


def _change(
    options: SendOptions,
    name: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    called: str | None,
    org: str | None,
    scoped: str | None,
) -> None:
    scope = principals.org_scope(org, scoped, options.client)
    group_ = group_id(scope.own_id, name)
    joins, leaves = (principals.ids_of(listed, "a ctx_id") for listed in (added, removed))
    overlay, stream = principals.folding(scope, options.stream)

    def make(reading: IdReading | None) -> IdentityGroup:
        found = None if reading is None else reading.state(identity.part_key(identity.GROUP, scope.own_id, group_))
        now = principals.now()
        current_name, ts = (found.name, max(now, found.ts)) if isinstance(found, GroupName) else (name, now)
        return IdentityGroup(
            scope.own_id, scope.realm_id, group_, called or current_name, joins or None, leaves or None, ts
        )

    shown = principals.shown({"org_id": scope.own_id, "group_id": group_})
    send_event.send_checked(options, overlay, make, shown, stream=stream, blind=make(None))
