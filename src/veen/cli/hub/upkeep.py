"""Maintenance of a data directory: `veen hub rotate-key`, `handover`, `recover`, `restore`, `backup`, `upgrade`."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from plumbing.cli.command import Misuse
from plumbing.durable import Disk
from veen.cli.hub import hub_process
from veen.cli.hub.hub_settings import operator_token
from veen.cli.kit import key_files, output, output_files
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Moment, Result, fields_of
from veen.core import HubIdentity, Malformed, Refused, Unavailable, Unverified, naming, wire_json
from veen.core.envelopes import KeyRelease, ReleasedKeys, RotationRequest
from veen.core.handover import HandOver
from veen.core.root_key import KeyRequest, RootEndorsement, RootRequest, RootSecret
from veen.storage import backup as backups
from veen.storage import metadata, recovery, rotation, safe_open, upgrade
from veen.storage.backup import newest
from veen.storage.journal import JournalIncomplete
from veen.storage.lock import lock_directory
from veen.storage.paths import Folders
from veen.storage.recovery import Recovered

_RELEASE_ATTEMPTS = 60


def rotate(
    data_dir: Path,
    root: Path | None,
    request: Path | None,
    endorsement: Path | None,
    overlap_sec: int,
    destroy_old: bool,
    passphrase_file: Path | None,
) -> Result:
    """Change the key of a hub, or only write the request for it."""
    if sum(one is not None for one in (root, request, endorsement)) > 1:
        raise Misuse("--root, --request and --endorsement exclude each other", "give one of them")
    if destroy_old and (request is not None or overlap_sec):
        raise Misuse(
            "--destroy-old cannot be used with --request or --overlap-sec",
            "the old key is needed until the overlap is over; the next rotation can destroy it",
        )
    folders = hub_process.folders(data_dir)
    is_running = hub_process.find(data_dir) is not None
    try:
        held = nullcontext() if is_running else lock_directory(folders.lock)
    except Unavailable as error:
        raise hinted(
            error, f"veen hub stop --data-dir {data_dir} stops it; start it again after the rotation"
        ) from None
    with held:
        safe_open.check_folders(folders)
        if not is_running:
            rotation.finish_rotation(Disk(), folders)  # one that a crash interrupted may have added the newest key
        if request is not None:
            hint = "veen hub rotate-key without --request rotates it"
            return _request(request, lambda: rotation.request_rotation(Disk(), folders, int(time.time())), hint)
        secret = _root(root, passphrase_file)
        if is_running:
            rotated = _rotate_running(folders, _answer(folders, secret, endorsement), overlap_sec)
        else:
            last = _last_ts(folders)
            rotated = _rotate(folders, last, _answer(folders, secret, endorsement), overlap_sec)
        handed_over = rotation.read_handovers(folders, rotated)[-1]
        if secret is not None and rotated.root is not None:
            signed = RootRequest.of_handover(rotated, handed_over).endorse(secret)
            handed_over = rotation.attach_root_signature(Disk(), folders, rotated, signed)
        destroyed = _destroy(folders, is_running=is_running) if destroy_old else []
    old, new = rotated.signing_keys[-2:]
    rows = {
        "hub_id": rotated.hub_id,
        "old_key_id": old.key_id,
        "old_valid_until": Moment.of(old.valid_until),
        "new_key_id": new.key_id,
        "new_hub_pk": new.hub_pk,
        "valid_from": Moment(new.valid_from),
        "handed_over": Moment(handed_over.hub_ts),
        "labels": handed_over.labels,
        **({"destroyed": destroyed} if destroy_old else {}),
    }
    unsigned = rotated.root is not None and handed_over.root_sig is None
    hint = f"hint: the root has not signed the hand-over: veen hub handover --data-dir {data_dir} --request FILE"
    count = "1 key" if len(destroyed) == 1 else f"{len(destroyed)} keys"
    facts: list[Column] = [
        *(name for name in rows if name != "destroyed"),
        *([("destroyed", lambda _: count)] if destroy_old else []),
    ]
    return Result(rows, facts=facts, remarks=(hint,) if unsigned else ())


def _destroy(folders: Folders, *, is_running: bool) -> list[bytes]:
    """Destroy the retired keys, after a running hub has stopped using them."""
    found = metadata.read_metadata(folders)
    try:
        if is_running:
            _release_keys(folders, found.identity.hub_id)
        else:
            rotation.check_needless(found, int(time.time()))
        return rotation.destroy_retired(Disk(), folders, found.identity)
    except (Refused, Unavailable) as error:
        raise hinted(error, "the key was changed; the next rotate-key --destroy-old destroys all older keys") from None


def _release_keys(folders: Folders, hub_id: bytes) -> None:
    with hub_process.hub(None, folders.root) as api:
        for _ in range(_RELEASE_ATTEMPTS):
            try:
                api.post("/tooling/release-keys", KeyRelease(hub_id), ReleasedKeys, operator_token())
                return
            except Refused as refused:
                if refused.retry_after is None:
                    raise
                last = refused
                time.sleep(refused.retry_after)
    raise last


def _request(file: Path, ask: Callable[[], RootRequest], hint: str) -> Result:
    """Write a request for the root to a file."""
    output_files.check_new(file)
    try:
        made = ask()
    except Unavailable as error:
        raise hinted(error, hint) from None
    output_files.write_new(file, wire_json.encode(made) + b"\n")
    said, compared = made.recovery, "new_hub_pk" if made.recovery is None else "new_hub_pk and labels_root"
    rows = {
        "hub_id": made.hub_id,
        "root_pk": made.root_pk,
        "new_hub_pk": made.key.hub_pk,
        **({"valid_from": Moment(made.key.valid_from)} if said is None else fields_of(said, "labels", "labels_root")),
        "request": str(file),
    }
    return Result(rows, remarks=(f"hint: {_at_the_root(file, compared)}",))


def _at_the_root(request: Path, compared: str) -> str:
    """The next steps for a request to the root."""
    answer = f"{request.stem}.endorsement"
    return (
        f"on the machine with the root, run veen root endorse {request.name} --root FILE --out {answer}, and compare "
        f"{compared}"
    )


def _answer(folders: Folders, root: RootSecret | None, endorsement: Path | None) -> RootEndorsement | None:
    """The root's endorsement of the next key: made here, or read. None if the hub has no root."""
    if metadata.read_metadata(folders).identity.root is None:
        if root is not None or endorsement is not None:
            raise hinted(Unavailable("the hub has no root key"), "veen root adopt gives it one")
        return None
    if endorsement is not None:
        return key_files.read_endorsement(endorsement)
    if root is None:
        raise Misuse(
            "the root key must endorse the new key",
            "give --root FILE, or write a request with --request FILE and answer it with --endorsement FILE",
        )
    try:
        return rotation.request_rotation(Disk(), folders, int(time.time())).endorse(root)
    except Unverified as error:
        raise hinted(error, "veen root show prints the hub of a root key") from None


def _last_ts(folders: Folders) -> int:
    """The latest time in the log and the record of a stopped hub, whose journal must be complete."""
    try:
        entries = rotation.last_entries(folders)
    except (Malformed, Unavailable) as error:
        fix = f"veen fsck {folders.root} --repair rebuilds the index"
        if metadata.is_recovery_pending(folders) or isinstance(error, JournalIncomplete):
            fix = f"the old key may have signed more: veen hub recover --data-dir {folders.root} changes the key too"
        raise hinted(error, fix) from None
    return max([metadata.read_metadata(folders).identity.hub_keys[-1].valid_from, *(one.hub_ts for one in entries)])


def _rotate(folders: Folders, last: int, endorsement: RootEndorsement | None, overlap_sec: int) -> HubIdentity:
    try:
        return rotation.rotate_key(Disk(), folders, max(int(time.time()), last + 1), overlap_sec, endorsement)
    except (Unavailable, Unverified) as error:
        raise hinted(error, "veen hub rotate-key --request writes a request for the root") from None


def _rotate_running(folders: Folders, endorsement: RootEndorsement | None, overlap_sec: int) -> HubIdentity:
    """Let the running hub change to a key that is made here: the hub process never has a secret key."""
    token = operator_token()
    identity = metadata.read_metadata(folders).identity
    request = rotation.read_root_request(folders) if endorsement is not None else None
    if endorsement is not None:
        if request is None:
            raise hinted(Unverified("root endorsement", "no key was requested"), "veen hub rotate-key --request asks")
        endorsement.verify(identity, request.digest())
        wanted = request.key
    else:
        new = metadata.next_key(folders, identity)
        metadata.add_signing_key(Disk(), folders, new)
        wanted = KeyRequest(new.signer.public_key, max(int(time.time()), identity.hub_keys[-1].valid_from + 1))
    asked = RotationRequest(wanted.hub_pk, wanted.valid_from, overlap_sec, endorsement.sig if endorsement else None)
    try:
        with hub_process.hub(None, folders.root) as api:
            api.post("/tooling/rotate-key", asked, HandOver, token)
    except Refused as refused:
        raise hinted(refused, "the hub goes on with its old key; its log says more") from None
    return metadata.read_metadata(folders).identity


def hand_overs(data_dir: Path, request: Path | None, endorsement: Path | None) -> Result:
    """Show the hand-overs, after adding the root's signature or writing the request for it."""
    if request is not None and endorsement is not None:
        raise Misuse("--request and --endorsement exclude each other", "give one of them")
    folders = hub_process.folders(data_dir)
    identity = metadata.read_metadata(folders).identity
    if endorsement is not None:
        try:
            rotation.attach_root_signature(Disk(), folders, identity, key_files.read_endorsement(endorsement))
        except Unverified as error:
            raise hinted(error, "veen hub handover --request writes the request that the root must endorse") from None
    found, remarks = rotation.read_handovers(folders, identity), tuple[str, ...]()
    if request is not None:
        unsigned = [one for one in found if one.root_sig is None]
        if identity.root is None or not unsigned:
            raise hinted(
                Unavailable("no hand-over needs the signature of a root"), "veen hub handover shows their state"
            )
        output_files.write_new(request, wire_json.encode(RootRequest.of_handover(identity, unsigned[-1])) + b"\n")
        remarks = (f"hint: {_at_the_root(request, f'rows_root {unsigned[-1].rows_root.hex()}')}",)
    rows = [
        {
            "old_key_id": naming.key_id(one.old_pk),
            "new_key_id": naming.key_id(one.new_pk),
            "hub_ts": Moment(one.hub_ts),
            "labels": one.labels,
            "root_signed": one.root_sig is not None,
        }
        for one in found
    ]
    return Result(rows, columns=("old_key_id", "new_key_id", "hub_ts", "labels", "root_signed"), remarks=remarks)


def recover(
    data_dir: Path, root: Path | None, request: Path | None, endorsement: Path | None, passphrase_file: Path | None
) -> Result:
    """Continue with a hub that lost entries, or only write the request for it."""
    if sum(one is not None for one in (root, request, endorsement)) > 1:
        raise Misuse("--root, --request and --endorsement exclude each other", "give one of them")
    place, now = hub_process.folders(data_dir).root, int(time.time())
    if request is not None:
        return _request_recovery(place, request)
    answer = key_files.read_endorsement(endorsement) if endorsement is not None else None
    secret = _root(root, passphrase_file)

    def work() -> Recovered:
        if answer is not None:
            return recovery.complete_recovery(Disk(), place, answer)
        return recovery.recover(Disk(), place, now, secret)

    return _recovered(work, data_dir)


def restore(
    data_dir: Path, backup: Path, root: Path | None, request: Path | None, passphrase_file: Path | None
) -> Result:
    """Create a data directory from a backup."""
    source, secret = hub_process.folders(newest(backup)).root, _root(root, passphrase_file)
    if request is not None:
        output_files.check_new(request)
        recovery.copy_backup(Disk(), source, data_dir)
        return _request_recovery(data_dir, request)
    return _recovered(lambda: recovery.restore(Disk(), source, data_dir, int(time.time()), secret), data_dir)


def _request_recovery(place: Path, file: Path) -> Result:
    hint = "the hub must be stopped; a hub without a root key is recovered without --request"
    return _request(file, lambda: recovery.request_recovery(Disk(), place, int(time.time())), hint)


def _root(root: Path | None, passphrase_file: Path | None) -> RootSecret | None:
    return key_files.read_root(root, passphrase_file) if root is not None else None


def _recovered(work: Callable[[], Recovered], data_dir: Path) -> Result:
    try:
        done = work()
    except Unavailable as error:
        hint = (
            "the hub must be stopped, and a restored directory must not exist yet; --root FILE names the root key, and "
            "--request FILE asks a root on another machine"
        )
        raise hinted(error, hint) from None
    except Malformed as error:
        raise hinted(
            error, f"veen fsck {data_dir} shows the damage; veen hub fork --upto keeps what is sound"
        ) from None
    said = done.log.statement.recovery
    data = {
        "hub_id": said.hub_id,
        "old_key_id": said.old_key_id,
        "new_key_id": said.new_key_id,
        "recovered_at": Moment(said.recovered_at),
        "labels": said.labels,
        "entries": done.entries,
        "statement": str(done.path),
        "moved": [str(path) for path in done.moved],
        "data_dir": str(data_dir),
    }
    remarks = [key_files.ACCEPT_RECOVERY_ADVICE]
    if done.moved:
        remarks.append(
            f"{len(done.moved)} files of the journal do not continue the log; they are in {done.moved[0].parent}"
        )
    return Result(data, remarks=tuple(remarks))


def backup(data_dir: Path, to: Path, keep: int, *, with_keys: bool, prune: bool) -> Result:
    """Add a backup to a folder."""
    source = hub_process.folders(data_dir)
    try:
        with output.progress("copying") as report:
            made, counts = backups.backup(
                Disk(), source.root, to, int(time.time()), keys=with_keys, keep=keep, prune=prune, progress=report
            )
    except (Malformed, Unverified) as error:
        kind = Malformed if isinstance(error, Malformed) else Unverified
        hint = f"veen fsck {data_dir} shows the damage; earlier backups in {to} are unchanged"
        raise hinted(kind(str(data_dir), str(error)), hint) from None
    remarks = []
    if not with_keys and metadata.read_metadata(source).identity.root is None:
        remarks.append("this hub has no root key: without --with-keys no hub can continue with the backup")
    data = {
        "backup": str(made.path),
        "hub_id": made.hub_id,
        "made_at": Moment(made.made_at),
        "labels": len(made.sizes),
        "entries": made.entries,
        "chunks_read": counts.read_chunks,
        "chunks_shared": counts.linked_chunks,
        "bytes_read": counts.read_bytes,
        **({"pruned": counts.pruned, "removed": counts.removed} if prune else {}),
    }
    return Result(data, remarks=tuple(remarks))


def upgraded(data_dir: Path, *, check: bool) -> Result:
    """Upgrade a data directory, or with `check` only say what that would change."""
    source = hub_process.folders(data_dir)
    try:
        with output.progress("checking") as report:
            done = upgrade.check(source, report) if check else upgrade.upgrade(Disk(), source, report)
    except metadata.NewerFormat:
        raise
    except Unavailable as error:
        raise hinted(error, f"veen hub stop --data-dir {data_dir} stops a hub that runs on it") from None
    except Malformed as error:
        raise hinted(Malformed(str(data_dir), str(error)), f"veen fsck {data_dir} shows the damage") from None
    data: dict[str, object] = {"data_dir": str(data_dir), "format": done.found, "present_format": metadata.FORMAT}
    remarks = []
    if done.steps:
        data |= {"labels": done.labels, "entries": done.entries, "steps": list(done.steps)}
        if check:
            remarks.append(f"hint: veen hub upgrade --data-dir {data_dir} does it")
    return Result(data, remarks=tuple(remarks))
