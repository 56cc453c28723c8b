"""The `veen` command: which commands there are, and what happens at its edges.

A command's module is imported when the command is named, and imports what it works with when it runs: `veen --help`
must not wait for libraries it does not use.
"""

import sys
from collections.abc import Sequence

from plumbing.cli import program as roots
from plumbing.cli.program import CommandEntry

# By heading, in the order people meet them.
COMMANDS: dict[str, tuple[CommandEntry, ...]] = {
    "see it work": (CommandEntry("demo", "veen.cli.demo", "see all of it work, in a few seconds"),),
    "run a hub": (
        CommandEntry("hub", "veen.cli.hub", "run a hub, look after it, and ask it how it is"),
        CommandEntry("fsck", "veen.cli.fsck", "check a data directory, trusting nothing in it"),
        CommandEntry("audit", "veen.cli.audit", "verify whole data directories again, on every core or on Spark"),
        CommandEntry("pipeline", "veen.cli.pipeline", "make verified tables of whole logs, on Spark, and check them"),
        CommandEntry("top", "veen.cli.top", "watch a hub: rate, latency, refusals, queue, disk"),
        CommandEntry("selftest", "veen.cli.selftest", "try a hub, ours or not, against the specification"),
        CommandEntry("bench", "veen.cli.bench", "measure a hub on this machine, and tell which promises it keeps"),
    ),
    "keys, and leave to write": (
        CommandEntry("keygen", "veen.cli.own_identity:keygen_app", "make an identity: keys of your own, in a folder"),
        CommandEntry("card", "veen.cli.own_identity:card_app", "show an identity card, after checking its signatures"),
        CommandEntry("stream-key", "veen.cli.stream_key", "make, show, hand out and take in the keys of streams"),
        CommandEntry("cap", "veen.cli.cap", "issue, show and authorise leave to write"),
        CommandEntry("export-identity", "veen.cli.own_identity:export_app", "write all that a client is into a folder"),
        CommandEntry(
            "import-identity", "veen.cli.own_identity:import_app", "make a client directory from an exported one"
        ),
    ),
    "send and read": (
        CommandEntry("send", "veen.cli.send", "send to a stream, and verify the hub's receipt"),
        CommandEntry("stream", "veen.cli.stream", "read a stream, each entry verified before it is opened"),
    ),
    "state of a stream": (
        CommandEntry(
            "id",
            "veen.cli.id.id_group",
            "manage identities: principals, their devices, accounts per realm, organizations, handles",
        ),
        CommandEntry(
            "kv", "veen.cli.kv", "store keys and values on a stream, and read them at any point of their history"
        ),
        CommandEntry(
            "queue",
            "veen.cli.queue",
            "add tasks to a stream; each is processed at least once by one of several consumers",
        ),
        CommandEntry("rpc", "veen.cli.rpc", "call methods over a stream, and answer calls"),
        CommandEntry(
            "op",
            "veen.cli.op.op_group",
            "send operations, trace what they refer to, and check the rules of their profiles",
        ),
        CommandEntry(
            "wallet",
            "veen.cli.wallet",
            "open wallets, transfer amounts between them, and show balances with their history",
        ),
        CommandEntry("fold", "veen.cli.fold", "fold a stream into state with any installed overlay"),
        CommandEntry(
            "snapshot",
            "veen.cli.snapshot",
            "write the state of a stream to a file, and verify such a file against a log",
        ),
    ),
    "run a realm": (
        CommandEntry(
            "revoke", "veen.cli.realm.revoke", "revoke client keys and capabilities, for a time or permanently"
        ),
        CommandEntry("authority", "veen.cli.realm.authority", "set and show the primary hub of each stream of a realm"),
        CommandEntry(
            "label-class",
            "veen.cli.realm.label_class",
            "classify labels by the kind of data they hold",
        ),
        CommandEntry(
            "schema",
            "veen.cli.realm.schema",
            "register schemas of a realm, and show which of them a stream uses",
        ),
    ),
    "find and connect": (
        CommandEntry(
            "discover",
            "veen.cli.discovery.discover",
            "find hubs, overlays and services, and advertise your own",
        ),
        CommandEntry(
            "connect", "veen.cli.discovery.connect", "connect to a service that a directory advertises, and call it"
        ),
    ),
    "across hubs": (
        CommandEntry("bridge", "veen.cli.bridge", "carry events from one hub to another, with all that proves them"),
        CommandEntry("anchor", "veen.cli.anchor", "bind checkpoints to something that their hub cannot change"),
    ),
    "record events": (
        CommandEntry("recorder", "veen.cli.recorder", "record events with evidence, and replay them"),
        CommandEntry("query", "veen.cli.query", "ask about recorded events, and prove the answers"),
    ),
    "prove": (
        CommandEntry(
            "receipt", "veen.cli.hub_statements:receipt_app", "fetch the hub's receipt for an entry, and verify it"
        ),
        CommandEntry("proof", "veen.cli.hub_statements:proof_app", "fetch the proof of an entry, and verify it"),
        CommandEntry(
            "checkpoint",
            "veen.cli.hub_statements:checkpoint_app",
            "fetch the hub's checkpoint of a stream, and verify it",
        ),
        CommandEntry("verify", "veen.cli.verify", "check saved files again, or a whole stream"),
        CommandEntry("evidence", "veen.cli.evidence", "show what a hub said to someone who never met it"),
    ),
    "settings": (CommandEntry("context", "veen.cli.context", "keep the hub and keys of daily use under a name"),),
    "help": (
        CommandEntry("explain", "veen.cli.explain", "say what an error code means and what to do about it"),
        CommandEntry("version", "veen.cli.version", "show the version of this program and of what it speaks"),
    ),
}


def _tell(error: Exception) -> int | None:
    from veen.cli.kit import exit_status

    return exit_status.report_error(error)


def _version() -> str:
    from veen import __version__

    return __version__


app = roots.program(
    "veen",
    "Ordered, end-to-end encrypted logs whose every entry can be proved.",
    COMMANDS,
    "veen hub init --data-dir hub",
    "veen hub start --data-dir hub --admission open",
    "veen top",
    tell=_tell,
    version=_version,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The `veen` command."""
    roots.run(app, "veen", arguments)


def selftest_main() -> None:
    """The `veen-selftest` command of a container: `veen selftest`."""
    main(["selftest", *sys.argv[1:]])


def bridge_main() -> None:
    """The `veen-bridge` command of a container: `veen bridge`."""
    main(["bridge", *sys.argv[1:]])


def hub_main() -> None:
    """The `veen-hub` command of a container: `veen hub`, and where only options are given, a hub in the foreground."""
    given = sys.argv[1:]
    starts = bool(given) and given[0].startswith("-") and given != ["--help"]
    main(["hub", "start", "--foreground", *given] if starts else ["hub", *given])
