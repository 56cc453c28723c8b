"""Recover a data directory that may have lost entries: keep what is provable, state it, and continue with a new key.

Order of writes, and what a crash after each leaves:

    1. recoveries/pending, synced              no hub starts until a recovery is finished
    2. journal and its mark                    the sound groups that continue the log; the rest is moved aside
    3. index, and what fsck derives            as after `fsck --repair`
    4. identity with the new key               the new key has signed nothing
    5. the statement, synced                   the recovery is complete
    6. recoveries/pending removed              hubs start again

Repeating an interrupted recovery is safe. It adds another key if step 4 was done.
"""

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from plumbing.durable import PRIVATE_FOLDER, Disk
from veen.core import HubIdentity, Malformed, Receipt, Unavailable, Unverified, handover, mmr, naming, proof, recovery
from veen.core.handover import LabelSize, ProvedSize
from veen.core.hashing import HASH_BYTES
from veen.core.hub_identity import HubKey
from veen.core.limits import MAX_WITNESS_SIGS
from veen.core.recovery import (
    LabelRecovery,
    RecoveredLog,
    Recovery,
    RecoveryList,
    RecoveryStatement,
)
from veen.core.root_key import RootEndorsement, RootRequest, RootSecret
from veen.storage import fsck, journal, journal_mark, metadata, rebuild, rotation, safe_open
from veen.storage.fsck_report import FsckReport
from veen.storage.index import Index
from veen.storage.lock import exclusive
from veen.storage.paths import Folders

_NOT_COPIED = ("index", "index.draft", "lock", "fault.txt")


@dataclass(frozen=True, slots=True)
class Recovered:
    """A finished recovery."""

    log: RecoveredLog
    path: Path
    moved: tuple[Path, ...]  # files of the journal that do not continue the log

    @property
    def entries(self) -> int:
        return sum(row.size for row in self.log.labels)


def recover(
    disk: Disk, root: Path, now: int, root_secret: RootSecret | None = None, *, isolated: bool = True
) -> Recovered:
    """Recover a data directory. The hub must be stopped.

    `root_secret` is needed if the hub has a root key. Raises `Malformed` if the log itself is damaged: another copy
    must be restored first. `isolated` is passed to `fsck.check`.
    """
    folders = Folders(root)
    with _writing():
        _finish_rotation(disk, folders)
        _check_root(folders, root_secret)
        moved = _keep_sound(disk, root, isolated=isolated)
        with exclusive(folders.lock):
            asked = _prepare(disk, folders, now)
            return _complete(disk, folders, asked.endorse(root_secret) if asked and root_secret else None, moved)


def request_recovery(disk: Disk, root: Path, now: int, *, isolated: bool = True) -> RootRequest:
    """Do the first half of a recovery, and ask the root, which is elsewhere, to endorse it. No hub starts meanwhile."""
    with _writing():
        _finish_rotation(disk, Folders(root))
        if metadata.read_metadata(Folders(root)).identity.root is None:
            raise Unavailable("the hub has no root key: its old key endorses the recovery")
        _keep_sound(disk, root, isolated=isolated)
        with exclusive(Folders(root).lock):
            asked = _prepare(disk, Folders(root), now)
    assert asked is not None
    return asked


def complete_recovery(disk: Disk, root: Path, endorsement: RootEndorsement) -> Recovered:
    """Do the second half of a recovery, with the root's answer."""
    folders = Folders(root)
    with _writing():
        _finish_rotation(disk, folders)
        with exclusive(folders.lock):
            return _complete(disk, folders, endorsement, ())


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the recovery cannot be written: {error.strerror}") from error


def _finish_rotation(disk: Disk, folders: Folders) -> None:
    """Complete a rotation that a crash interrupted, before anything else is read."""
    safe_open.check_folders(folders)
    with exclusive(folders.lock):
        rotation.finish_rotation(disk, folders)


def _keep_sound(disk: Disk, root: Path, *, isolated: bool) -> tuple[Path, ...]:
    """Steps 1 to 3. Returns the files that were moved out of the journal."""
    folders = Folders(root)
    with exclusive(folders.lock):
        disk.make_folder(folders.recoveries, PRIVATE_FOLDER)
        disk.write_file(folders.recovery_pending, b"")
        disk.sync_folder(folders.recoveries)
        disk.sync_folder(folders.root)
        moved = _salvage(disk, folders, keep=True)
    report = _checked(root, isolated=isolated)
    if report.damages_log and journal.segments(folders.journal):
        # The groups do not continue this log: they are of another copy.
        with exclusive(folders.lock):
            moved += _salvage(disk, folders, keep=False)
        report = _checked(root, isolated=isolated)
    if report.blocking is not None:
        raise Malformed("log", f"{report.blocking}; restore the log from another copy, then run the recovery again")
    return tuple(moved)


def copy_backup(disk: Disk, backup: Path, root: Path) -> None:
    """Copy a backup to a new data directory, which must be recovered before a hub starts there."""
    if root.exists() and any(root.iterdir()):
        raise Unavailable(f"{root} is not empty")
    safe_open.check_folders(Folders(backup))
    metadata.read_metadata(Folders(backup))
    try:
        shutil.copytree(backup, root, symlinks=True, ignore=_ignored(backup), dirs_exist_ok=True)
        disk.make_folder(Folders(root).recoveries, PRIVATE_FOLDER)
        disk.write_file(Folders(root).recovery_pending, b"")
        disk.sync_filesystem(root)
    except (OSError, shutil.Error) as error:
        raise Unavailable(f"{backup} cannot be copied to {root}: {error}") from error


def restore(disk: Disk, backup: Path, root: Path, now: int, root_secret: RootSecret | None = None) -> Recovered:
    """Copy a backup to a new data directory, and recover it there. The backup stays unchanged."""
    _check_root(Folders(backup), root_secret)
    copy_backup(disk, backup, root)
    return recover(disk, root, now, root_secret)


def read_recoveries(folders: Folders) -> list[RecoveredLog]:
    """The finished recoveries, oldest first."""
    found = [RecoveredLog.decode(safe_open.read(path)) for path in folders.recoveries.glob("recovery-*.cbor")]
    return sorted(found, key=lambda one: one.statement.recovery.recovered_at)


def unlogged(folders: Folders, recoveries: Iterable[RecoveredLog]) -> list[RecoveryStatement]:
    """The statements that are not known to be on the control stream."""
    found = (one.statement for one in recoveries)
    return [one for one in found if not folders.recovery_logged(one.recovery.new_key_id).exists()]


def mark_logged(disk: Disk, folders: Folders, statement: RecoveryStatement) -> None:
    """Record that a statement is on the control stream."""
    disk.write_file(folders.recovery_logged(statement.recovery.new_key_id), b"")
    disk.sync_folder(folders.recoveries)


def add_witness_sig(disk: Disk, folders: Folders, stated: RecoveryStatement, sig: bytes) -> None:
    """Keep the cosignature of a witness with the statement of a recovery."""
    path = folders.recovery(stated.recovery.new_key_id)
    log = RecoveredLog.decode(safe_open.read(path))
    known = log.statement.witness_sigs or ()
    if sig in known or len(known) >= MAX_WITNESS_SIGS:
        return
    signed = replace(log.statement, witness_sigs=(*known, sig))
    disk.write_file(path, replace(log, statement=signed).encode())
    disk.sync_folder(folders.recoveries)


class RecoveredLabels:
    """The labels of the recoveries of a hub, with their proofs."""

    def __init__(self, logs: list[RecoveredLog]) -> None:
        self._logs = [(log, [row.label for row in log.labels]) for log in logs]
        self._nodes: dict[int, list[bytes]] = {}

    def of(self, label: bytes) -> RecoveryList:
        """Every recovery, with its row for the label, or with those around it."""
        return RecoveryList(tuple(self._proved(number, label) for number in range(len(self._logs))))

    def has_lost(self, receipt: Receipt, identity: HubIdentity, key: HubKey) -> bool:
        """Whether a recovery states the loss of an entry: it is beyond the label's size, and of a key before it."""
        for log, labels in self._logs:
            at = bisect_left(labels, receipt.label)
            size = log.labels[at].size if receipt.label in labels[at : at + 1] else 0
            if receipt.stream_seq > size and log.statement.replaces(identity, key):
                return True
        return False

    def _proved(self, number: int, label: bytes) -> LabelRecovery:
        log, labels = self._logs[number]
        at = bisect_left(labels, label)
        around = (at,) if label in labels[at : at + 1] else (at - 1, at)
        if number not in self._nodes:
            self._nodes[number] = handover.tree_of_labels(log.labels)[1]
        read = self._nodes[number].__getitem__
        shown = [one for one in around if 0 <= one < len(labels)]
        rows = (ProvedSize(log.labels[one], one + 1, proof.prove(read, one + 1, len(labels))) for one in shown)
        return LabelRecovery(log.statement, tuple(rows))


def _check_root(folders: Folders, root_secret: RootSecret | None) -> None:
    """Raise before anything is changed if the root key is missing or of another hub."""
    identity = metadata.read_metadata(folders).identity
    if identity.root is None:
        return
    if root_secret is None:
        raise Unavailable("the root key of the hub must endorse the recovery")
    if root_secret.key.public_key != identity.root.hub_pk:
        raise Unavailable("the root key belongs to another hub")


def _applied(folders: Folders) -> int | None:
    """The last group that the log has; None if only the journal can tell."""
    index = rebuild.usable_index(folders)
    if index is None:
        return None
    try:
        with index.read() as rows:
            return rows.number("applied")
    finally:
        index.close()


def _salvage(disk: Disk, folders: Folders, *, keep: bool) -> list[Path]:
    try:
        journal_mark.read(folders.journal)
    except Malformed:
        disk.unlink(folders.journal_mark)  # damaged; a new one is written below
    applied = _applied(folders)
    after = journal.first_group(folders.journal) - 1 if applied is None else applied
    number = sum(1 for _ in folders.recoveries.glob("journal-*"))
    return journal.salvage(disk, folders.journal, after, folders.recoveries / f"journal-{number:020d}", keep=keep)


def _checked(root: Path, *, isolated: bool) -> FsckReport:
    report = fsck.check(root, isolated=isolated)
    return fsck.repair(root, isolated=isolated) if report.is_repairable else report


def _prepare(disk: Disk, folders: Folders, now: int) -> RootRequest | None:
    """Write down what will be stated. Returns the request for the root, if there is one."""
    labels, last_ts = _labels(folders)
    recovery.check_count(len(labels))
    identity = metadata.read_metadata(folders).identity
    at = max(now, last_ts, identity.hub_keys[-1].valid_from) + 1  # lost entries may be of this second
    asked = rotation.request_rotation(disk, folders, at) if identity.root else None
    new_key_id = naming.key_id(asked.key.hub_pk) if asked else bytes(HASH_BYTES)  # without a root it is made later
    said = Recovery(identity.hub_id, identity.newest.key_id, new_key_id, at, len(labels), recovery.root_of(labels))
    disk.write_file(folders.recovery_pending, said.encode())
    disk.sync_folder(folders.recoveries)
    return replace(asked, recovery=said) if asked else None


def _complete(disk: Disk, folders: Folders, endorsement: RootEndorsement | None, moved: tuple[Path, ...]) -> Recovered:
    """Steps 4 to 6."""
    said, labels = _prepared(folders)
    before = metadata.read_metadata(folders).identity
    if before.root is not None and (endorsement is None or endorsement.recovery_sig is None):
        raise Unverified("root endorsement", "it does not endorse the recovery")
    old = None if before.root else metadata.read_signing_key(folders, before.newest.key_id)
    identity = rotation.replace_key(disk, folders, said.recovered_at, endorsement)
    metadata.ensure_control_key(disk, folders, identity)
    said = replace(said, new_key_id=identity.newest.key_id)
    new = metadata.read_signing_key(folders, said.new_key_id)
    by_root = endorsement.recovery_sig if endorsement else None
    endorsed = old.sign(said.digest()) if old else by_root or b""
    log = RecoveredLog(RecoveryStatement(said, new.sign(said.digest()), endorsed), labels)
    log.statement.verify(identity)
    path = folders.recovery(said.new_key_id)
    disk.write_file(path, log.encode())
    disk.sync_folder(folders.recoveries)
    for mark in (*folders.handovers.glob("*.logged"), *folders.recoveries.glob("*.logged")):
        disk.unlink(mark)  # the entry may be among the lost ones; a hub logs the statement again
    disk.unlink(folders.recovery_pending)
    disk.sync_folder(folders.recoveries)
    return Recovered(log, path, moved)


def _prepared(folders: Folders) -> tuple[Recovery, tuple[LabelSize, ...]]:
    """The prepared statement and the sizes of all labels. Raises `Unavailable` if the log has changed since."""
    try:
        said = Recovery.decode(safe_open.read(folders.recovery_pending))
    except (FileNotFoundError, Malformed):
        raise Unavailable("no recovery is prepared: write a request for the root first") from None
    labels, _ = _labels(folders)
    if (said.labels, said.labels_root) != (len(labels), recovery.root_of(labels)):
        raise Unavailable("the log has changed since the request: write a new one")
    return said, labels


def _labels(folders: Folders) -> tuple[tuple[LabelSize, ...], int]:
    """The size and root of every label, from the log and the journal, and the latest time of an entry."""
    found: dict[bytes, tuple[int, bytes]] = {}
    if not (folders.index / "data.mdb").exists():
        return (), 0  # fsck found no log either
    index = Index(folders.index, readonly=True)
    try:
        with index.read() as rows:
            applied, last_ts = rows.number("applied"), rows.number("hub_ts")
            for label, head in rows.labels():
                found[label] = head.size, mmr.root_of(head.peaks)
    finally:
        index.close()
    for group in journal.read(folders.journal, applied):
        if not isinstance(group, journal.Torn):
            for entry in group[1]:
                receipt = Receipt.decode(entry.receipt)
                found[receipt.label] = receipt.stream_seq, receipt.mmr_root
                last_ts = max(last_ts, receipt.hub_ts)
    return tuple(LabelSize(label, *found[label]) for label in sorted(found)), last_ts


def _ignored(backup: Path) -> Callable[[str, list[str]], set[str]]:
    def ignored(folder: str, names: list[str]) -> set[str]:
        return set(names) & set(_NOT_COPIED) if Path(folder) == backup else set()

    return ignored
