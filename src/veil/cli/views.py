"""Commands that show one view of a node: id, feed, events, outbox, peers, lanes, cache, metrics.

Each command has an app of its own. `veil.cli.app` names them as `veil.cli.views:NAME_app`.
"""

import base64
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from plumbing.cli.command import command, group, single
from plumbing.cli.result_output import Value, document, facts, moment, table
from veil.cli.options import DataDir, JsonOption, Namespace, client, data_dir
from veil.lanes import Certificate
from veil.runtime import groups
from veil.runtime.data_directory import DataDirectory

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


@command(id_app, "show", "veil id show", "veil id show --json")
def id_show(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show the public keys and name of a node, whether it runs or not."""
    directory = DataDirectory(data_dir(given))
    ring = groups.load_keyring(directory)
    rows: dict[str, Value] = {
        "name": ring.name,
        "pubkey": ring.signing.public_key,
        "delivery_pubkey": ring.delivery.public_key,
        "pin": Certificate.load_or_make(directory.certificate).pin,
        "groups": len(ring.groups),
    }
    facts(rows, as_json)


@command(id_app, "tag", "veil id tag", "veil id tag bob --namespace 40")
def id_tag(
    who: Annotated[str, typer.Argument(metavar="WHO", help="a contact or key", show_default="this node")] = "self",
    namespace: Namespace = None,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show the tag of a feed. Anyone with the tag can read the feed."""
    facts(client(given).get("/v1/tag", publisher=who, namespace=namespace), as_json)


@command(feed_app, "feed", "veil feed", "veil feed --from bob --follow", "veil feed --raw --limit 1 > picture.jpg")
def feed(
    sender: Annotated[str | None, typer.Option("--from", metavar="WHO", help="only from this contact or key")] = None,
    namespace: Namespace = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=_MAX_EVENTS, help="show at most the newest N")
    ] = 64,
    follow: Annotated[bool, typer.Option("--follow", help="wait for more, until ctrl-c")] = False,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="with --follow, end after N")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="print only the payloads, unchanged")] = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show the messages that this node received, and follow new ones."""
    api = client(given)
    last = api.get("/v1/status")["last_seq"]
    found = api.get("/v1/feed", sender=sender, namespace=namespace, limit=limit)
    if not follow:
        _show_messages(found, raw, as_json)
        return
    left = count
    while True:
        for message in found[:left]:
            last = max(last, message["seq"])
            _show_message(message, raw, as_json)
        sys.stdout.flush()
        left = None if left is None else left - len(found)
        if left is not None and left <= 0:
            return
        api.get("/v1/events", since=last, limit=1, wait_s=_WAIT_S)
        found = api.get("/v1/feed", sender=sender, namespace=namespace, since=last, limit=_MAX_EVENTS)
        last = max([last, *(message["seq"] for message in found)])


def _show_messages(found: list[dict[str, Any]], raw: bool, as_json: bool) -> None:
    if raw:
        for message in found:
            _show_message(message, raw, as_json)
        return
    rows = [
        (moment(message["at"]), _sender(message["data"]), message["data"]["namespace"], _body(message["data"]))
        for message in found
    ]
    table(("at", "from", "namespace", "message"), rows, as_json, data=found)


def _show_message(message: Mapping[str, Any], raw: bool, as_json: bool) -> None:
    data = message["data"]
    if raw:
        sys.stdout.buffer.write(base64.b64decode(data["payload_b64"]))
    elif as_json:
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


@command(events_app, "events", "veil events", "veil events --since 120 --json", "veil events --follow")
def events(
    since: Annotated[int, typer.Option("--since", metavar="SEQ", min=0, help="only events after this number")] = 0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=_MAX_EVENTS, help="show at most N events")
    ] = 256,
    follow: Annotated[bool, typer.Option("--follow", help="wait for more, until ctrl-c")] = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show the numbered events of this node.

    A program that stores the last number it saw misses no event, even when the node restarts, as long as it asks again
    before the node drops the oldest events.
    """
    api = client(given)
    if not follow:
        found = api.get("/v1/events", since=since, limit=limit)["events"]
        rows = [(one["seq"], moment(one["at"]), one["kind"], _fields(one["data"])) for one in found]
        table(("seq", "at", "kind", "data"), rows, as_json, data=found)
        return
    while True:
        for event in api.get("/v1/events", since=since, limit=limit, wait_s=_WAIT_S)["events"]:
            since = event["seq"]
            if as_json:
                document(event)
            else:
                sys.stdout.write(f"{event['seq']}\t{event['kind']}\t{_fields(event['data'])}\n")
        sys.stdout.flush()


def _fields(data: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in data.items() if name != "payload_b64" and value is not None)


@command(outbox_app, "list", "veil outbox list", "veil outbox list --json")
def outbox_list(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the messages that are not finished, oldest first."""
    found = client(given).get("/v1/outbound")
    rows = [
        (one["message_id"], one["state"], moment(one["queued_at"]), one["attempts"], one["peers_whole"])
        for one in found
    ]
    table(("message_id", "state", "queued_at", "attempts", "peers_whole"), rows, as_json, data=found)


@command(outbox_app, "cancel", "veil outbox cancel 17")
def outbox_cancel(
    message_id: Annotated[int, typer.Argument(metavar="MESSAGE_ID", min=0, help="which message")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a message. Shards that were sent before stay with the peers."""
    facts(client(given).delete("/v1/outbound", message_id=message_id), as_json)


@command(peers_app, "peers", "veil peers", "veil peers --json")
def peers(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show the nodes that this node is connected to."""
    found = client(given).get("/v1/peers")
    rows = [
        (one["name"] or "", one["peer"][:16], one["tier"], " ".join(one["lanes"]), one["bytes_in"], one["bytes_out"])
        for one in found
    ]
    table(("name", "peer", "tier", "lanes", "bytes_in", "bytes_out"), rows, as_json, data=found)


@command(lanes_app, "lanes", "veil lanes", "veil lanes --json")
def lanes(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show each lane: its endpoints, its quality, or why it is unavailable."""
    found = client(given).get("/v1/lanes")
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
    table(("lane", "class", "peers", "score", "rtt_s", "endpoint or error"), rows, as_json, data=found)


@command(cache_app, "list", "veil cache list", "veil cache list --limit 1000 --json")
def cache_list(
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=4_096, help="show at most N shards")] = 64,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """List shards in the cache, with the number of known copies of each."""
    found = client(given).get("/v1/cache", limit=limit)
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
    table(("object_root", "index", "size", "replicas", "tier", "expiry"), rows, as_json, data=found)


@command(cache_app, "forget", "veil cache forget 5f3a…")
def cache_forget(
    object_root: Annotated[str, typer.Argument(metavar="OBJECT_ROOT", help="which object, in hex")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all shards of an object from the cache."""
    facts(client(given).delete("/v1/cache", object_root=object_root), as_json)


@command(metrics_app, "metrics", "veil metrics", "veil metrics --json")
def metrics(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show all counters of a node in the Prometheus text format."""
    api = client(given)
    if as_json:
        document(api.get("/v1/metrics", format="json"))
    else:
        sys.stdout.write(api.text("/v1/metrics"))
