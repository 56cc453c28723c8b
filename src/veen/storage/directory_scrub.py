"""Check all that a running hub stores, in small steps: the metadata, the log, the binding and the attachments.

The checks of metadata are those of `veen fsck`. A hub replaces metadata files one by one when it changes its key or its
limits. A check during which one of them was replaced is repeated.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from veen.core import Checkpoint, Malformed, Unverified, VeenError
from veen.storage import attachment_store, checkpoint_files, log_scrub, metadata_check, safe_open, secret_keys
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.chunk_reader import FRAME_BYTES
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.index import Index
from veen.storage.log_scrub import BLOCK_BYTES, LogScrub, Recorder, Scrubbed, ScrubPart, ScrubPlace, ScrubStep
from veen.storage.metadata import HubMetadata, key_files
from veen.storage.paths import Folders

# How often a check of the metadata is repeated because a file was replaced meanwhile. The next pass checks it again.
_LOOKS = 3
_COID = re.compile(r"[0-9a-f]{64}")
_DAMAGE = (Severity.DAMAGED, Severity.KEYLESS, Severity.REPAIRABLE)


@dataclass(frozen=True, slots=True)
class DirectoryScrub:
    """Checks of one data directory. The caller's process has its lock."""

    folders: Folders
    index: Index
    hub_metadata: Callable[[], HubMetadata]  # the current one: a key rotation replaces it
    check_key: Callable[[Path, bytes | None], None]  # raises if a secret key is damaged, without reading it here

    @property
    def log(self) -> LogScrub:
        return LogScrub(self.folders, self.index, self.hub_metadata)

    def walk(self, after: ScrubPlace | None) -> Iterator[ScrubStep]:
        """Check everything after a place, or everything."""
        metadata, binding = ScrubPlace(ScrubPart.METADATA), ScrubPlace(ScrubPart.BINDING)
        if after is None:
            yield from self.check(metadata)
        if after is None or after < binding:
            yield from self.log.walk(after if after and after.part is ScrubPart.LOG else None)
            yield from self.check(binding)
        if after is None or after.part is not ScrubPart.UPLOADS:
            for place in self._attachments(after):
                yield from self.check(place)
        for coid in attachment_store.uploaded(self.folders):
            place = ScrubPlace(ScrubPart.UPLOADS, coid)
            if after is None or place > after:
                yield from self.check(place)

    def check(self, place: ScrubPlace) -> Iterator[ScrubStep]:
        """Check one place. A place that no longer exists has no findings."""
        if place.part is ScrubPart.LOG:
            yield from self.log.check(place)
        elif place.part is ScrubPart.METADATA:
            yield from self._metadata(place)
        elif place.part is ScrubPart.UPLOADS:
            report = FsckReport()
            metadata_check.check_upload(self.folders, self.hub_metadata().identity, place.name, report)
            yield ScrubStep(BLOCK_BYTES)
            yield ScrubStep(0, Scrubbed(place, 0, tuple(report.findings)))
        else:
            findings: list[Finding] = []
            check = self._binding(findings) if place.part is ScrubPart.BINDING else self._attachment(place, findings)
            yield from map(ScrubStep, check)
            yield ScrubStep(0, Scrubbed(place, 0, tuple(findings)))

    def exists(self, place: ScrubPlace) -> bool:
        """Whether a check can continue at a place."""
        return place.part is not ScrubPart.LOG or self.log.exists(place)

    def _metadata(self, place: ScrubPlace) -> Iterator[ScrubStep]:
        for _ in range(_LOOKS):
            before = self._versions()
            for path in before:
                if path.parent == self.folders.keys:
                    continue  # the check leaves them to `check_key`
                with suppress(FileNotFoundError, Malformed):  # the check reports both
                    yield ScrubStep(log_scrub.cost(safe_open.read(path)))
            log_scrub.check_reachable(self.folders)
            report = FsckReport()
            found = metadata_check.check_metadata(self.folders, report, reads_keys=False)
            metadata_check.check_recoveries(self.folders, found, report)
            metadata_check.check_evidence(self.folders, found, report)
            if found:
                self._compare_settings(found, report)
                self._check_keys(found, report)
            if self._versions() == before:
                findings = [one for one in report.findings if one.severity in _DAMAGE]
                yield ScrubStep(0, Scrubbed(place, 0, tuple(findings)))
                return

    def _versions(self) -> dict[Path, tuple[int, int]]:
        """The metadata files with inode and time of the last write."""
        here = self.folders
        some = [here.identity, here.identity_sig, here.key_map, here.rotation, here.origin]
        some += [
            here.limits,
            here.limit_history,
            here.profile,
            here.admission,
            here.format,
            *secret_keys.key_files(here.keys),
        ]
        for folder in (here.handovers, here.recoveries, here.evidence):
            some += [path for path in safe_open.list_folder(folder) if path.suffix in (".cbor", ".rows", ".mmr")]
        found = {}
        for path in some:
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                found[path] = status.st_ino, status.st_mtime_ns
        return found

    def _check_keys(self, found: HubMetadata, report: FsckReport) -> None:
        """Check the secret keys of now. Retired ones must not come back into the memory of a process."""
        for path, public_key in key_files(self.folders, found.identity).items():
            if public_key in (None, found.identity.newest.hub_pk):
                with Recorder(self.folders, report.findings, path, Severity.KEYLESS):
                    self.check_key(path, public_key)

    def _compare_settings(self, found: HubMetadata, report: FsckReport) -> None:
        """Nobody signed limits and profile: compare them with those that the hub uses.

        The hub writes lowered limits after it uses them, so the file may still have earlier ones.
        """
        used = self.hub_metadata()
        limits = (used.limits, *(one.limits for one in used.earlier_limits))
        for path, same in (
            (self.folders.profile, found.profile == used.profile),
            (self.folders.limits, found.limits in limits),
            (self.folders.limit_history, found.earlier_limits == used.earlier_limits[: len(found.earlier_limits)]),
        ):
            if not same:
                report.add(Finding(Severity.DAMAGED, path.name, "it differs from what the hub uses"))

    def _binding(self, findings: list[Finding]) -> Iterator[int]:
        """The binding must list the checkpoint of every closed chunk, as it is stored."""
        path = self.folders.binding
        closed = self._closed_chunks()  # first: a chunk gets its row here before its row in the index
        with Recorder(self.folders, findings, path, Severity.REPAIRABLE):
            data = safe_open.read(path)
            yield log_scrub.cost(data)
            found = CheckpointBinding.decode(data)
            if found.hub_id != self.hub_metadata().identity.hub_id:
                raise Unverified("checkpoint binding", "it belongs to another hub")
            for row in found.checkpoints:
                yield BLOCK_BYTES
                if self._signed(row) not in (None, row):
                    raise Unverified("checkpoint binding", f"row {row.upto_seq} does not match its checkpoint")
            known = {row.place for row in found.checkpoints}
            if lacking := next((one for one in closed if one not in known), None):
                what = f"it lacks checkpoint {lacking[1]} of {lacking[0].hex()}"
                raise Unverified("checkpoint binding", what)

    def _closed_chunks(self) -> list[tuple[bytes, int]]:
        """Label and last entry of all closed chunks."""
        found = []
        with self.index.read() as rows:
            label = rows.next_label()
            while label is not None:
                found += [(label, end) for end in rows.chunk_ends(label, 1, self.index.most_rows())]
                label = rows.next_label(label)
        return found

    def _signed(self, row: BoundCheckpoint) -> BoundCheckpoint | None:
        """The row of a stored checkpoint; None if the file is damaged, which the check of its chunk reports."""
        try:
            data = safe_open.read(self.folders.checkpoint(*row.place))
            return checkpoint_files.bound_row(Checkpoint.decode(data), self.hub_metadata())
        except (OSError, VeenError):
            return None

    def _attachments(self, after: ScrubPlace | None) -> Iterator[ScrubPlace]:
        """All attachments after a place. Memory is bounded by the largest of 256 folders."""
        for folder in safe_open.list_folder(self.folders.attachments):
            for path in safe_open.list_folder(folder):
                if _COID.fullmatch(path.name) and path.name.startswith(folder.name):
                    place = ScrubPlace(ScrubPart.ATTACHMENTS, bytes.fromhex(path.name))
                    if after is None or place > after:
                        yield place

    def _attachment(self, place: ScrubPlace, findings: list[Finding]) -> Iterator[int]:
        """Compare an attachment with the hash in its name. It is not known which ones must exist."""
        path, digest = self.folders.attachment(place.name), sha256()
        if not os.path.lexists(path):
            return
        with Recorder(self.folders, findings, path):
            with open(safe_open.open_file(path), "rb", buffering=0) as file:
                while data := file.read(FRAME_BYTES):
                    digest.update(data)
                    yield max(len(data), BLOCK_BYTES)
            if digest.digest() != place.name:
                raise Unverified("attachment", "the bytes do not hash to its name")
