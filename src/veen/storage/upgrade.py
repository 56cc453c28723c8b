"""Upgrade a data directory of an earlier version to the present format.

This version opens earlier formats as they are, so an upgrade can wait. An upgraded directory has the same files as
a new one. Earlier versions refuse it if they read format.json.

    format  content
    1       no format.json. journal.mark, admission.json and index may be missing or of an earlier form
    2       format.json; the log may have pruned chunks and manifests

Every step can be repeated, and the directory can be opened after each. format.json is written last, so an interrupted
upgrade leaves a directory of the old format.
"""

import os
from dataclasses import dataclass

from plumbing.durable import Disk
from veen.core import Malformed, Unavailable, wire_json
from veen.core.profile import AdmissionSettings
from veen.storage import fsck, journal_mark, metadata, rebuild, rotation, safe_open
from veen.storage.fsck_report import FsckReport
from veen.storage.lock import exclusive
from veen.storage.paths import Folders
from veen.storage.rebuild import Progress


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The steps of an upgrade, planned or done."""

    found: int
    steps: tuple[str, ...]
    entries: int = 0
    labels: int = 0


def check(folders: Folders, progress: Progress | None = None, *, isolated: bool = True) -> Upgrade:
    """Verify a directory of an earlier format, and say what an upgrade changes. Changes nothing. No hub may run on it.

    Raises `NewerFormat`, and `Malformed` if something is damaged that the log does not determine.
    """
    found = metadata.read_format(folders)
    if found == metadata.FORMAT:
        return Upgrade(found, ())
    report = _verified(folders, progress, isolated=isolated)
    steps = []
    if report.is_repairable:
        steps.append(f"rebuild {', '.join(sorted(report.repairable))} from the log")
    if journal_mark.read(folders.journal) is None:
        steps.append(f"write {folders.journal_mark.name}, which shows at a start that no group is missing")
    if not os.path.lexists(folders.admission):
        steps.append(f"write {folders.admission.name}: the hub goes on to accept tokens without a presentation")
    steps.append(f"write {folders.format.name} with format {metadata.FORMAT}")
    return Upgrade(found, tuple(steps), report.entries, report.labels)


def upgrade(disk: Disk, folders: Folders, progress: Progress | None = None, *, isolated: bool = True) -> Upgrade:
    """Verify a directory of an earlier format, and bring it to the present one. No hub may run on it."""
    metadata.read_format(folders)
    safe_open.check_folders(folders)
    if folders.recovery_pending.exists():
        raise Unavailable("a recovery of this directory was interrupted; run `veen hub recover` again")
    with exclusive(folders.lock):
        rotation.finish_rotation(disk, folders)
    planned = check(folders, progress, isolated=isolated)
    if not planned.steps:
        return planned
    fsck.repair(folders.root, isolated=isolated)
    try:
        with exclusive(folders.lock):
            if journal_mark.read(folders.journal) is None:
                rebuild.adopt_journal(disk, folders)
            if not os.path.lexists(folders.admission):
                disk.write_file(folders.admission, wire_json.encode(AdmissionSettings(bare_tokens=True)))
            disk.sync_folder(folders.root)
            metadata.write_format(disk, folders)
            disk.sync_folder(folders.root)
    except OSError as error:
        raise Unavailable(f"the upgrade cannot be written: {error.strerror}") from error
    return planned


def _verified(folders: Folders, progress: Progress | None, *, isolated: bool) -> FsckReport:
    report = fsck.check(folders.root, progress, isolated=isolated)
    if report.blocking is not None:
        raise Malformed("data directory", f"{report.blocking}; restore it from another copy before the upgrade")
    return report
