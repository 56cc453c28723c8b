"""The group that the commands of `veen hub` are declared in."""

from plumbing.cli.command import group

app = group(
    "hub",
    """Run a hub, look after it, and ask it how it is.

    A hub is a data directory and a process that serves it. Commands that ask a hub take its address, or its data
    directory where it runs on this machine.
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
