"""`veen audit`: verify whole data directories and write a report that can be signed."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from plumbing.cli.command import Group, Misuse, command
from veen.cli.evidence import NAMED_HUB
from veen.cli.fsck import brief
from veen.cli.kit import output
from veen.cli.kit.client_options import HubPin, PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.output_files import check_new
from veen.cli.kit.spark_session import start

if TYPE_CHECKING:
    from veen.core import SigningKey
    from veen.pipeline.audit import Audit
    from veen.pipeline.audit.audit_report import JsonObject

REPORT, PAGE, STATEMENT = "report.json", "report.html", "statement.cbor"
_MAX_REPORT_BYTES = 1 << 26
_FILE_MODE = 0o644
_TONES = {"damaged": Tone.BAD, "repairable": Tone.WARN, "leftover": Tone.QUIET, "notice": Tone.WARN}


class AuditGroup(Group):
    """Reads `veen audit DIR` as `veen audit run DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.list_commands(ctx), "--help"}
        return super().parse_args(ctx, args if not args or args[0] in known else ["run", *args])


app = typer.Typer(
    name="audit",
    help="""Verify whole data directories on all cores or on Spark.

    The audit verifies every entry, hash, signature, root, summary, peak snapshot, checkpoint and identity file. It
    compares copies of one hub with each other: if they differ, two receipts prove the equivocation.
    """,
    cls=AuditGroup,
    rich_markup_mode=None,
    add_completion=False,
)


@command(
    app,
    "run",
    "veen audit run hub",
    "veen audit run hub copy --out audited --sign --client auditor",
    "veen audit run hub --spark --master spark://10.0.0.5:7077",
)
def run(
    directory: Annotated[list[str], typer.Argument(metavar="DIR", help="data directories, by path or by URL")],
    spark: Annotated[bool, typer.Option("--spark", help="run on Spark instead of processes on this machine")] = False,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="the Spark master; else all cores of this machine")
    ] = None,
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="a Spark Connect server instead of --master")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--spark-config", metavar="FILE", help="settings of Spark, as TOML or JSON")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="number of processes, without --spark")
    ] = None,
    pin: HubPin = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="write report.json and report.html into this folder")
    ] = None,
    signed: Annotated[
        bool, typer.Option("--sign", help="sign the report with the identity of --client, into statement.cbor")
    ] = False,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Verify whole data directories and report on them.

    `veen audit DIR` does the same. A directory can be audited while its hub runs; entries that are only in the journal
    are then not verified. Secret keys are not read, and no index is needed. The verdict says whether a directory is
    consistent, not which hub it belongs to: --pin names the expected hub.

    The exit status is 0 if everything is sound, 7 if only data that can be rebuilt from the log is wrong, 8 if the log
    is damaged, and 11 if copies of one hub contradict each other.
    """
    from veen.cli.kit import pinning
    from veen.pipeline.audit import page_of, report_of
    from veen.pipeline.audit.audit_report import encode

    if signed and out is None:
        raise Misuse("--sign needs --out", "give --out DIR for the signed report")
    if (master or remote or config) and not spark:
        raise Misuse("--master, --remote and --spark-config need --spark", "give --spark too")
    if out is not None:
        for name in (REPORT, PAGE, STATEMENT):
            check_new(out / name)  # a report is evidence and is never overwritten
    key = _auditor(client, passphrase_file) if signed else None
    done, where = _audited(directory, pinning.pinned_key(pin), spark, (master, remote, config), workers)
    made = report_of(done, int(time.time()), where)
    if out is not None:
        _write(out, encode(made), page_of(made, None if key is None else key.public_key), key)
    _show(made, pin is not None, out, as_json)
    _exit_with(str(made["verdict"]))


@command(
    app, "verify", "veen audit verify audited --auditor 5f1c…", "veen audit verify audited --trust-embedded --json"
)
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a folder from veen audit run --out DIR --sign")],
    auditor: Annotated[
        str | None, typer.Option("--auditor", metavar="HEX", help="the key that must have signed it")
    ] = None,
    trust_embedded: Annotated[
        bool,
        typer.Option(
            "--trust-embedded",
            help="without --auditor: accept the auditor's key in the file, although anyone could have made it",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the auditor's signature of a report.

    Without --auditor the verdict is `unverified: no auditor was named` and the exit status is 4, because anyone can
    make a key and sign a report with it. --trust-embedded accepts the key that is in the file, and the verdict says so.
    """
    from veen.cli.kit.exit_status import hinted
    from veen.cli.kit.pinning import Signer
    from veen.client import local_files
    from veen.core import Unavailable
    from veen.pipeline.audit import AuditStatement

    try:
        wanted = None if auditor is None else bytes.fromhex(auditor)
    except ValueError:
        raise Misuse(f"--auditor {auditor} is not hexadecimal", "veen card DIR shows the key as id_sign") from None
    if auditor is not None and trust_embedded:
        raise Misuse("--auditor and --trust-embedded contradict each other", "give one of them")
    signer = Signer(wanted, trust_embedded, "auditor", "the auditor's key", "--auditor HEX")
    report = local_files.read_file(folder / REPORT, _MAX_REPORT_BYTES)
    if not (folder / STATEMENT).exists():
        raise hinted(
            Unavailable(f"the report in {folder} is not signed"), "veen audit run --out DIR --sign makes a signed one"
        )
    found = AuditStatement.decode(local_files.read_file(folder / STATEMENT, _MAX_REPORT_BYTES))
    found.verify(report, wanted)
    rows: dict[str, output.Value] = {
        "verdict": signer.verdict(found.verdict, Tone.GOOD if found.verdict == "sound" else Tone.BAD),
        "made_at": output.moment(found.made_at),
        "auditor": found.auditor_pk,
        "report_digest": found.report_digest,
    }
    data = {**rows, "made_at": found.made_at}
    if wanted is not None:
        rows["verified"] = Marked("the auditor's signature", Tone.GOOD)
    output.facts(rows, as_json, data)
    signer.check_named(folder / STATEMENT)


def _audited(
    paths: list[str],
    pin: bytes | None,
    on_spark: bool,
    where: tuple[str | None, str | None, Path | None],
    workers: int | None,
) -> "tuple[Audit, str]":
    from veen.pipeline.audit import audit, in_processes, join_inline, join_on
    from veen.pipeline.audit import on_spark as runner_on

    with output.tally("auditing", "entries") as update:

        def progress(done: int, total: int) -> None:
            update(done)

        if not on_spark:
            made = audit(paths, in_processes(workers, progress), join_inline, pin=pin)
            return made, f"{workers} process{'' if workers == 1 else 'es'}" if workers else "all cores of one machine"
        spark = start(*where)
        try:
            return audit(paths, runner_on(spark, progress), join_on(spark), pin=pin), f"Spark {spark.version}"
        finally:
            spark.stop()


def _auditor(client: Path | None, passphrase_file: Path | None) -> "SigningKey":
    from veen.cli.kit import open_session

    with open_session.open_client_dir(client, passphrase_file) as folder:
        return folder.identity.id_sign


def _write(out: Path, report: bytes, page: str, key: "SigningKey | None") -> None:
    from veen.client.local_files import Disk
    from veen.pipeline.audit import sign

    disk = Disk()
    out.mkdir(parents=True, exist_ok=True)
    disk.write_file(out / REPORT, report, _FILE_MODE)
    disk.write_file(out / PAGE, page.encode(), _FILE_MODE)
    if key is not None:
        disk.write_file(out / STATEMENT, sign(key, report).encode(), _FILE_MODE)


def _show(made: "JsonObject", pinned: bool, out: Path | None, as_json: bool) -> None:
    if as_json:
        output.document(made)
        return
    report = cast("dict[str, Any]", made)
    rows: list[tuple[output.Value, ...]] = [
        (
            Marked(finding["severity"], _TONES.get(finding["severity"], Tone.BAD)),
            one["source"],
            brief(finding["artifact"]),
            finding["stream_seq"],
            finding["what"],
        )
        for one in report["directories"]
        for finding in one["findings"]
    ]
    equivocations: list[tuple[output.Value, ...]] = [
        (Marked("equivocation", Tone.BAD), " and ".join(one["sources"]), one["label"], one["stream_seq"], _TWO_ROOTS)
        for one in report["equivocations"]
    ]
    output.table(("severity", "directory", "where", "entry", "what"), [*equivocations, *rows], as_json)
    verdict = str(report["verdict"])
    facts: dict[str, output.Value] = {
        "verdict": Marked(verdict, Tone.GOOD if verdict == "sound" else Tone.BAD),
        "signed by": NAMED_HUB if pinned else _UNNAMED_HUB,
        "checked": f"{report['entries']:,} entries of {_directories(len(report['directories']))}",
        "on": report["ran_on"],
    }
    if out is not None:
        facts["report"] = str(out / PAGE)
    output.facts(facts, as_json)


def _directories(count: int) -> str:
    return f"{count} data {'directory' if count == 1 else 'directories'}"


_UNNAMED_HUB = Marked("the hub in the directory; name the expected hub with --pin", Tone.WARN)
_TWO_ROOTS = "the hub signed two roots for this place; the report has both receipts"


def _exit_with(verdict: str) -> None:
    from veen.cli.kit.exit_status import CONTRADICTED_STATUS, DAMAGED_STATUS, REPAIRABLE_STATUS

    statuses = {"equivocated": CONTRADICTED_STATUS, "damaged": DAMAGED_STATUS, "repairable": REPAIRABLE_STATUS}
    if verdict in statuses:
        raise typer.Exit(statuses[verdict])
