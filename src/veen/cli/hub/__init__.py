"""`veen hub`: run a hub, look after it, and ask it how it is."""

from veen.cli.hub import forking, keeping, lifecycle, watching
from veen.cli.hub.group import ORDER, app

__all__ = ["app", "forking", "keeping", "lifecycle", "watching"]

# Modules are imported by name; commands are listed in the order of a hub's life.
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
