"""The `veen` program: its commands and its entry points.

The module of a command is imported when the command is used, so `veen --help` loads no libraries that it does not need.
"""

import sys
from collections.abc import Sequence

from plumbing.cli import program
from plumbing.cli.program import CommandEntry


def _entry(name: str, summary: str, module: str = "") -> CommandEntry:
    """A command in the module of its name, or in another module of `veen.cli`."""
    return CommandEntry(name, f"veen.cli.{module or name}", summary)


COMMANDS: dict[str, tuple[CommandEntry, ...]] = {
    "see it work": (
        _entry("demo", "run hub, client and verification as a short demo"),
        _entry("quickstart", "set up a hub and a writer for a first try", "demo:quickstart_app"),
    ),
    "run a hub": (
        _entry("hub", "run, maintain and query a hub"),
        _entry("root", "keep and use the root key of a hub"),
        _entry("witness", "run a witness, which cosigns the checkpoints of hubs"),
        _entry("retention", "keep payloads and receipts for a time, and prove what was pruned"),
        _entry("fsck", "verify a data directory from its files alone"),
        _entry("audit", "verify whole data directories on all cores or on Spark"),
        _entry("pipeline", "build verified tables from logs on Spark, and verify them"),
        _entry("top", "watch a hub: rate, latency, refusals, queue, disk"),
        _entry("selftest", "test any hub against the specification"),
        _entry("bench", "measure a hub on this machine and compare it with the targets"),
    ),
    "keys and capabilities": (
        _entry("keygen", "create an identity in a client directory", "own_identity:keygen_app"),
        _entry("card", "verify and show an identity card", "own_identity:card_app"),
        _entry("stream-key", "create, show, export and import the keys of streams", "stream_key"),
        _entry("cap", "issue, renew, show, authorize and revoke capabilities"),
        _entry("export-identity", "export a whole client into a folder", "own_identity:export_app"),
        _entry("import-identity", "create a client directory from an export", "own_identity:import_app"),
    ),
    "send and read": (
        _entry("send", "send messages to a stream and verify the hub's receipts"),
        _entry("stream", "read a stream and verify every entry"),
    ),
    "state of a stream": (
        _entry(
            "id",
            "manage identities: principals, their devices, accounts per realm, organizations, handles",
            "id.id_group",
        ),
        _entry("kv", "store keys and values on a stream, and read them at any point of their history"),
        _entry("queue", "add tasks to a stream; each is processed at least once by one of several consumers"),
        _entry("rpc", "call methods over a stream, and answer calls"),
        _entry("op", "send operations, trace what they refer to, and check the rules of their profiles", "op.op_group"),
        _entry("wallet", "open wallets, transfer amounts between them, and show balances with their history"),
        _entry("fold", "fold a stream into state with any installed overlay"),
        _entry(
            "snapshot",
            "write the state of a stream to a file, and verify such a file against a log",
            "fold:snapshot_app",
        ),
    ),
    "run a realm": (
        _entry("revoke", "revoke client keys and capabilities, for a time or permanently", "realm.revoke"),
        _entry("authority", "set and show the primary hub of each stream of a realm", "realm.authority"),
        _entry("label-class", "classify labels by the kind of data they hold", "realm.label_class"),
        _entry("schema", "register schemas of a realm, and show which of them a stream uses", "realm.schema"),
    ),
    "find and connect": (
        _entry("discover", "find hubs, overlays and services, and advertise your own", "discovery.discover"),
        _entry("connect", "connect to a service that a directory advertises, and call it", "discovery.connect"),
    ),
    "across hubs": (
        _entry("bridge", "copy events between hubs together with their proofs"),
        _entry("anchor", "bind checkpoints to something that the hub cannot change"),
    ),
    "record events": (
        _entry("recorder", "record events with evidence, and replay them"),
        _entry("query", "query recorded events, and prove the answers"),
    ),
    "prove": (
        _entry("receipt", "fetch and verify the receipt of an entry", "hub_statements:receipt_app"),
        _entry("proof", "fetch and verify the inclusion proof of an entry", "hub_statements:proof_app"),
        _entry("checkpoint", "fetch and verify the newest checkpoint of a stream", "hub_statements:checkpoint_app"),
        _entry("verify", "verify saved files or a whole stream"),
        _entry("evidence", "make and verify files that prove entries to others"),
    ),
    "settings": (_entry("context", "store hub, client and stream under a name"),),
    "help": (
        _entry("explain", "explain an error code and what to do about it"),
        _entry("version", "show the versions of this program and of its protocols"),
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
