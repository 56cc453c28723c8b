"""Check a data directory while a hub writes to it: a consistent copy of it, without a second copy of the closed chunks.

The copy is made as a backup is made. Files that never change are links to those of the hub, so it needs a folder on the
same file system; nothing in the data directory is changed. A killed check leaves a folder that can be deleted.

The index and the secret keys are not part of a copy. The hub's scrubber checks the index, and a hub that signs has its
keys.
"""

import tempfile
from pathlib import Path

from plumbing.durable import Disk
from veen.core import Malformed, Unavailable, Unverified
from veen.storage import fsck
from veen.storage.backup import DirectoryCopy
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.metadata_check import NO_KEYS
from veen.storage.paths import INDEX_DRAFT, Folders
from veen.storage.rebuild import Progress


def check_online(root: Path, scratch: Path, progress: Progress | None = None, *, isolated: bool = True) -> FsckReport:
    """Check a data directory on which a hub may run. `scratch` is a folder on the same file system.

    Raises `Unavailable` if it cannot be read, or if it changes faster than it can be copied.
    """
    source = Folders(root)
    fsck.check_format(source)
    try:
        with tempfile.TemporaryDirectory(prefix=".veen-fsck-", dir=scratch, ignore_cleanup_errors=True) as made:
            copy = Path(made) / "copy"
            try:
                DirectoryCopy(Disk(), source, Folders(copy), source, verify=False).run()
            except (Malformed, Unverified) as error:
                return _damaged(error)
            return _of_copy(fsck.check(copy, progress, isolated=isolated))
    except OSError as error:
        raise Unavailable(f"the directory cannot be copied to {scratch}: {error.strerror or error}") from error


def _damaged(error: Malformed | Unverified) -> FsckReport:
    report = FsckReport()
    report.add(Finding(Severity.DAMAGED, error.what, error.reason))
    return report


def _of_copy(found: FsckReport) -> FsckReport:
    """Without what a copy never has."""
    report = FsckReport(entries=found.entries, labels=found.labels)
    for one in found.findings:
        is_index = one.artifact.partition("/")[0] in (Folders(Path()).index.name, INDEX_DRAFT)
        if not is_index and one.what != NO_KEYS:
            report.add(one)
    return report
