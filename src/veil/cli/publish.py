"""`veil publish`: say something."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbing.cli import durations
from plumbing.cli.command import command, single
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client

if TYPE_CHECKING:
    from veil.api.api_client import Client
    from veil.veil_errors import Refused

app = single("publish")

_PAYLOAD = "payload"
_DONE = {"sent": ("sent", "acked"), "acked": ("acked",)}


@command(app, "publish", "veil publish 'hello'", "veil publish 'for you alone' --to bob", "veil publish @notes.txt")
def publish(
    body: Annotated[str, typer.Argument(metavar="BODY", help="text, @FILE, or - for standard input")],
    to: Annotated[str | None, typer.Option("--to", metavar="CONTACT", help="one node, by private delivery")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="a group")] = None,
    namespace: Namespace = None,
    batch: Annotated[bool, typer.Option("--batch", help="it may wait a moment, to share an object")] = False,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="sent|acked", help="return once others have it, or once it is acknowledged"),
    ] = None,
    wait_s: Annotated[int, durations.whole_option("--wait-s", least=1, help="how long to wait for that")] = 60,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Say something: in a feed, to one node, or to a group.

    It is on disk when the command returns, and is sent as soon as somebody is there to take it, in days if need be. An
    object carries 256 KiB, less what seals it.
    """
    import base64

    from plumbing.cli.command import Misuse
    from veil.cli.exit_status import PENDING_STATUS
    from veil.veil_errors import Refused
    from veil.veil_limits import MAX_OBJECT_BYTES

    if wait not in (None, *_DONE):
        raise Misuse(f"{wait!r} cannot be waited for", "give sent or acked")
    said_bytes = _body(body)
    if len(said_bytes) > MAX_OBJECT_BYTES:
        raise _too_large(f"{len(said_bytes)} bytes, more than the {MAX_OBJECT_BYTES} of an object, with what seals it")
    payload = base64.b64encode(said_bytes).decode()
    with client(given) as api:
        # Nobody acknowledges a feed: its readers are not known.
        asked = {"to": to, "group": group, "namespace": namespace, "ack": True if wait == "acked" else None}
        try:
            said = api.post("/v1/publish", payload_b64=payload, interactive=not batch, **asked)
        except Refused as refused:
            raise (_too_large(refused.reason) if refused.what == _PAYLOAD else refused) from None
        became = _wait(api, said["message_id"], _DONE[wait], wait_s) if wait else None
    rows: dict[str, Any] = {"message_id": said["message_id"], "state": became or "queued"}
    output.facts(rows, as_json)
    if wait and became is None:
        output.remark(f"not {wait} within {wait_s} s; it stays queued, and veil outbox list shows it")
        raise typer.Exit(PENDING_STATUS)


def _too_large(reason: str) -> "Refused":
    from veil.veil_errors import Refused

    error = Refused(_PAYLOAD, reason)
    error.add_note("say it in parts of 256 kB or less: each is an object, which arrives whole or not at all")
    return error


def _wait(api: "Client", message_id: int, done: tuple[str, ...], seconds: int) -> str | None:
    """What became of a message, once that is one of `done`."""
    import time

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
