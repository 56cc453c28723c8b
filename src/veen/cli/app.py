"""The `veen` program: its commands and its entry points.

The module of a command is imported when the command is used, so `veen --help` loads no libraries that it does not need.
"""

import sys
from collections.abc import Sequence

from plumbing.cli import program
from plumbing.cli.program import CommandEntry

COMMANDS: dict[str, tuple[CommandEntry, ...]] = {
    "see it work": (CommandEntry("demo", "veen.cli.demo", "run hub, client and verification as a short demo"),),
    "run a hub": (
        CommandEntry("hub", "veen.cli.hub", "run, maintain and query a hub"),
        CommandEntry("fsck", "veen.cli.fsck", "verify a data directory from its files alone"),
        CommandEntry("audit", "veen.cli.audit", "verify whole data directories on all cores or on Spark"),
        CommandEntry("pipeline", "veen.cli.pipeline", "build verified tables from logs on Spark, and verify them"),
        CommandEntry("top", "veen.cli.top", "watch a hub: rate, latency, refusals, queue, disk"),
        CommandEntry("selftest", "veen.cli.selftest", "test any hub against the specification"),
        CommandEntry("bench", "veen.cli.bench", "measure a hub on this machine and compare it with the targets"),
    ),
    "keys and capabilities": (
        CommandEntry("keygen", "veen.cli.own_identity:keygen_app", "create an identity in a client directory"),
        CommandEntry("card", "veen.cli.own_identity:card_app", "verify and show an identity card"),
        CommandEntry("stream-key", "veen.cli.stream_key", "create, show, export and import the keys of streams"),
        CommandEntry("cap", "veen.cli.cap", "issue, renew, show and authorize capabilities"),
        CommandEntry("export-identity", "veen.cli.own_identity:export_app", "export a whole client into a folder"),
        CommandEntry("import-identity", "veen.cli.own_identity:import_app", "create a client directory from an export"),
    ),
    "send and read": (
        CommandEntry("send", "veen.cli.send", "send messages to a stream and verify the hub's receipts"),
        CommandEntry("stream", "veen.cli.stream", "read a stream and verify every entry"),
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
        CommandEntry("bridge", "veen.cli.bridge", "copy events between hubs together with their proofs"),
        CommandEntry("anchor", "veen.cli.anchor", "bind checkpoints to something that the hub cannot change"),
    ),
    "record events": (
        CommandEntry("recorder", "veen.cli.recorder", "record events with evidence, and replay them"),
        CommandEntry("query", "veen.cli.query", "query recorded events, and prove the answers"),
    ),
    "prove": (
        CommandEntry("receipt", "veen.cli.hub_statements:receipt_app", "fetch and verify the receipt of an entry"),
        CommandEntry("proof", "veen.cli.hub_statements:proof_app", "fetch and verify the inclusion proof of an entry"),
        CommandEntry(
            "checkpoint",
            "veen.cli.hub_statements:checkpoint_app",
            "fetch and verify the newest checkpoint of a stream",
        ),
        CommandEntry("verify", "veen.cli.verify", "verify saved files or a whole stream"),
        CommandEntry("evidence", "veen.cli.evidence", "make and verify files that prove entries to others"),
    ),
    "settings": (CommandEntry("context", "veen.cli.context", "store hub, client and stream under a name"),),
    "help": (
        CommandEntry("explain", "veen.cli.explain", "explain an error code and what to do about it"),
        CommandEntry("version", "veen.cli.version", "show the versions of this program and of its protocols"),
    ),
}


def _report(error: Exception) -> int | None:
    from veen.cli.kit import exit_status

    return exit_status.report_error(error)


def _version() -> str:
    from veen import __version__

    return __version__


app = program.program(
    "veen",
    "Ordered, end-to-end encrypted logs whose every entry can be proved.",
    COMMANDS,
    "veen hub init --data-dir hub",
    "veen hub start --data-dir hub --admission open",
    "veen top",
    report=_report,
    version=_version,
)


def main(arguments: Sequence[str] | None = None) -> None:
    program.run(app, "veen", arguments)


def selftest_main() -> None:
    """`veen-selftest` in a container: same as `veen selftest`."""
    main(["selftest", *sys.argv[1:]])


def bridge_main() -> None:
    """`veen-bridge` in a container: same as `veen bridge`."""
    main(["bridge", *sys.argv[1:]])


def hub_main() -> None:
    """`veen-hub` in a container: same as `veen hub`. With options only, it starts a hub in the foreground."""
    arguments = sys.argv[1:]
    options_only = bool(arguments) and arguments[0].startswith("-") and arguments != ["--help"]
    main(["hub", "start", "--foreground", *arguments] if options_only else ["hub", *arguments])
