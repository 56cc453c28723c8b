"""`veil subscribe`: the subscriptions of a node."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client

app = group(
    "subscribe",
    """Choose the tags that this node requests, opens and forwards.

    A node does not forward shards of other tags. A new node is subscribed to its own mailbox. Joining a group
    subscribes to the group.
    """,
)

Remove: TypeAlias = Annotated[bool, typer.Option("--remove", help="remove the subscription")]


def _change(given: DataDir, remove: bool, as_json: bool, **fields: object) -> None:
    with client(given) as api:
        found = (api.delete_body if remove else api.post)("/v1/subscriptions", **fields)
    output.facts(found, as_json)


@command(app, "feed", "veil subscribe feed bob", "veil subscribe feed bob --namespace 40")
def feed(
    who: Annotated[str, typer.Argument(metavar="WHO", help="a contact, or a publisher's key in hex")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the feed of a publisher, and forward it."""
    _change(given, remove, as_json, kind="feed", publisher=who, namespace=namespace)


@command(app, "tag", "veil subscribe tag 9f2c… --namespace 1")
def tag(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="the tag of a feed, in hex")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the feed with this tag, and forward it."""
    _change(given, remove, as_json, kind="feed", tag=tag, namespace=namespace)


@command(app, "mailbox", "veil subscribe mailbox --namespace 40")
def mailbox(
    namespace: Namespace = None, remove: Remove = False, given: DataDir = None, as_json: JsonOption = False
) -> None:
    """Receive private messages in a namespace."""
    _change(given, remove, as_json, kind="mailbox", namespace=namespace)


@command(app, "group", "veil subscribe group friends --namespace 40")
def group_(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="a group that this node is in")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the messages of a group in a namespace."""
    _change(given, remove, as_json, kind="group", group=name, namespace=namespace)


@command(app, "relay", "veil subscribe relay bob", "veil subscribe relay --tag 9f2c…")
def relay(
    who: Annotated[
        str | None,
        typer.Argument(metavar="WHO", help="the publisher", show_default="none, with --tag or --mailbox-of"),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="HEX", help="a tag instead of a publisher")] = None,
    mailbox_of: Annotated[
        str | None, typer.Option("--mailbox-of", metavar="CONTACT", help="the mailbox of a contact instead")
    ] = None,
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Forward and cache a feed or mailbox for others, without opening it."""
    kind = "relay-mailbox" if mailbox_of else "relay"
    _change(given, remove, as_json, kind=kind, publisher=who, tag=tag, contact=mailbox_of, namespace=namespace)


@command(app, "list", "veil subscribe list", "veil subscribe list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the subscriptions of this node."""
    with client(given) as api:
        found = api.get("/v1/subscriptions")
    output.table(("kind", "namespace", "key"), [(one["kind"], one["namespace"], one["key"]) for one in found], as_json)
