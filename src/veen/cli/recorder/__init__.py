"""`veen recorder`: record events with evidence, and replay them."""

from veen.cli.recorder import checkpoints, inputs, listen, replay_events, setup_recorder
from veen.cli.recorder.recorder_options import ORDER, app

__all__ = ["app", "checkpoints", "inputs", "listen", "replay_events", "setup_recorder"]

# Importing the modules registers their commands; help lists them in this order.
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
