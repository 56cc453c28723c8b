"""`veil peers`: who is connected."""

from plumbing.cli.command import command, single
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = single("peers")


@command(app, "peers", "veil peers", "veil peers --json")
def peers(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show the nodes that this one is connected to now."""
    with client(given) as api:
        found = api.get("/v1/peers")
    rows = [
        (one["name"] or "", one["peer"][:16], one["tier"], " ".join(one["lanes"]), one["bytes_in"], one["bytes_out"])
        for one in found
    ]
    output.table(("name", "peer", "tier", "lanes", "bytes_in", "bytes_out"), rows, as_json, data=found)
