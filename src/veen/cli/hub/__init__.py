"""`veen hub`: run a hub, look after it, and ask it how it is."""

from veen.cli.hub import hub_status, lifecycle, maintenance
from veen.cli.hub.hub_group import ORDER, app

__all__ = ["app", "hub_status", "lifecycle", "maintenance"]

# Modules are imported by name; commands are listed in the order of a hub's life.
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
