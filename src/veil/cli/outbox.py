"""`veil outbox`: what waits to be sent."""

from typing import Annotated

import typer

from plumbing.cli.command import command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client

app = group("outbox", "Show what waits to be sent, and take it back.")


@command(app, "list", "veil outbox list", "veil outbox list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the messages that are not done with, oldest first."""
    with client(given) as api:
        found = api.get("/v1/outbound")
    rows = [
        (one["message_id"], one["state"], output.moment(one["queued_at"]), one["attempts"], one["peers_complete"])
        for one in found
    ]
    output.table(("message_id", "state", "queued_at", "attempts", "peers_complete"), rows, as_json, data=found)


@command(app, "cancel", "veil outbox cancel 17")
def cancel(
    message_id: Annotated[int, typer.Argument(metavar="MESSAGE_ID", min=0, help="which message")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Take a message back, as far as it is not sent yet."""
    with client(given) as api:
        output.facts(api.delete("/v1/outbound", message_id=message_id), as_json)
