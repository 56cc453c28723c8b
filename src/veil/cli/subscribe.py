"""`veil subscribe`: what a node asks for."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client

app = group(
    "subscribe",
    """Choose what this node asks for, opens and passes on.

    Shards under a tag that no subscription names are not passed on. The mailbox for private messages is subscribed to
    from the start, and a group from when it is joined.
    """,
)

Remove: TypeAlias = Annotated[bool, typer.Option("--remove", help="no longer")]


def _change(given: DataDir, remove: bool, as_json: bool, **asked: object) -> None:
    with client(given) as api:
        found = (api.delete_body if remove else api.post)("/v1/subscriptions", **asked)
    output.facts(found, as_json)


@command(app, "feed", "veil subscribe feed bob", "veil subscribe feed bob --namespace 40")
def feed(
    who: Annotated[str, typer.Argument(metavar="WHO", help="a contact, or a publisher's key in hex")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the feed of a publisher, and pass it on."""
    _change(given, remove, as_json, kind="feed", publisher=who, namespace=namespace)


@command(app, "tag", "veil subscribe tag 9f2c… --namespace 1")
def tag(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="the tag of a feed, in hex")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the feed of a tag, whoever it is by, and pass it on."""
    _change(given, remove, as_json, kind="feed", tag=tag, namespace=namespace)


@command(app, "mailbox", "veil subscribe mailbox --namespace 40")
def mailbox(
    namespace: Namespace = None, remove: Remove = False, given: DataDir = None, as_json: JsonOption = False
) -> None:
    """Be reached by private delivery in a namespace."""
    _change(given, remove, as_json, kind="mailbox", namespace=namespace)


@command(app, "group", "veil subscribe group friends --namespace 40")
def group_(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="a group that this node is in")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read what a group says in a namespace."""
    _change(given, remove, as_json, kind="group", group=name, namespace=namespace)


@command(app, "relay", "veil subscribe relay bob", "veil subscribe relay --tag 9f2c…")
def relay(
    who: Annotated[
        str | None, typer.Argument(metavar="WHO", help="whose feed", show_default="none, with --tag or --mailbox-of")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="HEX", help="a tag instead")] = None,
    mailbox_of: Annotated[
        str | None, typer.Option("--mailbox-of", metavar="CONTACT", help="what is for a contact, instead")
    ] = None,
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Pass something on and keep it for others, without opening it."""
    kind = "relay-mailbox" if mailbox_of else "relay"
    _change(given, remove, as_json, kind=kind, publisher=who, tag=tag, contact=mailbox_of, namespace=namespace)


@command(app, "list", "veil subscribe list", "veil subscribe list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List what this node asks for."""
    with client(given) as api:
        found = api.get("/v1/subscriptions")
    output.table(("kind", "namespace", "key"), [(one["kind"], one["namespace"], one["key"]) for one in found], as_json)
