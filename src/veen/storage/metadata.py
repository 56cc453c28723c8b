"""A data directory's own papers: identity, keys, limits, profile. Checked whenever they are read. Spec §8.4."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from veen.core import (
    HubIdentity,
    IdentitySignature,
    Limits,
    Malformed,
    Profile,
    SigningKey,
    Unavailable,
    Unverified,
    naming,
    wire_json,
)
from veen.core import hub_identity as identities
from veen.core.cbor import Wire
from veen.core.origin import ForkOrigin, Lineage, lineage
from veen.core.signing import SEED_BYTES
from veen.storage import safe_open
from veen.storage.artifacts import CheckpointBinding
from veen.storage.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.storage.paths import Folders

W = TypeVar("W", bound=Wire)
CONTROL_KEY = "control.seed"


@dataclass(frozen=True, slots=True)
class HubMetadata:
    """What anyone may read of a data directory's identity."""

    identity: HubIdentity
    signature: IdentitySignature
    limits: Limits
    profile: Profile
    lineage: Lineage

    def identity_at(self, label: bytes, stream_seq: int) -> HubIdentity:
        """The hub whose word that entry is: in a fork, perhaps the one it comes from."""
        return self.lineage.identity_at(label, stream_seq)


def create(
    disk: Disk, root: Path, profile: Profile, limits: Limits, now: int, realm_id: bytes | None = None
) -> HubMetadata:
    """A new data directory. Refuses a folder that has anything in it, so that nothing is ever written over."""
    key = SigningKey.generate()
    try:
        folders = lay_out(disk, root)
        record = identities.create(key, valid_from=now, realm_id=realm_id)
        disk.write_file(folders.binding, CheckpointBinding(record.hub_id, ()).encode())
        write_metadata(disk, folders, record, key, profile, limits)
    except OSError as error:
        raise Unavailable(f"{root} cannot be made a data directory: {error.strerror}") from error
    return read_metadata(folders)


def lay_out(disk: Disk, root: Path) -> Folders:
    """The folders of a data directory, in a folder that is empty or not there."""
    folders = Folders(root)
    if root.exists() and any(root.iterdir()):
        raise Unavailable(f"{root} is not empty")
    disk.make_folder(root, PRIVATE_FOLDER)
    for folder in (folders.keys, folders.journal, folders.log, folders.nodes, folders.attachments, folders.evidence):
        disk.make_folder(folder, PRIVATE_FOLDER)
    return folders


def write_metadata(
    disk: Disk, folders: Folders, record: HubIdentity, key: SigningKey, profile: Profile, limits: Limits
) -> None:
    """Make a hub of a directory. The identity comes last: a directory without it was never a hub."""
    _write_seed(disk, folders.keys / CONTROL_KEY, SigningKey.generate())
    _write_seed(disk, _key_file(folders, record.newest.key_id), key)
    disk.write_file(folders.limits, wire_json.encode(limits))
    disk.write_file(folders.profile, wire_json.encode(profile))
    disk.sync_folder(folders.keys)
    write_identity(disk, folders, record, identities.sign(record, key))
    disk.sync_folder(folders.root.absolute().parent)


def write_identity(disk: Disk, folders: Folders, record: HubIdentity, signature: IdentitySignature) -> None:
    """The record, its key map and its signature. The keys they name must be on disk already."""
    disk.write_file(folders.key_map, record.key_map())
    disk.write_file(folders.identity_sig, wire_json.encode(signature))
    disk.write_file(folders.identity, wire_json.encode(record))
    disk.sync_folder(folders.root)


def read_metadata(folders: Folders) -> HubMetadata:
    """All of them, each checked, and against each other."""
    record = _read(folders.identity, HubIdentity)
    signature = _read(folders.identity_sig, IdentitySignature)
    record.verify(signature, record.hub_id)
    if _bytes(folders.key_map) != record.key_map():
        raise Unverified("hub-key-map.json", "it is not that of hub-identity.json")
    limits, profile = _read(folders.limits, Limits), _read(folders.profile, Profile)
    return HubMetadata(record, signature, limits, profile, read_lineage(folders, record))


def read_lineage(folders: Folders, identity: HubIdentity) -> Lineage:
    """The hubs whose log this is. Raises where the origin is not the one the identity names."""
    return lineage(identity, ForkOrigin.decode(_bytes(folders.origin)) if folders.origin.exists() else None)


def read_signing_key(folders: Folders, key_id: bytes) -> SigningKey:
    """The hub's secret key of that id."""
    return _read_seed(_key_file(folders, key_id))


def read_control_key(folders: Folders) -> SigningKey:
    """The key the hub writes its control stream with."""
    return _read_seed(folders.keys / CONTROL_KEY)


def has_no_keys(folders: Folders) -> bool:
    """Whether every secret key is gone, as in a copy that was made without them."""
    return next(folders.keys.glob("*.seed"), None) is None


def key_files(folders: Folders, identity: HubIdentity) -> dict[Path, bytes | None]:
    """The secret keys that a hub needs, each with the public key it must have; the control key's is not on record."""
    signing: dict[Path, bytes | None] = {_key_file(folders, one.key_id): one.hub_pk for one in identity.hub_keys}
    return {**signing, folders.keys / CONTROL_KEY: None}


def check_key(path: Path, public_key: bytes | None) -> None:
    """Raise where a hub could not use the secret key of that file, or it is another key's."""
    found = _read_seed(path)
    if public_key is not None and found.public_key != public_key:
        raise Unverified(path.name, "it is not the secret key of what hub-identity.json names")


def open_to_others(root: Path) -> list[Path]:
    """The secret keys whose mode lets others read them: no hub uses those."""
    return [path for path in sorted(Folders(root).keys.glob("*.seed")) if _is_open(path)]


def add_signing_key(disk: Disk, folders: Folders, key: SigningKey) -> None:
    """Keep a new key of the hub, before any record names it."""
    _write_seed(disk, _key_file(folders, naming.key_id(key.public_key)), key)
    disk.sync_folder(folders.keys)


def _key_file(folders: Folders, key_id: bytes) -> Path:
    return folders.keys / f"hub-{key_id.hex()[:16]}.seed"


def _write_seed(disk: Disk, path: Path, key: SigningKey) -> None:
    disk.write_file(path, key.seed, PRIVATE_FILE)


def _read_seed(path: Path) -> SigningKey:
    seed = _bytes(path)
    if _is_open(path):
        raise Unavailable(f"{path} can be read by others; its mode must be 600")
    if len(seed) != SEED_BYTES:
        raise Malformed(path.name, f"{len(seed)} bytes, not {SEED_BYTES}")
    return SigningKey(seed)


def _is_open(path: Path) -> bool:
    return bool(os.stat(path).st_mode & 0o077)


def _read(path: Path, cls: type[W]) -> W:
    return wire_json.decode_canonical(cls, _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        return safe_open.read(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
