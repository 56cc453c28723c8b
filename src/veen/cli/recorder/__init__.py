"""`veen recorder`: record events with evidence, and replay them."""

from plumbing.cli.command import group
from veen.cli.recorder import inputs, recorded_events, setup_recorder

app = group(
    "recorder",
    """Record events with evidence, and replay them.

    An administrator sets up a recorder and makes its checkpoints. Producers write to its streams and to nothing else.
    """,
)
for part in (setup_recorder, inputs, recorded_events):
    app.registered_commands += part.app.registered_commands
