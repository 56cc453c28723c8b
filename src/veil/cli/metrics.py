"""`veil metrics`: every count."""

import sys

from plumbing.cli.command import command, single
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = single("metrics")


@command(app, "metrics", "veil metrics", "veil metrics --json")
def metrics(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show every count of a node, as Prometheus reads it."""
    with client(given) as api:
        if as_json:
            output.document(api.get("/v1/metrics", format="json"))
        else:
            sys.stdout.write(api.text("/v1/metrics"))
