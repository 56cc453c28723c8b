"""Commands that show one view of a node: id, feed, events, outbox, peers, lanes, cache, metrics.

Each command has an app of its own. `veil.cli.app` names them as `veil.cli.views:NAME_app`.
"""

import base64
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from plumbing.cli.command import argument, group, option, single
from plumbing.cli.result_output import Value, document, moment
from veil.cli.options import Namespace, NodeOptions, node_command
from veil.lanes import Certificate
from veil.runtime import groups

# How long one request for events waits at the node before it returns an empty list.
_WAIT_S = 20
_MAX_EVENTS = 1_024

id_app = group("id", "Show the keys of this node, and the tags of its feeds.")
feed_app = single("feed")
events_app = single("events")
outbox_app = group("outbox", "Show the messages that wait to be sent, and cancel them.")
peers_app = single("peers")
lanes_app = single("lanes")
cache_app = group("cache", "Show the shards that this node caches for others, and remove some.")
metrics_app = single("metrics")


@node_command(id_app, "show", "veil id show", "veil id show --json")
def id_show(node: NodeOptions) -> None:
    """Show the public keys and name of a node, whether it runs or not."""
    directory = node.directory
    ring = groups.load_keyring(directory)
    rows: dict[str, Value] = {
        "name": ring.name,
        "pubkey": ring.signing.public_key,
        "delivery_pubkey": ring.delivery.public_key,
        "pin": Certificate.load_or_make(directory.certificate).pin,
        "groups": len(ring.groups),
    }
    node.facts(rows)


@node_command(id_app, "tag", "veil id tag", "veil id tag bob --namespace 40")
def id_tag(
    node: NodeOptions,
    who: Annotated[str, argument("WHO", "a contact or key", default="this node")] = "self",
    namespace: Namespace = None,
) -> None:
    """Show the tag of a feed. Anyone with the tag can read the feed."""
    node.facts(node.client().get("/v1/tag", publisher=who, namespace=namespace))


@node_command(feed_app, "feed", "veil feed", "veil feed --from bob --follow", "veil feed --raw --limit 1 > picture.jpg")
def feed(
    node: NodeOptions,
    sender: Annotated[str | None, option("--from WHO", "only from this contact or key")] = None,
    namespace: Namespace = None,
    limit: Annotated[int, option("--limit N", "show at most the newest N", min=1, max=_MAX_EVENTS)] = 64,
    follow: Annotated[bool, option("--follow", "wait for more, until ctrl-c")] = False,
    count: Annotated[int | None, option("--count N", "with --follow, end after N", min=1)] = None,
    raw: Annotated[bool, option("--raw", "print only the payloads, unchanged")] = False,
) -> None:
    """Show the messages that this node received, and follow new ones."""
    api = node.client()
    last = api.get("/v1/status")["last_seq"]
    found = api.get("/v1/feed", sender=sender, namespace=namespace, limit=limit)
    if not follow:
        _show_messages(node, found, raw)
        return
    left = count
    while True:
        for message in found[:left]:
            last = max(last, message["seq"])
            _show_message(node, message, raw)
        sys.stdout.flush()
        left = None if left is None else left - len(found)
        if left is not None and left <= 0:
            return
        api.get("/v1/events", since=last, limit=1, wait_s=_WAIT_S)
        found = api.get("/v1/feed", sender=sender, namespace=namespace, since=last, limit=_MAX_EVENTS)
        last = max([last, *(message["seq"] for message in found)])


def _show_messages(node: NodeOptions, found: list[dict[str, Any]], raw: bool) -> None:
    if raw:
        for message in found:
            _show_message(node, message, raw)
        return
    rows = [
        (moment(message["at"]), _sender(message["data"]), message["data"]["namespace"], _body(message["data"]))
        for message in found
    ]
    node.table(("at", "from", "namespace", "message"), rows, found)


def _show_message(node: NodeOptions, message: Mapping[str, Any], raw: bool) -> None:
    data = message["data"]
    if raw:
        sys.stdout.buffer.write(base64.b64decode(data["payload_b64"]))
    elif node.as_json:
        document(message)
    else:
        sys.stdout.write(f"{_sender(data)}\t{_body(data)}\n")


def _sender(data: Mapping[str, Any]) -> str:
    sender = data.get("sender")
    return data.get("sender_name") or (sender[:16] if sender else "?")


def _body(data: Mapping[str, Any]) -> str:
    text = data.get("text")
    if text is not None:
        return " ".join(str(text).split())
    return f"({len(base64.b64decode(data['payload_b64']))} bytes)"


@node_command(events_app, "events", "veil events", "veil events --since 120 --json", "veil events --follow")
def events(
    node: NodeOptions,
    since: Annotated[int, option("--since SEQ", "only events after this number", min=0)] = 0,
    limit: Annotated[int, option("--limit N", "show at most N events", min=1, max=_MAX_EVENTS)] = 256,
    follow: Annotated[bool, option("--follow", "wait for more, until ctrl-c")] = False,
) -> None:
    """Show the numbered events of this node.

    A program that stores the last number it saw misses no event, even when the node restarts, as long as it asks again
    before the node drops the oldest events.
    """
    api = node.client()
    if not follow:
        found = api.get("/v1/events", since=since, limit=limit)["events"]
        rows = [(one["seq"], moment(one["at"]), one["kind"], _fields(one["data"])) for one in found]
        node.table(("seq", "at", "kind", "data"), rows, found)
        return
    while True:
        for event in api.get("/v1/events", since=since, limit=limit, wait_s=_WAIT_S)["events"]:
            since = event["seq"]
            if node.as_json:
                document(event)
            else:
                sys.stdout.write(f"{event['seq']}\t{event['kind']}\t{_fields(event['data'])}\n")
        sys.stdout.flush()


def _fields(data: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in data.items() if name != "payload_b64" and value is not None)


@node_command(outbox_app, "list", "veil outbox list", "veil outbox list --json")
def outbox_list(node: NodeOptions) -> None:
    """List the messages that are not finished, oldest first."""
    found = node.client().get("/v1/outbound")
    rows = [
        (one["message_id"], one["state"], moment(one["queued_at"]), one["attempts"], one["peers_whole"])
        for one in found
    ]
    node.table(("message_id", "state", "queued_at", "attempts", "peers_whole"), rows, found)


@node_command(outbox_app, "cancel", "veil outbox cancel 17")
def outbox_cancel(
    node: NodeOptions, message_id: Annotated[int, argument("MESSAGE_ID", "which message", min=0)]
) -> None:
    """Cancel a message. Shards that were sent before stay with the peers."""
    node.facts(node.client().delete("/v1/outbound", message_id=message_id))


@node_command(peers_app, "peers", "veil peers", "veil peers --json")
def peers(node: NodeOptions) -> None:
    """Show the nodes that this node is connected to."""
    found = node.client().get("/v1/peers")
    rows = [
        (one["name"] or "", one["peer"][:16], one["tier"], " ".join(one["lanes"]), one["bytes_in"], one["bytes_out"])
        for one in found
    ]
    node.table(("name", "peer", "tier", "lanes", "bytes_in", "bytes_out"), rows, found)


@node_command(lanes_app, "lanes", "veil lanes", "veil lanes --json")
def lanes(node: NodeOptions) -> None:
    """Show each lane: its endpoints, its quality, or why it is unavailable."""
    found = node.client().get("/v1/lanes")
    rows = [
        (
            one["lane"],
            one["klass"],
            one["peers"],
            round(one["score"], 2) if one["peers"] else None,
            round(one["rtt_s"], 3) if one["peers"] else None,
            " ".join(one["endpoints"]) or one["why_not"] or "dials only, does not listen",
        )
        for one in found
    ]
    node.table(("lane", "class", "peers", "score", "rtt_s", "endpoint or error"), rows, found)


@node_command(cache_app, "list", "veil cache list", "veil cache list --limit 1000 --json")
def cache_list(
    node: NodeOptions, limit: Annotated[int, option("--limit N", "show at most N shards", min=1, max=4096)] = 64
) -> None:
    """List shards in the cache, with the number of known copies of each."""
    found = node.client().get("/v1/cache", limit=limit)
    rows = [
        (
            one["object_root"][:16],
            one["index"],
            one["size"],
            one["replicas"],
            one["tier"],
            moment(one["expiry"]),
        )
        for one in found
    ]
    node.table(("object_root", "index", "size", "replicas", "tier", "expiry"), rows, found)


@node_command(cache_app, "forget", "veil cache forget 5f3a…")
def cache_forget(
    node: NodeOptions, object_root: Annotated[str, argument("OBJECT_ROOT", "which object, in hex")]
) -> None:
    """Remove all shards of an object from the cache."""
    node.facts(node.client().delete("/v1/cache", object_root=object_root))


@node_command(metrics_app, "metrics", "veil metrics", "veil metrics --json")
def metrics(node: NodeOptions) -> None:
    """Show all counters of a node in the Prometheus text format."""
    api = node.client()
    if node.as_json:
        document(api.get("/v1/metrics", format="json"))
    else:
        sys.stdout.write(api.text("/v1/metrics"))
