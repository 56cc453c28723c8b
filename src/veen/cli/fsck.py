"""`veen fsck`: check a data directory, trusting nothing in it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import command, single
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.output import Formatted, Marked, Tone

if TYPE_CHECKING:
    from veen.storage.fsck import FsckReport

app = single("fsck")


@command(app, "fsck", "veen fsck hub", "veen fsck hub --repair", "veen fsck hub --json")
def fsck(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a hub's data directory")],
    mend: Annotated[bool, typer.Option("--repair", help="make again what is wrong and follows from the log")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a data directory, trusting nothing in it.

    Every entry, hash, signature, root, summary, checkpoint, index row and identity file is verified again; nothing is
    written without --repair, and --repair makes again only what follows from the log: index and node files, summaries,
    peak snapshots, checkpoint indexes and binding, but no checkpoint. No hub may run on the directory.

    The exit status is 0 where it is clean, 7 where --repair would mend it, and 8 where the log itself, or what it is
    verified with, is damaged: then only another copy has the original. It is 12 where all of that holds and a secret
    key is missing or wrong: such a copy can be read and verified, and no hub can run on it. If only retired keys are
    missing, a hub can run; it cannot sign checkpoints of the time when they were in use.
    """
    check(directory, mend=mend, as_json=as_json)


def check(directory: Path, *, mend: bool, as_json: bool) -> None:
    """Check, show what was found, and end with the status that says what it comes to."""
    from veen.cli.kit.exit_status import DAMAGED_STATUS, KEYLESS_STATUS, REPAIRABLE_STATUS, hinted
    from veen.core import Unavailable
    from veen.storage import fsck as checker
    from veen.storage.paths import Folders

    folders = Folders(directory)
    if not any(path.exists() for path in (folders.identity, folders.log, folders.keys)):
        raise hinted(Unavailable(f"{directory} is not a hub's data directory"), "veen hub init makes one")
    repaired = False
    try:
        with output.progress("checking") as report:
            found = checker.check(directory, report)
        if mend and found.verdict is checker.FsckVerdict.REPAIRABLE:
            with output.progress("making the index again") as report:
                found = checker.repair(directory, report)
            repaired = True
    except Unavailable as error:
        raise hinted(error, f"veen hub stop --data-dir {directory} ends a hub that this machine runs on it") from None
    _show(directory, found, repaired, as_json)
    statuses = {
        checker.FsckVerdict.KEYLESS: KEYLESS_STATUS,
        checker.FsckVerdict.REPAIRABLE: REPAIRABLE_STATUS,
        checker.FsckVerdict.DAMAGED: DAMAGED_STATUS,
    }
    if found.verdict in statuses:
        raise typer.Exit(statuses[found.verdict])


def _show(directory: Path, found: "FsckReport", repaired: bool, as_json: bool) -> None:
    from veen.storage.fsck import FsckVerdict, Severity

    tones = {
        Severity.DAMAGED: Tone.BAD,
        Severity.REPAIRABLE: Tone.WARN,
        Severity.KEYLESS: Tone.BAD,
        Severity.LEFTOVER: Tone.QUIET,
        Severity.NOTICE: Tone.WARN,
    }
    if as_json:
        output.document(_data(found, repaired))
        return
    rows: list[tuple[output.Value, ...]] = [
        (Marked(str(one.severity), tones[one.severity]), brief(one.artifact), one.stream_seq, one.what)
        for one in found.findings
    ]
    output.table(("severity", "where", "entry", "what"), rows, as_json)
    if found.total > len(found.findings):
        output.remark(f"{found.total - len(found.findings)} further findings are not listed")
    if rows and sys.stdout.isatty():
        sys.stdout.write("\n")
    verdicts = {
        FsckVerdict.CLEAN: Tone.GOOD,
        FsckVerdict.KEYLESS: Tone.BAD,
        FsckVerdict.REPAIRABLE: Tone.WARN,
        FsckVerdict.DAMAGED: Tone.BAD,
    }
    summary: dict[str, output.Value] = {
        "verdict": Marked(str(found.verdict), verdicts[found.verdict]),
        "checked": f"{_count(found.entries, 'entry', 'entries')} under {_count(found.labels, 'label', 'labels')}",
    }
    if repaired:
        summary["repaired"] = "what was wrong was made again from the log"
    output.facts(summary, as_json)
    advice = {
        FsckVerdict.KEYLESS: _about_keys(directory, found),
        FsckVerdict.REPAIRABLE: f"veen fsck {directory} --repair makes it again",
        FsckVerdict.DAMAGED: "restore it from a copy: --repair cannot bring back what only the log had",
    }
    if found.verdict in advice:
        output.remark(f"hint: {advice[found.verdict]}")


def _about_keys(directory: Path, found: "FsckReport") -> str:
    """What others can read is here, and need only be closed to them; what is missing is elsewhere."""
    from veen.storage.fsck_report import Severity
    from veen.storage.metadata import world_readable_keys
    from veen.storage.metadata_check import RETIRED_KEY

    loose = {f"keys/{path.name}" for path in world_readable_keys(directory)}
    keyless = [one for one in found.findings if one.severity is Severity.KEYLESS]
    if all(one.what == RETIRED_KEY for one in keyless):
        return "a hub can run here, and cannot sign checkpoints of the time when the missing keys were in use"
    if loose >= {one.artifact for one in keyless}:
        return f"chmod 600 {directory}/keys/*.seed keeps others from them, and lets a hub run here"
    return "keys/ is only in a copy that was made with it; as it is, no hub can run here"


def brief(artifact: str) -> Formatted:
    """Names as people tell them apart: the first digits of a hash, numbers without their padding."""
    from veen.storage.fsck_report import brief as shortened

    return Formatted(artifact, shortened(artifact))


def _data(found: "FsckReport", repaired: bool) -> output.Json:
    return {
        "verdict": str(found.verdict),
        "repaired": repaired,
        "entries": found.entries,
        "labels": found.labels,
        "counts": {str(severity): count for severity, count in found.counts.items()},
        "findings": [
            {
                "severity": str(one.severity),
                "artifact": one.artifact,
                "what": one.what,
                "label": one.label,
                "stream_seq": one.stream_seq,
            }
            for one in found.findings
        ],
    }


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
