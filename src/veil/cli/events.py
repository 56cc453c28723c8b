"""`veil events`: all that happened."""

import sys
from typing import Annotated

import typer

from plumbing.cli.command import command, single
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = single("events")

_WAIT_S = 20


@command(app, "events", "veil events", "veil events --since 120 --json", "veil events --follow")
def events(
    since: Annotated[int, typer.Option("--since", metavar="SEQ", min=0, help="only what came after it")] = 0,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_024, help="so many at most")] = 256,
    follow: Annotated[bool, typer.Option("--follow", help="go on with what comes, until ctrl-c")] = False,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that happened to this node, by number.

    A program that remembers the last number it saw misses nothing, over restarts either, as long as it comes back
    before the oldest events have given way.
    """
    with client(given) as api:
        if not follow:
            found = api.get("/v1/events", since=since, limit=limit)["events"]
            rows = [(one["seq"], output.moment(one["at"]), one["kind"], _told(one["data"])) for one in found]
            output.table(("seq", "at", "kind", "what"), rows, as_json, data=found)
            return
        while True:
            for one in api.get("/v1/events", since=since, limit=limit, wait_s=_WAIT_S)["events"]:
                since = one["seq"]
                if as_json:
                    output.document(one)
                else:
                    sys.stdout.write(f"{one['seq']}\t{one['kind']}\t{_told(one['data'])}\n")
            sys.stdout.flush()


def _told(data: dict[str, object]) -> str:
    shown = {name: value for name, value in data.items() if name != "payload_b64" and value is not None}
    return " ".join(f"{name}={value}" for name, value in shown.items())
