"""`veen hub`: run, maintain and query a hub."""

from veen.cli.hub import hub_status, lifecycle, maintenance
from veen.cli.hub.hub_group import ORDER, app

__all__ = ["app", "hub_status", "lifecycle", "maintenance"]

# Importing the modules registers their commands; help lists them in this order.
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
