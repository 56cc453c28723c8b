"""Backups of the hub while it runs, stopped or died, and what must hold for them."""

from collections.abc import Mapping
from pathlib import Path

from lab.promises import Violation, shown
from veen.storage import backup, fsck
from veen.storage.fsck_report import Severity

KEPT = 2


class Backups:
    """The folder of the backups, and what each must have: everything that was acknowledged before it began."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._needed: dict[str, Mapping[bytes, int]] = {}  # sizes of labels, by the name of the backup

    def add(self, made: backup.BackupStatement, sizes: Mapping[bytes, int]) -> None:
        self._needed[made.path.name] = sizes

    def check(self) -> None:
        """The newest is there and sound, and none lacks an entry."""
        if not self._needed:
            return
        found = {made.path.name: made for made in backup.statements(self.folder)}
        newest = max(self._needed)
        if newest not in found:
            raise Violation(f"the backup {newest} was complete, and is gone")
        for name, sizes in self._needed.items():
            for label, size in sizes.items() if name in found else ():
                kept, _ = found[name].sizes.get(label, (0, b""))
                if kept < size:
                    raise Violation(f"the backup {name} has {kept} entries, and {shown((label, size))} is acknowledged")
        for finding in fsck.check(found[newest].path, isolated=False).findings:
            if finding.severity not in (Severity.KEYLESS, Severity.LEFTOVER) and not finding.artifact.startswith(
                "index"
            ):
                raise Violation(f"the backup {newest}: {finding}")
