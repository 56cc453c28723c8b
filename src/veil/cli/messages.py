"""`veil publish` and `veil subscribe`."""

import base64
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option, options_command, single
from veil.api.api_client import Client
from veil.cli.exit_status import PENDING_STATUS
from veil.cli.options import Namespace, NodeOptions, node_command, remark
from veil.veil_errors import Refused
from veil.veil_limits import MAX_OBJECT_BYTES

publish_app = single("publish")

_PAYLOAD = "payload"
_STATES_THAT_END_THE_WAIT = {"sent": ("sent", "acked"), "acked": ("acked",)}


@node_command(
    publish_app, "publish", "veil publish 'hello'", "veil publish 'for you alone' --to bob", "veil publish @notes.txt"
)
def publish(
    node: NodeOptions,
    body: Annotated[str, argument("BODY", "text, @FILE, or - for standard input")],
    to: Annotated[str | None, option("--to CONTACT", "one node, by private delivery")] = None,
    group: Annotated[str | None, option("--group GROUP", "a group")] = None,
    namespace: Namespace = None,
    batch: Annotated[bool, option("--batch", "may wait to share an object with others")] = False,
    wait: Annotated[
        str | None, option("--wait sent|acked", "wait until peers have it, or until it is acknowledged")
    ] = None,
    wait_s: Annotated[int, durations.whole_option("--wait-s", least=1, help="time limit of --wait")] = 60,
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
    api = node.client()
    # Feeds have no acknowledgements, because their readers are unknown.
    fields = {"to": to, "group": group, "namespace": namespace, "ack": True if wait == "acked" else None}
    encoded = base64.b64encode(payload).decode()
    try:
        queued = api.post("/v1/publish", payload_b64=encoded, interactive=not batch, **fields)
    except Refused as refused:
        raise (_too_large(refused.reason) if refused.what == _PAYLOAD else refused) from None
    state = _wait(api, queued["message_id"], _STATES_THAT_END_THE_WAIT[wait], wait_s) if wait else None
    rows: dict[str, Any] = {"message_id": queued["message_id"], "state": state or "queued"}
    node.facts(rows)
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


@dataclass(frozen=True, slots=True)
class SubscriptionOptions(NodeOptions):
    """Options of a command that adds or removes a subscription."""

    namespace: Namespace = None
    remove: Annotated[bool, option("--remove", "remove the subscription")] = False

    def change(self, **fields: object) -> None:
        api = self.client()
        found = (api.delete_body if self.remove else api.post)("/v1/subscriptions", namespace=self.namespace, **fields)
        self.facts(found)


subscription_command = partial(options_command, SubscriptionOptions)


@subscription_command(subscribe_app, "feed", "veil subscribe feed bob", "veil subscribe feed bob --namespace 40")
def feed(
    options: SubscriptionOptions, who: Annotated[str, argument("WHO", "a contact, or a publisher's key in hex")]
) -> None:
    """Read the feed of a publisher, and forward it."""
    options.change(kind="feed", publisher=who)


@subscription_command(subscribe_app, "tag", "veil subscribe tag 9f2c… --namespace 1")
def tag(options: SubscriptionOptions, tag: Annotated[str, argument("TAG", "the tag of a feed, in hex")]) -> None:
    """Read the feed with this tag, and forward it."""
    options.change(kind="feed", tag=tag)


@subscription_command(subscribe_app, "mailbox", "veil subscribe mailbox --namespace 40")
def mailbox(options: SubscriptionOptions) -> None:
    """Receive private messages in a namespace."""
    options.change(kind="mailbox")


@subscription_command(subscribe_app, "group", "veil subscribe group friends --namespace 40")
def group_(
    options: SubscriptionOptions, name: Annotated[str, argument("GROUP", "a group that this node is in")]
) -> None:
    """Read the messages of a group in a namespace."""
    options.change(kind="group", group=name)


@subscription_command(subscribe_app, "relay", "veil subscribe relay bob", "veil subscribe relay --tag 9f2c…")
def relay(
    options: SubscriptionOptions,
    who: Annotated[str | None, argument("WHO", "the publisher", default="none, with --tag or --mailbox-of")] = None,
    tag: Annotated[str | None, option("--tag HEX", "a tag instead of a publisher")] = None,
    mailbox_of: Annotated[str | None, option("--mailbox-of CONTACT", "the mailbox of a contact instead")] = None,
) -> None:
    """Forward and cache a feed or mailbox for others, without opening it."""
    options.change(kind="relay-mailbox" if mailbox_of else "relay", publisher=who, tag=tag, contact=mailbox_of)


@node_command(subscribe_app, "list", "veil subscribe list", "veil subscribe list --json")
def list_(node: NodeOptions) -> None:
    """List the subscriptions of this node."""
    found = node.client().get("/v1/subscriptions")
    node.table(("kind", "namespace", "key"), [(one["kind"], one["namespace"], one["key"]) for one in found])
