"""`veil feed`: what was delivered."""

import base64
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from plumbing.cli.command import command, single
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client

app = single("feed")

_WAIT_S = 20


@command(app, "feed", "veil feed", "veil feed --from bob --follow", "veil feed --raw --limit 1 > picture.jpg")
def feed(
    sender: Annotated[str | None, typer.Option("--from", metavar="WHO", help="only what a contact or key said")] = None,
    namespace: Namespace = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_024, help="the newest so many")] = 64,
    follow: Annotated[bool, typer.Option("--follow", help="go on with what comes, until ctrl-c")] = False,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="with --follow, end after so many")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="the payloads alone, as they are")] = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was delivered to this node, and follow it."""
    with client(given) as api:
        last = api.get("/v1/status")["last_seq"]
        found = api.get("/v1/feed", sender=sender, namespace=namespace, limit=limit)
        if not follow:
            _show_all(found, raw, as_json)
            return
        left = count
        while True:
            for one in found[:left]:
                last = max(last, one["seq"])
                _show_one(one, raw, as_json)
            sys.stdout.flush()
            left = None if left is None else left - len(found)
            if left is not None and left <= 0:
                return
            api.get("/v1/events", since=last, limit=1, wait_s=_WAIT_S)
            found = api.get("/v1/feed", sender=sender, namespace=namespace, since=last, limit=1_024)
            last = max([last, *(one["seq"] for one in found)])


def _show_all(found: list[dict[str, Any]], raw: bool, as_json: bool) -> None:
    if raw:
        for one in found:
            _show_one(one, raw, as_json)
        return
    rows = [
        (output.moment(one["at"]), _who(one["data"]), one["data"]["namespace"], _what(one["data"])) for one in found
    ]
    output.table(("at", "from", "namespace", "said"), rows, as_json, data=found)


def _show_one(one: Mapping[str, Any], raw: bool, as_json: bool) -> None:
    data = one["data"]
    if raw:
        sys.stdout.buffer.write(base64.b64decode(data["payload_b64"]))
    elif as_json:
        output.document(one)
    else:
        sys.stdout.write(f"{_who(data)}\t{_what(data)}\n")


def _who(data: Mapping[str, Any]) -> str:
    sender = data.get("sender")
    return data.get("sender_name") or (sender[:16] if sender else "?")


def _what(data: Mapping[str, Any]) -> str:
    text = data.get("text")
    if text is not None:
        return " ".join(str(text).split())
    return f"({len(base64.b64decode(data['payload_b64']))} bytes)"
