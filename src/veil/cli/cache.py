"""`veil cache`: what is kept for others."""

from typing import Annotated

import typer

from plumbing.cli.command import command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = group("cache", "Show the shards that this node keeps for others, and let go of some.")


@command(app, "list", "veil cache list", "veil cache list --limit 1000 --json")
def list_(
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=4_096, help="so many at most")] = 64,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """List shards in the cache, with how many others are known to have each."""
    with client(given) as api:
        found = api.get("/v1/cache", limit=limit)
    rows = [
        (one["object_root"][:16], one["index"], one["size"], one["replicas"], one["tier"], output.moment(one["expiry"]))
        for one in found
    ]
    output.table(("object_root", "index", "size", "replicas", "tier", "expiry"), rows, as_json, data=found)


@command(app, "forget", "veil cache forget 5f3a…")
def forget(
    object_root: Annotated[str, typer.Argument(metavar="OBJECT_ROOT", help="which object, in hex")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Let go of all shards of an object."""
    with client(given) as api:
        output.facts(api.delete("/v1/cache", object_root=object_root), as_json)
