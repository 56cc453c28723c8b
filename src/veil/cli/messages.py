"""`veil publish` and `veil subscribe`."""

import base64
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group, single
from plumbing.cli.result_output import facts, table
from veil.api.api_client import Client
from veil.cli.exit_status import PENDING_STATUS
from veil.cli.options import DataDir, JsonOption, Namespace, client, remark
from veil.veil_errors import Refused
from veil.veil_limits import MAX_OBJECT_BYTES

publish_app = single("publish")

_PAYLOAD = "payload"
_STATES_THAT_END_THE_WAIT = {"sent": ("sent", "acked"), "acked": ("acked",)}


@command(
    publish_app, "publish", "veil publish 'hello'", "veil publish 'for you alone' --to bob", "veil publish @notes.txt"
)
def publish(
    body: Annotated[str, typer.Argument(metavar="BODY", help="text, @FILE, or - for standard input")],
    to: Annotated[str | None, typer.Option("--to", metavar="CONTACT", help="one node, by private delivery")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="a group")] = None,
    namespace: Namespace = None,
    batch: Annotated[bool, typer.Option("--batch", help="may wait to share an object with others")] = False,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="sent|acked", help="wait until peers have it, or until it is acknowledged"),
    ] = None,
    wait_s: Annotated[int, durations.whole_option("--wait-s", least=1, help="time limit of --wait")] = 60,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a message in a feed, to one node, or to a group.

    The message is on disk when the command returns. The node sends it as soon as a peer is connected, even days later.
    A message may be as large as one object: 256 KiB minus the overhead of encryption.
    """

    if wait not in (None, *_STATES_THAT_END_THE_WAIT):
        raise Misuse(f"invalid value for --wait: {wait!r}", "give sent or acked")
    payload = _body(body)
    if len(payload) > MAX_OBJECT_BYTES:
        raise _too_large(f"{len(payload)} bytes, more than the {MAX_OBJECT_BYTES} bytes of an object")
    api = client(given)
    # Feeds have no acknowledgements, because their readers are unknown.
    fields = {"to": to, "group": group, "namespace": namespace, "ack": True if wait == "acked" else None}
    encoded = base64.b64encode(payload).decode()
    try:
        queued = api.post("/v1/publish", payload_b64=encoded, interactive=not batch, **fields)
    except Refused as refused:
        raise (_too_large(refused.reason) if refused.what == _PAYLOAD else refused) from None
    state = _wait(api, queued["message_id"], _STATES_THAT_END_THE_WAIT[wait], wait_s) if wait else None
    rows: dict[str, Any] = {"message_id": queued["message_id"], "state": state or "queued"}
    facts(rows, as_json)
    if wait and state is None:
        remark(f"not {wait} within {wait_s} s; the message stays queued, see veil outbox list")
        raise typer.Exit(PENDING_STATUS)


def _too_large(reason: str) -> Refused:
    error = Refused(_PAYLOAD, reason)
    error.add_note("publish it in parts of less than 256 kB; each part is a message of its own")
    return error


def _wait(api: Client, message_id: int, done: tuple[str, ...], seconds: int) -> str | None:
    """Wait until a message reaches one of the states `done`, or fails. None after the time limit."""
    since, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        found = api.get("/v1/events", since=since, limit=1_024, wait_s=max(1, min(int(left), 20)))
        for event in found["events"]:
            since = event["seq"]
            if event["data"].get("message_id") == message_id and event["kind"] in (*done, "failed"):
                return str(event["kind"])
    return None


def _body(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    return Path(given[1:]).read_bytes() if given.startswith("@") else given.encode()


subscribe_app = group(
    "subscribe",
    """Choose the tags that this node requests, opens and forwards.

    A node does not forward shards of other tags. A new node is subscribed to its own mailbox. Joining a group
    subscribes to the group.
    """,
)

Remove: TypeAlias = Annotated[bool, typer.Option("--remove", help="remove the subscription")]


def _change(given: DataDir, remove: bool, as_json: bool, **fields: object) -> None:
    api = client(given)
    found = (api.delete_body if remove else api.post)("/v1/subscriptions", **fields)
    facts(found, as_json)


@command(subscribe_app, "feed", "veil subscribe feed bob", "veil subscribe feed bob --namespace 40")
def feed(
    who: Annotated[str, typer.Argument(metavar="WHO", help="a contact, or a publisher's key in hex")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the feed of a publisher, and forward it."""
    _change(given, remove, as_json, kind="feed", publisher=who, namespace=namespace)


@command(subscribe_app, "tag", "veil subscribe tag 9f2c… --namespace 1")
def tag(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="the tag of a feed, in hex")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the feed with this tag, and forward it."""
    _change(given, remove, as_json, kind="feed", tag=tag, namespace=namespace)


@command(subscribe_app, "mailbox", "veil subscribe mailbox --namespace 40")
def mailbox(
    namespace: Namespace = None, remove: Remove = False, given: DataDir = None, as_json: JsonOption = False
) -> None:
    """Receive private messages in a namespace."""
    _change(given, remove, as_json, kind="mailbox", namespace=namespace)


@command(subscribe_app, "group", "veil subscribe group friends --namespace 40")
def group_(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="a group that this node is in")],
    namespace: Namespace = None,
    remove: Remove = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read the messages of a group in a namespace."""
    _change(given, remove, as_json, kind="group", group=name, namespace=namespace)


@command(subscribe_app, "relay", "veil subscribe relay bob", "veil subscribe relay --tag 9f2c…")
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


@command(subscribe_app, "list", "veil subscribe list", "veil subscribe list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the subscriptions of this node."""
    found = client(given).get("/v1/subscriptions")
    table(("kind", "namespace", "key"), [(one["kind"], one["namespace"], one["key"]) for one in found], as_json)
