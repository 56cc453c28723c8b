"""Rotate the key of a hub. Spec §8.4.

The identity is three files that must agree, and a crash can come between any two of them. The new identity is therefore
first written to one file. Once that file is durable the rotation is final, and the three files are derived from it,
after a crash if necessary.

    1. the new key, synced                    no record names it yet
    2. hub-identity.next, synced              the rotation has happened
    3. key map, signature, record, synced     the public files
    4. hub-identity.next removed              done
"""

from plumbing.durable import Disk
from veen.core import HubIdentity, IdentitySignature, Malformed, SigningKey, Unavailable, wire_json
from veen.core import hub_identity as identities
from veen.storage import metadata, safe_open
from veen.storage.paths import Folders


def rotate(disk: Disk, folders: Folders, valid_from: int, overlap_sec: int) -> HubIdentity:
    """Add a key that signs from `valid_from` on. The caller holds the lock of the directory."""
    try:
        return _rotate(disk, folders, valid_from, overlap_sec)
    except OSError as error:
        raise Unavailable(f"the key cannot be rotated: {error.strerror}") from error


def _rotate(disk: Disk, folders: Folders, valid_from: int, overlap_sec: int) -> HubIdentity:
    finish(disk, folders)
    record = metadata.read_metadata(folders).identity
    old = metadata.read_signing_key(folders, record.newest.key_id)
    new = SigningKey.generate()
    try:
        rotated = identities.rotate(record, old, new, valid_from, overlap_sec)
    except ValueError as error:
        raise Unavailable(f"the key cannot be rotated: {error}") from None
    metadata.add_signing_key(disk, folders, new)
    signature = identities.sign(rotated, new)
    disk.write_file(folders.rotation, wire_json.encode(rotated) + b"\n" + wire_json.encode(signature))
    disk.sync_folder(folders.root)
    finish(disk, folders)
    return rotated


def finish(disk: Disk, folders: Folders) -> bool:
    """Complete a rotation that a crash interrupted. Returns False if there was none."""
    if not folders.rotation.exists():
        return False
    try:
        _finish(disk, folders)
    except OSError as error:
        raise Unavailable(f"the new identity cannot be written: {error.strerror}") from error
    return True


def _finish(disk: Disk, folders: Folders) -> None:
    rotated, signed = read(folders)
    before = wire_json.decode_canonical(HubIdentity, safe_open.read(folders.identity))
    if before != rotated:
        rotated.check_follows(before)
    if len(rotated.hub_keys) < len(before.hub_keys):
        raise Malformed("hub-identity.next", "it has fewer keys than the current identity")
    metadata.write_identity(disk, folders, rotated, signed)
    disk.unlink(folders.rotation)
    disk.sync_folder(folders.root)


def read(folders: Folders) -> tuple[HubIdentity, IdentitySignature]:
    """The identity of an unfinished rotation, verified."""
    record, _, signature = safe_open.read(folders.rotation).partition(b"\n")
    rotated = wire_json.decode_canonical(HubIdentity, record)
    signed = wire_json.decode_canonical(IdentitySignature, signature)
    rotated.verify(signed, rotated.hub_id)
    return rotated, signed
