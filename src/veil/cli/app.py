"""The `veil` command: the table of its commands, and its entry point.

A command's module is imported when the command is named, so `veil --help` does not load libraries that it does not
use.
"""

from collections.abc import Sequence

from plumbing.cli import program as roots
from plumbing.cli.program import CommandEntry

# By heading, in the order in which a new user needs them.
COMMANDS: dict[str, tuple[CommandEntry, ...]] = {
    "run a node": (
        CommandEntry("node", "veil.cli.node", "create, configure, start, stop and inspect a node"),
        CommandEntry("id", "veil.cli.views:id_app", "show the keys of this node, and the tags of its feeds"),
    ),
    "other nodes": (
        CommandEntry(
            "contact", "veil.cli.contact:contact_app", "exchange contacts with other nodes, as text or as a QR code"
        ),
        CommandEntry(
            "group", "veil.cli.contact:group_app", "share a secret with several nodes, and replace it when one leaves"
        ),
        CommandEntry("policy", "veil.cli.contact:policy_app", "set how far a node is trusted, and explain its tier"),
    ),
    "messages": (
        CommandEntry(
            "subscribe",
            "veil.cli.messages:subscribe_app",
            "choose the tags that this node requests, opens and forwards",
        ),
        CommandEntry(
            "publish", "veil.cli.messages:publish_app", "publish a message in a feed, to one node, or to a group"
        ),
        CommandEntry(
            "feed", "veil.cli.views:feed_app", "show the messages that this node received, and follow new ones"
        ),
        CommandEntry("events", "veil.cli.views:events_app", "show the numbered events of this node"),
        CommandEntry("outbox", "veil.cli.views:outbox_app", "show the messages that wait to be sent, and cancel them"),
    ),
    "inspect": (
        CommandEntry("peers", "veil.cli.views:peers_app", "show the nodes that this node is connected to"),
        CommandEntry(
            "lanes", "veil.cli.views:lanes_app", "show each lane: its endpoints, its quality, or why it is unavailable"
        ),
        CommandEntry(
            "cache", "veil.cli.views:cache_app", "show the shards that this node caches for others, and remove some"
        ),
        CommandEntry(
            "metrics", "veil.cli.views:metrics_app", "show all counters of a node in the Prometheus text format"
        ),
    ),
    "measure": (
        CommandEntry(
            "sim",
            "veil.cli.measure:sim_app",
            "simulate hundreds of nodes under loss, partitions and attackers, from one seed",
        ),
        CommandEntry(
            "bench", "veil.cli.measure:bench_app", "measure encoding, decoding and shard intake on this machine"
        ),
    ),
}


def _report(error: Exception) -> int | None:
    from veil.cli import exit_status

    return exit_status.report(error)


def _version() -> str:
    from importlib.metadata import version

    return version("veen")  # one distribution installs both commands


app = roots.program(
    "veil",
    "Deliver sealed objects through lossy and hostile networks to the nodes that request them.",
    COMMANDS,
    "veil node init --listen quic://127.0.0.1:4433",
    "veil node start",
    "veil publish 'hello'",
    report=_report,
    version=_version,
)


def main(arguments: Sequence[str] | None = None) -> None:
    roots.run(app, "veil", arguments)
