"""`veen fsck`: verify a data directory from its files alone."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli.command import Misuse, argument, command, option, single
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import DAMAGED_STATUS, KEYLESS_STATUS, REPAIRABLE_STATUS, hinted
from veen.cli.kit.output import Formatted, Marked, Tone
from veen.cli.kit.result import fields_of
from veen.core import Unavailable
from veen.storage import fsck as checker
from veen.storage import fsck_report
from veen.storage.fsck import FsckReport, FsckVerdict, Severity
from veen.storage.metadata import NewerFormat, world_readable_keys
from veen.storage.paths import Folders

app = single("fsck")

_SEVERITY_TONES = {
    Severity.DAMAGED: Tone.BAD,
    Severity.REPAIRABLE: Tone.WARN,
    Severity.KEYLESS: Tone.BAD,
    Severity.LEFTOVER: Tone.QUIET,
    Severity.NOTICE: Tone.WARN,
}
_VERDICTS = {
    FsckVerdict.CLEAN: (Tone.GOOD, 0),
    FsckVerdict.KEYLESS: (Tone.BAD, KEYLESS_STATUS),
    FsckVerdict.REPAIRABLE: (Tone.WARN, REPAIRABLE_STATUS),
    FsckVerdict.DAMAGED: (Tone.BAD, DAMAGED_STATUS),
}


@command(app, "fsck", "veen fsck hub", "veen fsck hub --repair", "veen fsck hub --online", "veen fsck hub --json")
def fsck(
    directory: Annotated[Path, argument("DIR", "a hub's data directory")],
    repair: Annotated[bool, option("--repair", "rebuild repairable files from the log")] = False,
    online: Annotated[bool, option("--online", "verify while a hub runs on the directory")] = False,
    scratch: Annotated[
        Path | None,
        option("--scratch DIR", "folder for --online, on the same file system", show_default="beside the directory"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a data directory from its files alone.

    Every entry, hash, signature, root, summary, checkpoint, index row and identity file is verified. Nothing is written
    without --repair. --repair rebuilds only what the log determines: index and node files, summaries, peak snapshots,
    checkpoint indexes and checkpoint keys, but no checkpoint. No hub may run on the directory, except with --online.

    With --online the entries that are durable now are verified from a copy that shares the closed chunks with the hub,
    and is removed at the end. The index and the secret keys are not verified then; the scrubber of the hub verifies the
    index.

    The exit status is 0 if the directory is clean and 7 if --repair can correct it. It is 8 if the log, or the metadata
    that verifies it, is damaged; restore it from another copy. It is also 8 if only attachments or their records are
    damaged: --repair rebuilds the rest then, and the attachments can be uploaded again. It is 12 if only a secret key
    is missing or wrong: such a copy can be read and verified, but no hub can run on it. Retired keys may be missing.
    """
    if online and repair:
        raise Misuse("--online and --repair exclude each other", "stop the hub to repair its directory")
    if scratch is not None and not online:
        raise Misuse("--scratch is for --online", "give --online too")
    check(
        directory, repair=repair, as_json=as_json, scratch=(scratch or directory.absolute().parent) if online else None
    )


def check(directory: Path, *, repair: bool, as_json: bool, scratch: Path | None = None) -> None:
    """Verify a data directory, print the findings, and exit with the status of the verdict.

    With `scratch` a hub may run on the directory.
    """
    folders = Folders(directory)
    if not any(path.exists() for path in (folders.identity, folders.log, folders.keys)):
        raise hinted(Unavailable(f"{directory} is not a hub's data directory"), "veen hub init creates one")
    repaired = False
    try:
        with output.progress("checking") as report:
            if scratch is None:
                found = checker.check(directory, report)
            else:
                found = checker.check_online(directory, scratch, report)
        if repair and found.is_repairable:
            with output.progress("rebuilding") as report:
                found = checker.repair(directory, report)
            repaired = True
    except NewerFormat:
        raise
    except Unavailable as error:
        hints = (
            f"veen hub stop --data-dir {directory} stops a hub that runs on it",
            f"veen fsck {directory} --online verifies it while the hub runs",
        )
        raise hinted(error, *hints) if scratch is None else error from None
    if as_json:
        output.document(_data(found, repaired))
    else:
        _show(directory, found, repaired)
    if status := _VERDICTS[found.verdict][1]:
        raise typer.Exit(status)


def _data(found: FsckReport, repaired: bool) -> dict[str, object]:
    return {
        "verdict": str(found.verdict),
        "repaired": repaired,
        "entries": found.entries,
        "labels": found.labels,
        "counts": {str(severity): count for severity, count in found.counts.items()},
        "findings": [fields_of(one, "severity", "artifact", "what", "label", "stream_seq") for one in found.findings],
    }


def _show(directory: Path, found: FsckReport, repaired: bool) -> None:
    rows: list[tuple[output.Value, ...]] = [
        (Marked(str(one.severity), _SEVERITY_TONES[one.severity]), brief(one.artifact), one.stream_seq, one.what)
        for one in found.findings
    ]
    output.table(("severity", "where", "entry", "what"), rows, False)
    if found.total > len(found.findings):
        output.remark(f"{found.total - len(found.findings)} more findings are not listed")
    if rows and sys.stdout.isatty():
        sys.stdout.write("\n")
    summary: dict[str, output.Value] = {
        "verdict": Marked(str(found.verdict), _VERDICTS[found.verdict][0]),
        "checked": f"{_count(found.entries, 'entry', 'entries')} under {_count(found.labels, 'label', 'labels')}",
    }
    if repaired:
        summary["repaired"] = "rebuilt from the log"
    output.facts(summary, False)
    if found.verdict is FsckVerdict.KEYLESS:
        output.remark(f"hint: {_key_advice(directory, found)}")
    elif found.blocking is not None:
        output.remark("hint: restore it from a copy: --repair cannot restore entries of the log")
        if found.damages_log and found.blocking.artifact.partition("/")[0] == "journal":
            output.remark(f"hint: without a copy, veen hub recover --data-dir {directory} states the loss and goes on")
    else:
        if found.is_repairable:
            output.remark(f"hint: veen fsck {directory} --repair rebuilds it")
        if found.verdict is FsckVerdict.DAMAGED:
            output.remark("hint: the log is sound: upload these attachments again, or restore these files from a copy")


def _key_advice(directory: Path, found: FsckReport) -> str:
    """Advice on keys: a wrong file mode is easily corrected, others need a copy."""
    loose = {f"keys/{path.name}" for path in world_readable_keys(directory)}
    keyless = [one for one in found.findings if one.severity is Severity.KEYLESS]
    if loose >= {one.artifact for one in keyless}:
        return f"chmod 600 {directory}/keys/*.seed makes the keys private, so a hub can run here"
    return "restore keys/ from a copy that includes it; until then no hub can run here"


def brief(artifact: str) -> Formatted:
    """A file name; on a terminal with short hashes and without leading zeros."""
    return Formatted(artifact, fsck_report.brief(artifact))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
