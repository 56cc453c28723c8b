"""The `veil` command: which commands there are, and what happens at its edges.

A command's module is imported when the command is named, and imports what it works with when it runs: `veil --help`
must not wait for libraries it does not use.
"""

from collections.abc import Sequence

from plumbing.cli import program as roots
from plumbing.cli.program import CommandEntry

# By heading, in the order people meet them.
COMMANDS: dict[str, tuple[CommandEntry, ...]] = {
    "run a node": (
        CommandEntry("node", "veil.cli.node", "make a node, start it, stop it, and ask it how it is"),
        CommandEntry("id", "veil.cli.id", "show who this node is, and the tags of its feeds"),
    ),
    "know others": (
        CommandEntry("contact", "veil.cli.contact", "exchange contacts with other nodes, as text or as a QR code"),
        CommandEntry("group", "veil.cli.group", "share secrets with several nodes, and change them when one leaves"),
        CommandEntry("policy", "veil.cli.policy", "say how far a node is trusted, and see why it is treated as it is"),
    ),
    "say and hear": (
        CommandEntry("subscribe", "veil.cli.subscribe", "choose what this node asks for, opens and passes on"),
        CommandEntry("publish", "veil.cli.publish", "say something: in a feed, to one node, or to a group"),
        CommandEntry("feed", "veil.cli.feed", "show what was delivered to this node, and follow it"),
        CommandEntry("events", "veil.cli.events", "show all that happened to this node, by number"),
        CommandEntry("outbox", "veil.cli.outbox", "show what waits to be sent, and take it back"),
    ),
    "look inside": (
        CommandEntry("peers", "veil.cli.peers", "show the nodes that this one is connected to now"),
        CommandEntry("lanes", "veil.cli.lanes", "show each lane: where it listens, how it does, why it is not there"),
        CommandEntry("cache", "veil.cli.cache", "show the shards that this node keeps for others, and let go of some"),
        CommandEntry("metrics", "veil.cli.metrics", "show every count of a node, as Prometheus reads it"),
    ),
    "try it out": (
        CommandEntry("sim", "veil.cli.sim", "run hundreds of nodes under loss, partitions and liars, from one seed"),
        CommandEntry("bench", "veil.cli.bench", "measure how fast objects are cut, put together and taken in here"),
    ),
}


def _tell(error: Exception) -> int | None:
    from veil.cli import exit_status

    return exit_status.tell(error)


def _version() -> str:
    from importlib.metadata import version

    return version("veen")  # the two are installed together


app = roots.program(
    "veil",
    "Carry objects through lossy and hostile networks, to who asks for them and nobody else.",
    COMMANDS,
    "veil node init --listen quic://127.0.0.1:4433",
    "veil node start",
    "veil publish 'hello'",
    tell=_tell,
    version=_version,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The `veil` command."""
    roots.run(app, "veil", arguments)
