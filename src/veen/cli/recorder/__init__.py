"""`veen recorder`: record events with evidence, and replay them."""

from veen.cli.recorder import checkpoints, inputs, listening, replaying, setting
from veen.cli.recorder.group import ORDER, app

__all__ = ["app", "checkpoints", "inputs", "listening", "replaying", "setting"]

# Modules are imported by name; commands are listed in the order of a recorder's life.
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
