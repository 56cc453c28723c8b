"""`veen audit`: verify whole data directories and write a report that can be signed."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from plumbing.cli.command import Group, Misuse, argument, command, group, option
from veen.cli.anchor import verified_anchors
from veen.cli.evidence import NAMED_HUB
from veen.cli.fsck import brief
from veen.cli.kit import open_session, output, pinning
from veen.cli.kit.common_options import (
    AnchoredIn,
    ClientDir,
    HubPin,
    JsonOption,
    PassphraseFile,
    TrustedWitness,
    TsaRoot,
)
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, DAMAGED_STATUS, REPAIRABLE_STATUS, hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.output_files import check_new
from veen.cli.kit.pinning import ExpectedSigner
from veen.cli.kit.result import Column, Moment, Result
from veen.cli.pipeline import SparkConfig, SparkMaster, SparkRemote
from veen.client import local_files
from veen.client.local_files import Disk
from veen.core import SigningKey, Unavailable
from veen.pipeline import jobs
from veen.pipeline.audit import Audit, AuditStatement, KnownDates, audit, page_of, report_of, sign
from veen.pipeline.audit.audit_report import JsonObject, encode
from veen.pipeline.session import command_session

REPORT, PAGE, STATEMENT = "report.json", "report.html", "statement.cbor"
_MAX_REPORT_BYTES = 1 << 26
_FILE_MODE = 0o644
_TONES = {"damaged": Tone.BAD, "repairable": Tone.WARN, "leftover": Tone.QUIET, "notice": Tone.WARN}


class AuditGroup(Group):
    """Reads `veen audit DIR` as `veen audit run DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.list_commands(ctx), "--help"}
        return super().parse_args(ctx, args if not args or args[0] in known else ["run", *args])


app = group(
    "audit",
    """Verify whole data directories on all cores or on Spark.

    The audit verifies every entry, hash, signature, root, summary, peak snapshot, checkpoint and identity file. It
    compares copies of one hub with each other: if they differ, two receipts prove the equivocation.
    """,
    cls=AuditGroup,
)


@command(
    app,
    "run",
    "veen audit run hub",
    "veen audit run hub copy --out audited --sign --client auditor",
    "veen audit run hub --spark --master spark://10.0.0.5:7077",
    "veen audit run hub copy --witness 9f3a…",
    "veen audit run hub copy --anchor doors.anchor --anchored-in git:anchors.git",
)
def run(
    directory: Annotated[list[str], argument("DIR", "data directories, by path or by URL")],
    spark: Annotated[bool, option("--spark", "run on Spark instead of processes on this machine")] = False,
    master: SparkMaster = None,
    remote: SparkRemote = None,
    config: SparkConfig = None,
    workers: Annotated[int | None, option("--workers N", "number of processes, without --spark", min=1)] = None,
    pin: HubPin = None,
    witness: TrustedWitness = None,
    anchor: Annotated[list[Path] | None, option("--anchor FILE", "an anchor of a checkpoint of the hub")] = None,
    anchored_in: AnchoredIn = None,
    tsa_root: TsaRoot = None,
    out: Annotated[Path | None, option("--out DIR", "write report.json and report.html into this folder")] = None,
    signed: Annotated[
        bool, option("--sign", "sign the report with the identity of --client, into statement.cbor")
    ] = False,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Verify whole data directories and report on them.

    `veen audit DIR` does the same. A directory can be audited while its hub runs; entries that are only in the journal
    are then not verified. Secret keys are not read, and no index is needed. The verdict says whether a directory is
    consistent, not which hub it belongs to: --pin names the expected hub.

    If copies differ in entries of a retired key, a thief of that key may have written one of them, and the verdict says
    so. The hub is convicted if the log of each copy leads to a hand-over or to a receipt of a later key, or to a
    checkpoint that a --witness signed or that was anchored before the key was handed over (--anchor). A copy has the
    checkpoints that the witnesses of its hub signed. A key of the hub never counts as a witness. With --pin PATH of the
    current identity file, the audit also knows which keys are retired if no copy is current.

    The exit status is 0 if everything is sound, 7 if only data that can be rebuilt from the log is wrong, 8 if the log
    is damaged, and 11 if copies of one hub contradict each other.
    """
    if signed and out is None:
        raise Misuse("--sign needs --out", "give --out DIR for the signed report")
    if (master or remote or config) and not spark:
        raise Misuse("--master, --remote and --spark-config need --spark", "give --spark too")
    if out is not None:
        for name in (REPORT, PAGE, STATEMENT):
            check_new(out / name)  # a report is evidence and is never overwritten
    key = _auditor(client, passphrase_file) if signed else None
    dates = KnownDates(frozenset(witness or ()), record=pinning.pinned_record(pin))
    if anchor:
        found = verified_anchors(anchor, anchored_in, tsa_root)
        dates = replace(dates, anchored=found.times, checkpoints=found.checkpoints)
    done, where = _audited(directory, pinning.pinned_key(pin), dates, spark, (master, remote, config), workers)
    made = report_of(done, int(time.time()), where)
    if out is not None:
        _write(out, encode(made), page_of(made, None if key is None else key.public_key), key)
    _show(made, pin is not None, out, as_json)
    _exit_with(str(made["verdict"]))


@command(
    app, "verify", "veen audit verify audited --auditor 5f1c…", "veen audit verify audited --trust-embedded --json"
)
def verify(
    folder: Annotated[Path, argument("DIR", "a folder from veen audit run --out DIR --sign")],
    auditor: Annotated[str | None, option("--auditor HEX", "the key that must have signed it")] = None,
    trust_embedded: Annotated[
        bool,
        option(
            "--trust-embedded",
            "without --auditor: accept the auditor's key in the file, although anyone could have made it",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the auditor's signature of a report.

    Without --auditor the verdict is `unverified: no auditor was named` and the exit status is 4, because anyone can
    make a key and sign a report with it. --trust-embedded accepts the key that is in the file, and the verdict says so.
    """
    try:
        wanted = None if auditor is None else bytes.fromhex(auditor)
    except ValueError:
        raise Misuse(f"--auditor {auditor} is not hexadecimal", "veen card DIR shows the key as id_sign") from None
    if auditor is not None and trust_embedded:
        raise Misuse("--auditor and --trust-embedded contradict each other", "give one of them")
    signer = ExpectedSigner(wanted, trust_embedded, "auditor", "the auditor's key", "--auditor HEX")
    report = local_files.read_file(folder / REPORT, _MAX_REPORT_BYTES)
    if not (folder / STATEMENT).exists():
        raise hinted(
            Unavailable(f"the report in {folder} is not signed"), "veen audit run --out DIR --sign makes a signed one"
        )
    found = AuditStatement.decode(local_files.read_file(folder / STATEMENT, _MAX_REPORT_BYTES))
    found.verify(report, wanted)
    rows = {
        "verdict": signer.verdict(found.verdict, Tone.GOOD if found.verdict == "sound" else Tone.BAD),
        "made_at": Moment(found.made_at),
        "auditor": found.auditor_pk,
        "report_digest": found.report_digest,
    }
    verified: Column = ("verified", lambda _: Marked("the auditor's signature", Tone.GOOD))
    Result(rows, facts=[*rows, verified] if wanted is not None else None).show(as_json)
    signer.check_named(folder / STATEMENT)


def _audited(
    paths: list[str],
    pin: bytes | None,
    dates: KnownDates,
    on_spark: bool,
    where: tuple[str | None, str | None, Path | None],
    workers: int | None,
) -> tuple[Audit, str]:
    with output.tally("auditing", "entries") as progress:
        if not on_spark:
            made = audit(paths, jobs.in_processes(workers), progress=progress, pin=pin, dates=dates)
            return made, f"{workers} process{'' if workers == 1 else 'es'}" if workers else "all cores of one machine"
        spark = command_session(*where)
        try:
            made = audit(paths, jobs.on_spark(spark), progress=progress, pin=pin, dates=dates)
            return made, f"Spark {spark.version}"
        finally:
            spark.stop()


def _auditor(client: Path | None, passphrase_file: Path | None) -> SigningKey:
    with open_session.open_client_dir(client, passphrase_file) as folder:
        return folder.identity.id_sign


def _write(out: Path, report: bytes, page: str, key: SigningKey | None) -> None:
    disk = Disk()
    out.mkdir(parents=True, exist_ok=True)
    disk.write_file(out / REPORT, report, _FILE_MODE)
    disk.write_file(out / PAGE, page.encode(), _FILE_MODE)
    if key is not None:
        disk.write_file(out / STATEMENT, sign(key, report).encode(), _FILE_MODE)


def _show(made: JsonObject, pinned: bool, out: Path | None, as_json: bool) -> None:
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
        (
            Marked("equivocation", Tone.BAD),
            " and ".join(one["sources"]),
            one["label"],
            one["stream_seq"],
            one.get("retired", _TWO_ROOTS),
        )
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
    coverage = Counter(row["coverage"] for one in report["directories"] for row in one["labels"] if "coverage" in row)
    if coverage:
        facts["coverage"] = ", ".join(f"{of}: {count} labels" for of, count in coverage.items())
    stated = {name: sum(len(one[name]) for one in report["directories"]) for name in ("handovers", "recoveries")}
    if any(stated.values()):
        facts["stated"] = f"hand-overs: {stated['handovers']}, recoveries: {stated['recoveries']}"
    if out is not None:
        facts["report"] = str(out / PAGE)
    output.facts(facts, as_json)


def _directories(count: int) -> str:
    return f"{count} data {'directory' if count == 1 else 'directories'}"


_UNNAMED_HUB = Marked("the hub in the directory; name the expected hub with --pin", Tone.WARN)
_TWO_ROOTS = "the hub signed two roots for this place; the report has both receipts"


def _exit_with(verdict: str) -> None:
    statuses = {"equivocated": CONTRADICTED_STATUS, "damaged": DAMAGED_STATUS, "repairable": REPAIRABLE_STATUS}
    if verdict.startswith("contradiction"):  # under a retired key
        raise typer.Exit(CONTRADICTED_STATUS)
    if verdict in statuses:
        raise typer.Exit(statuses[verdict])
