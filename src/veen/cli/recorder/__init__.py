"""`veen recorder`: record events with evidence, and replay them."""

from veen.cli.recorder import checkpoints, inputs, listen, replay_events, setup_recorder
from veen.cli.recorder.recorder_options import ORDER, app

__all__ = ["app", "checkpoints", "inputs", "listen", "replay_events", "setup_recorder"]

# Modules are imported by name; commands are listed in the order of a recorder's life.
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
