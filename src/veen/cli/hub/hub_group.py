"""The command group `veen hub`."""

from plumbing.cli.command import group

app = group(
    "hub",
    """Run, maintain and query a hub.

    A hub is a data directory and a process that serves it. Commands that query a hub take its URL, or the data
    directory of a hub on this machine.
    """,
)

ORDER = (
    "init",
    "start",
    "stop",
    "status",
    "health",
    "metrics",
    "key",
    "rotate-key",
    "checkpoint",
    "verify",
    "fork",
)
