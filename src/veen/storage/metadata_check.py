"""Check the metadata of a data directory, the files named by their hash, and foreign files."""

import os
import re
from collections.abc import Callable
from hashlib import file_digest
from itertools import chain
from pathlib import Path
from typing import TypeVar

from veen.core import (
    Checkpoint,
    HubIdentity,
    IdentitySignature,
    Limits,
    Malformed,
    Profile,
    Receipt,
    Unavailable,
    Unverified,
    VeenError,
    wire_json,
)
from veen.core.cbor import Wire
from veen.core.envelopes import Equivocation
from veen.core.hashing import h
from veen.core.hub_identity import Lineage
from veen.core.profile import AdmissionSettings
from veen.core.recovery import RecoveredLog
from veen.storage import attachment_store, rotation, safe_open
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.metadata import (
    HubMetadata,
    check_key,
    has_no_keys,
    key_files,
    read_earlier_limits,
    read_format,
    read_lineage,
)
from veen.storage.paths import Folders

W = TypeVar("W", bound=Wire)
NO_KEYS = "no secret keys: the log can be read and verified, but no hub can run here"
DRAFT_SUFFIX = ".draft"
INCOMPLETE_DRAFT = "an incomplete draft"
_HEX_NAME = re.compile(r"[0-9a-f]{64}")
_SEGMENT = re.compile(r"\d+\.wal")
_ATTACHMENT_FOLDER = re.compile(r"[0-9a-f]{2}|drafts")
_UPLOADS = re.compile(r"[0-9a-f]{64}\.(?:cbor|tombstone)")
_EVIDENCE = re.compile(r"(?:equivocation|lost)-.*\.cbor")  # checked even if the hash in its name is wrong
_HANDOVERS = re.compile(r"[0-9a-f]{16}\.(?:cbor|rows|mmr|logged)|checkpoint-[0-9a-f]{64}-\d{20}\.cbor")
_REQUESTED = re.compile(r"checkpoint-[0-9a-f]{64}-\d{20}\.cbor|cosigned-[0-9a-f]{64}\.cbor")
_WITNESSES = re.compile(r"[0-9a-f]{64}-\d{20}\.cbor")
_RECOVERY = re.compile(r"recovery-[0-9a-f]{16}\.(?:cbor|logged)|pending|journal-\d{20}(?:-\d+)?")
_LOST_AND_FOUND = "lost+found"


def check_metadata(folders: Folders, report: FsckReport, *, reads_keys: bool = True) -> HubMetadata | None:
    """Check identity, keys, limits and profile. Returns None if the log cannot be verified without them.

    A running hub must not read its secret keys: its process never has them, and the scrubber asks the signer.
    """
    identity = _read(folders.identity, HubIdentity, report)
    signature = _read(folders.identity_sig, IdentitySignature, report)
    if folders.rotation.exists() and identity is not None:
        before = identity
        rotated = _try(report, folders.rotation, lambda: _check_rotation(folders, before))
        report.add(
            Finding(
                Severity.LEFTOVER, folders.rotation.name, "a key rotation was interrupted; the next start completes it"
            )
        )
        identity, signature = rotated or (identity, signature)
    elif identity is not None:
        _check_identity(folders, identity, signature, report)
    if identity is not None and reads_keys:
        _check_keys(folders, identity, report)
    limits = _read(folders.limits, Limits, report)
    earlier = _try(report, folders.limit_history, lambda: read_earlier_limits(folders))
    profile = _read(folders.profile, Profile, report)
    if os.path.lexists(folders.admission):
        _read(folders.admission, AdmissionSettings, report)
    _try(report, folders.format, lambda: read_format(folders))
    for path in folders.root.glob(f"*{DRAFT_SUFFIX}"):
        report.add(Finding(Severity.LEFTOVER, path.name, INCOMPLETE_DRAFT))
    if identity is None or signature is None or limits is None or profile is None:
        return None
    lineage = _check_lineage(folders, identity, profile, report)
    if lineage is None:
        return None
    found = HubMetadata(identity, signature, limits, profile, lineage, earlier or ())
    _check_handovers(folders, found, report)
    _check_requested(folders, found, report)
    return found


def _check_requested(folders: Folders, found: HubMetadata, report: FsckReport) -> None:
    """Check the checkpoints between the regular ones, with the signatures of their witnesses."""
    for path in safe_open.list_folder(folders.requested):
        artifact = str(path.relative_to(folders.root))
        if not _REQUESTED.fullmatch(path.name):
            continue
        try:
            signed = Checkpoint.decode(_bytes(path))
            label, upto_seq = signed.label_curr, signed.upto_seq
            if path not in (folders.requested_checkpoint(label, upto_seq), folders.newest_cosigned(label)):
                raise Unverified("checkpoint", "label or upto_seq differ from the file name")
            found.identity_at(label, upto_seq).verify_checkpoint(signed, found.profile)
        except (OSError, VeenError) as error:
            report.add(Finding(Severity.DAMAGED, artifact, str(error)))


def _check_handovers(folders: Folders, found: HubMetadata, report: FsckReport) -> None:
    """Check the hand-overs and the checkpoints beside them."""
    known = {folders.handover(key.key_id): key for key in found.identity.signing_keys[:-1]}
    for path in safe_open.list_folder(folders.handovers):
        artifact = str(path.relative_to(folders.root))
        try:
            if path in known:
                rotation.check_handover(folders, found.identity, path)
            elif path.suffix == ".cbor" and path.name.startswith("checkpoint-"):
                signed = Checkpoint.decode(_bytes(path))
                if path != folders.final_checkpoint(signed.label_curr, signed.upto_seq):
                    raise Unverified("checkpoint", "label or upto_seq differ from the file name")
                found.identity.verify_checkpoint(signed, found.profile)
            elif path.suffix == ".cbor" and _HANDOVERS.fullmatch(path.name):
                report.add(Finding(Severity.LEFTOVER, artifact, "the hand-over of a rotation that did not happen"))
        except (OSError, VeenError) as error:
            report.add(Finding(Severity.DAMAGED, artifact, str(error)))


def _check_lineage(folders: Folders, identity: HubIdentity, profile: Profile, report: FsckReport) -> Lineage | None:
    """Check the origins of a fork and their checkpoints."""
    lineage = _try(report, folders.origin, lambda: read_lineage(folders, identity))
    if lineage is not None:
        _try(report, folders.origin, lambda: lineage.verify(profile))
    return lineage


def _check_identity(
    folders: Folders, identity: HubIdentity, signature: IdentitySignature | None, report: FsckReport
) -> None:
    _try(report, folders.identity, identity.verify_chain)
    if signature is not None:
        _try(report, folders.identity_sig, lambda: signature.verify(identity))
    _try(report, folders.key_map, lambda: _check_key_map(folders, identity))


def _check_rotation(folders: Folders, before: HubIdentity) -> tuple[HubIdentity, IdentitySignature]:
    """The identity of an interrupted rotation, which the next start puts in place."""
    record, signature = rotation.read_rotation(folders)
    if before != record:
        record.check_follows(before)
    return record, signature


def _check_keys(folders: Folders, identity: HubIdentity, report: FsckReport) -> None:
    """Check the secret keys. A missing one is not damage: the log is verified without secrets.

    A hub needs its newest key and the control key. Retired keys are not needed for anything, and may be destroyed.
    """
    if folders.keys.is_symlink():
        return  # reported with the other misplaced folders
    if has_no_keys(folders):
        report.add(Finding(Severity.KEYLESS, folders.keys.name, NO_KEYS))
        return
    for path, public_key in key_files(folders, identity).items():
        artifact = str(path.relative_to(folders.root))
        if not path.exists():
            if public_key in (None, identity.newest.hub_pk):
                report.add(Finding(Severity.KEYLESS, artifact, "missing"))
            continue
        try:
            check_key(path, public_key)
        except (Malformed, Unavailable, Unverified) as error:
            report.add(Finding(Severity.KEYLESS, artifact, getattr(error, "reason", str(error))))


def check_attachments(folders: Folders, report: FsckReport) -> None:
    """Check attachments against the hashes in their names."""
    for path in chain.from_iterable(map(safe_open.list_folder, safe_open.list_folder(folders.attachments))):
        artifact = str(path.relative_to(folders.root))
        if path.name.endswith(DRAFT_SUFFIX):
            report.add(Finding(Severity.LEFTOVER, artifact, INCOMPLETE_DRAFT))
        elif not _HEX_NAME.fullmatch(path.name):
            report.add(Finding(Severity.NOTICE, artifact, "not the name of an attachment"))
        elif path.parent.name != path.name[:2]:
            report.add(Finding(Severity.DAMAGED, artifact, "an attachment of that name belongs in another folder"))
        elif what := _attachment_fault(path):
            report.add(Finding(Severity.DAMAGED, artifact, what))


def check_uploads(folders: Folders, hub_metadata: HubMetadata | None, report: FsckReport) -> None:
    """Check the records of attachments and the statements about deleted ones."""
    for coid in attachment_store.uploaded(folders):
        check_upload(folders, hub_metadata.identity if hub_metadata else None, coid, report)


def check_upload(folders: Folders, identity: HubIdentity | None, coid: bytes, report: FsckReport) -> None:
    checks: list[tuple[Path, Callable[[], object]]] = [
        (folders.upload(coid), lambda: attachment_store.read_upload(folders, coid))
    ]
    if identity is not None:
        tombstone = folders.attachment_tombstone(coid)
        checks.append((tombstone, lambda: attachment_store.verified_tombstone(folders, identity, coid)))
    for path, check in checks:
        try:
            check()
        except Malformed as error:
            report.add(Finding(Severity.DAMAGED, str(path.relative_to(folders.root)), error.reason))
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            report.add(Finding(Severity.DAMAGED, str(path.relative_to(folders.root)), what))


def check_evidence(folders: Folders, hub_metadata: HubMetadata | None, report: FsckReport) -> None:
    """Check evidence files against the hashes in their names, and the signatures in them."""
    for path in filter(lambda path: _EVIDENCE.fullmatch(path.name), safe_open.list_folder(folders.evidence)):
        try:
            _check_evidence(path, hub_metadata)
        except VeenError as error:
            report.add(Finding(Severity.DAMAGED, str(path.relative_to(folders.root)), str(error)))


def check_recoveries(folders: Folders, hub_metadata: HubMetadata | None, report: FsckReport) -> None:
    """Check the statements of recoveries: their labels, and their signatures."""
    for path in safe_open.list_folder(folders.recoveries):
        artifact = str(path.relative_to(folders.root))
        if path == folders.recovery_pending:
            what = "a recovery is not finished; run `veen hub recover` again, or with the answer of the root"
            report.add(Finding(Severity.LEFTOVER, artifact, what))
        elif path.suffix == ".cbor":
            try:
                found = RecoveredLog.decode(_bytes(path))
                if hub_metadata is not None:
                    found.statement.verify(hub_metadata.identity)
            except VeenError as error:
                report.add(Finding(Severity.DAMAGED, artifact, str(error)))


def _check_evidence(path: Path, hub_metadata: HubMetadata | None) -> None:
    """Two receipts of this hub that contradict each other, in a file named by the hash of both.

    Or a receipt of an entry that the log lacks, in a file named by its label.
    """
    data = _bytes(path)
    if path.name.startswith("lost-"):
        lost = Receipt.decode(data)
        if path.name != f"lost-{lost.label.hex()}.cbor":
            raise Unverified("evidence", "its name does not match its label")
        if hub_metadata is not None:
            hub_metadata.identity.verify_receipt(lost)
        return
    if f"equivocation-{h(data).hex()}.cbor" != path.name:
        raise Unverified("evidence", "the bytes do not hash to its name")
    found = Equivocation.decode(data)
    if hub_metadata is not None:
        hub_metadata.identity.verify_receipt(found.first)
        hub_metadata.identity.verify_receipt(found.second)


def check_strays(folders: Folders, report: FsckReport) -> None:
    """Report files that no hub creates. The log folder and the index have their own checks."""
    kept = (
        *(folders.identity, folders.identity_sig, folders.key_map, folders.rotation, folders.root_request),
        *(folders.limits, folders.limit_history, folders.profile, folders.admission, folders.format, folders.binding),
        *(folders.origin, folders.fault, folders.clock, folders.scrub, folders.lock, folders.keys, folders.journal),
        *(folders.journal_mark, folders.log, folders.index, folders.attachments, folders.evidence, folders.witnesses),
        *(folders.recoveries, folders.handovers, folders.requested, folders.uploads),
        folders.root / _LOST_AND_FOUND,
    )
    here = re.compile("|".join(re.escape(path.name) for path in kept))
    _check_folder(folders, folders.root, here, report, drafts=False)  # drafts are reported with the metadata
    _check_folder(folders, folders.journal, _SEGMENT, report)
    _check_folder(folders, folders.attachments, _ATTACHMENT_FOLDER, report)
    _check_folder(folders, folders.uploads, _UPLOADS, report)
    _check_folder(folders, folders.evidence, _EVIDENCE, report)
    _check_folder(folders, folders.witnesses, _WITNESSES, report)
    _check_folder(folders, folders.requested, _REQUESTED, report)
    _check_folder(folders, folders.recoveries, _RECOVERY, report)
    _check_folder(folders, folders.handovers, _HANDOVERS, report)


def _check_folder(
    folders: Folders, folder: Path, names: re.Pattern[str], report: FsckReport, *, drafts: bool = True
) -> None:
    for path in sorted(folder.iterdir()) if folder == folders.root else safe_open.list_folder(folder):
        artifact = str(path.relative_to(folders.root))
        if path.name.endswith(DRAFT_SUFFIX):
            if drafts:
                report.add(Finding(Severity.LEFTOVER, artifact, INCOMPLETE_DRAFT))
        elif not names.fullmatch(path.name):
            report.add(Finding(Severity.NOTICE, artifact, "not a file of a hub"))


def _hash_of(path: Path) -> str:
    with open(safe_open.open_file(path), "rb", buffering=0) as file:
        return file_digest(file, "sha256").hexdigest()


def _attachment_fault(path: Path) -> str | None:
    try:
        return None if _hash_of(path) == path.name else "the bytes do not hash to its name"
    except Malformed as error:
        return error.reason
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _read(path: Path, cls: type[W], report: FsckReport) -> W | None:
    return _try(report, path, lambda: wire_json.decode_canonical(cls, _bytes(path)))


def _check_key_map(folders: Folders, identity: HubIdentity) -> None:
    if _bytes(folders.key_map) != identity.key_map():
        raise Unverified("key map", "it does not match hub-identity.json")


R = TypeVar("R")


def _try(report: FsckReport, path: Path, check: Callable[[], R]) -> R | None:
    try:
        return check()
    except VeenError as error:
        report.add(Finding(Severity.DAMAGED, path.name, str(error)))
        return None


def _bytes(path: Path) -> bytes:
    try:
        return safe_open.read(path)
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}") from None
