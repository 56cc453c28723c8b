"""`veen id group`: who is in which group of an organization."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface.command import group
from veen.cli.overlay.declaring import Reads, Says, reads, says
from veen.cli.overlay.identity.whom import Accounts, Org, ScopedTo

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer
    from veen.cli.overlay.identity.whom import IdReading

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


@says(app, "add", "veen id group add staff 64-HEX-DIGITS --client company", "veen id group add staff --called Staff")
def add(
    asked: Says,
    name: Local,
    accounts: Annotated[list[str] | None, typer.Argument(metavar="CTX_ID", help="which accounts")] = None,
    called: Called = None,
    org: Org = None,
    scoped: ScopedTo = None,
) -> None:
    """Add accounts to a group; without any, name the group."""
    _change(asked, name, tuple(accounts or ()), (), called, org, scoped)


@says(app, "remove", "veen id group remove staff 64-HEX-DIGITS --client company")
def remove(
    asked: Says, name: Local, accounts: Accounts, called: Called = None, org: Org = None, scoped: ScopedTo = None
) -> None:
    """Take accounts out of a group; they can be added again."""
    _change(asked, name, (), tuple(accounts), called, org, scoped)


@reads(app, "list", "veen id group list --client company", "veen id group list --org company.card --at 12 --json")
def list_(asked: Reads, org: Org = None, scoped: ScopedTo = None) -> None:
    """List the groups of an organization, and who is in them."""
    from veen.cli.client.showing import printable, short
    from veen.cli.overlay import asking
    from veen.cli.overlay.identity import whom
    from veen.overlays.identity import parts, views

    scope = whom.org_scope(org, scoped, asked.client)
    overlay, stream = whom.folding(scope, asked.stream)

    def look(reading: "IdReading") -> "Answer":
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
        kinds = (parts.GROUP + org_id, parts.GROUPS_OF + org_id)
        proved = tuple(sorted(part for part in states if part.startswith(kinds)))
        columns = ("group_id", "name", "member")
        return asking.Answer(columns=columns, rows=rows, data={"org_id": org_id, "groups": data}, parts=proved)

    asking.answer(asked, overlay, look, stream=stream)


def _change(
    asked: Says,
    name: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    called: str | None,
    org: str | None,
    scoped: str | None,
) -> None:
    from veen.cli.overlay import saying
    from veen.cli.overlay.identity import whom
    from veen.overlays.identity import Group, group_id, parts
    from veen.overlays.identity.state import Named

    scope = whom.org_scope(org, scoped, asked.client)
    group_ = group_id(scope.own_id, name)
    joins, leaves = (whom.ids_of(listed, "a ctx_id") for listed in (added, removed))
    overlay, stream = whom.folding(scope, asked.stream)

    def make(reading: "IdReading | None") -> Group:
        found = None if reading is None else reading.state(parts.group(scope.own_id, group_))
        now = whom.now()
        shown_as, ts = (found.name, max(now, found.ts)) if isinstance(found, Named) else (name, now)
        return Group(scope.own_id, scope.realm_id, group_, called or shown_as, joins or None, leaves or None, ts)

    shown = whom.shown({"org_id": scope.own_id, "group_id": group_})
    saying.say(asked, overlay, make, shown, stream=stream, blind=make(None))
