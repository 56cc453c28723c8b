"""`veen pipeline`: tables of logs, made and checked on any number of machines."""

from veen.cli.pipeline import checking, making
from veen.cli.pipeline.group import ORDER, app

__all__ = ["app", "checking", "making"]

app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
