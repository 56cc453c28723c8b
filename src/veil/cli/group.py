"""`veil group`: groups of nodes that share a secret."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import command
from plumbing.cli.command import group as declare
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = declare(
    "group",
    """Share a secret with several nodes, and replace it when one leaves.

    A node that receives the secret is a member. A node that does not receive the next secret cannot read later
    messages of the group.
    """,
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="its name, or the first digits of its id")]
_COLUMNS = ("name", "group_id", "generation")


@command(app, "create", "veil group create friends")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a local name for the group")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Create a group with this node as its first member."""
    with client(given) as api:
        _show(api.post("/v1/groups", name=name), as_json)


@command(app, "list", "veil group list", "veil group list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the groups that this node is in."""
    with client(given) as api:
        found = api.get("/v1/groups")
    output.table(_COLUMNS, [[one[column] for column in _COLUMNS] for one in found], as_json, data=found)


@command(app, "invite", "veil group invite friends bob")
def invite(
    group: Name,
    who: Annotated[str, typer.Argument(metavar="CONTACT", help="the contact to invite")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Send a contact the newest secret of a group, by private delivery."""
    with client(given) as api:
        output.facts(api.post("/v1/groups/invite", group=group, contact=who), as_json)


@command(app, "rotate", "veil group rotate friends --stay bob --stay carol")
def rotate(
    group: Name,
    stay: Annotated[list[str] | None, typer.Option("--stay", metavar="CONTACT", help="gets the new secret")] = None,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the secret of a group, and send the new one to the contacts that stay."""
    with client(given) as api:
        _show(api.post("/v1/groups/rotate", group=group, stay=stay or []), as_json)


@command(app, "leave", "veil group leave friends")
def leave(group: Name, given: DataDir = None, as_json: JsonOption = False) -> None:
    """Leave a group and delete its secrets."""
    with client(given) as api:
        _show(api.post("/v1/groups/leave", group=group), as_json)


def _show(found: dict[str, str | int], as_json: bool) -> None:
    output.facts({column: found[column] for column in _COLUMNS}, as_json, data=found)
