"""The `veil` command: which commands there are, and what happens at its edges.

A command's module is imported when the command is named, and imports what it works with when it runs: `veil --help`
must not wait for libraries it does not use.
"""

import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import typer
from typer.main import get_command

from veil.cli.command import Group
from veil.cli.manual import Row

INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, the module whose `app` it is, and its one line, which is also the first of its help."""

    name: str
    module: str
    summary: str


# By heading, in the order people meet them.
COMMANDS: dict[str, tuple[Entry, ...]] = {
    "run a node": (
        Entry("node", "veil.cli.node", "make a node, start it, stop it, and ask it how it is"),
        Entry("id", "veil.cli.id", "show who this node is, and the tags of its feeds"),
    ),
    "know others": (
        Entry("contact", "veil.cli.contact", "exchange contacts with other nodes, as text or as a QR code"),
        Entry("group", "veil.cli.group", "share secrets with several nodes, and change them when one leaves"),
        Entry("policy", "veil.cli.policy", "say how far a node is trusted, and see why it is treated as it is"),
    ),
    "say and hear": (
        Entry("subscribe", "veil.cli.subscribe", "choose what this node asks for, opens and passes on"),
        Entry("publish", "veil.cli.publish", "say something: in a feed, to one node, or to a group"),
        Entry("feed", "veil.cli.feed", "show what was delivered to this node, and follow it"),
        Entry("events", "veil.cli.events", "show all that happened to this node, by number"),
        Entry("outbox", "veil.cli.outbox", "show what waits to be sent, and take it back"),
    ),
    "look inside": (
        Entry("peers", "veil.cli.peers", "show the nodes that this one is connected to now"),
        Entry("lanes", "veil.cli.lanes", "show each lane: where it listens, how it does, why it is not there"),
        Entry("cache", "veil.cli.cache", "show the shards that this node keeps for others, and let go of some"),
        Entry("metrics", "veil.cli.metrics", "show every count of a node, as Prometheus reads it"),
    ),
    "try it out": (
        Entry("sim", "veil.cli.sim", "run hundreds of nodes under loss, partitions and liars, from one seed"),
        Entry("bench", "veil.cli.bench", "measure how fast objects are cut, put together and taken in here"),
    ),
}
_BY_NAME = {entry.name: entry for entries in COMMANDS.values() for entry in entries}


class Root(Group):
    """`veil` itself."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_BY_NAME)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = _BY_NAME.get(cmd_name)
        if entry is not None and cmd_name not in self.commands:
            self.commands[cmd_name] = get_command(importlib.import_module(entry.module).app)
        return self.commands.get(cmd_name)

    def listing(self, ctx: Any) -> Iterator[tuple[str, Sequence[Row]]]:
        for heading, entries in COMMANDS.items():
            yield heading, [Row(entry.name, entry.summary) for entry in entries]

    def main(self, *args: Any, **given: Any) -> NoReturn:
        """Run, and turn whatever comes of it into a line or two and an exit status."""
        try:
            status = super().main(*args, **{**given, "standalone_mode": False})
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_the_pipe()
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):  # as the library ends then
                _leave_the_pipe()
            raise
        except Exception as error:
            from veil.cli import failures

            told = failures.tell(error)
            if told is None:
                raise
            sys.exit(told)
        if status == INTERRUPTED_STATUS:
            sys.stderr.write("veil: interrupted\n")
        sys.exit(status)


def _leave_the_pipe() -> NoReturn:
    """Whoever read this has enough. The interpreter flushes once more on its way out: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(BROKEN_PIPE_STATUS)


app = typer.Typer(name="veil", cls=Root, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(epilog="veil node init --listen quic://127.0.0.1:4433\nveil node start\nveil publish 'hello'")
def root() -> None:
    """Carry objects through lossy and hostile networks, to who asks for them and nobody else."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The `veil` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a dash that a terminal does not have is no reason to fail
    get_command(app).main(arguments, "veil")
