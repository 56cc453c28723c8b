"""`veil lanes`: the ways there are."""

from plumbing.cli.command import command, single
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = single("lanes")


@command(app, "lanes", "veil lanes", "veil lanes --json")
def lanes(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show each lane: where it listens, how it does, why it is not there."""
    with client(given) as api:
        found = api.get("/v1/lanes")
    rows = [
        (
            one["lane"],
            one["klass"],
            one["peers"],
            round(one["score"], 2) if one["peers"] else None,
            round(one["rtt_s"], 3) if one["peers"] else None,
            " ".join(one["endpoints"]) or one["why_not"] or "dials, and does not listen",
        )
        for one in found
    ]
    output.table(("lane", "class", "peers", "score", "rtt_s", "where, or why not"), rows, as_json, data=found)
