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
    jsonform,
    naming,
)
from veen.core import identity as identities
from veen.core.cbor import Wire
from veen.core.signing import SEED_BYTES
from veen.storage.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.storage.folders import Folders

W = TypeVar("W", bound=Wire)
CONTROL_KEY = "control.seed"


@dataclass(frozen=True, slots=True)
class Papers:
    """What anyone may read of a data directory's identity."""

    identity: HubIdentity
    signature: IdentitySignature
    limits: Limits
    profile: Profile


def create(disk: Disk, root: Path, profile: Profile, limits: Limits, now: int) -> Papers:
    """A new data directory. Refuses a folder that has anything in it, so that nothing is ever written over."""
    folders = Folders(root)
    if root.exists() and any(root.iterdir()):
        raise Unavailable(f"{root} is not empty")
    disk.make_folder(root, PRIVATE_FOLDER)
    for folder in (folders.keys, folders.journal, folders.log, folders.nodes, folders.attachments, folders.evidence):
        disk.make_folder(folder, PRIVATE_FOLDER)
    key = SigningKey.generate()
    record = identities.create(key, valid_from=now)
    _write_seed(disk, folders.keys / CONTROL_KEY, SigningKey.generate())
    _write_seed(disk, _key_file(folders, record.newest.key_id), key)
    disk.write_file(folders.limits, jsonform.encode(limits))
    disk.write_file(folders.profile, jsonform.encode(profile))
    disk.sync_folder(folders.keys)
    # The identity comes last: a directory without it was never a hub.
    write_identity(disk, folders, record, identities.sign(record, key))
    disk.sync_folder(root.absolute().parent)
    return read_papers(folders)


def write_identity(disk: Disk, folders: Folders, record: HubIdentity, signature: IdentitySignature) -> None:
    """The record, its key map and its signature. The keys they name must be on disk already."""
    disk.write_file(folders.key_map, record.key_map())
    disk.write_file(folders.identity_sig, jsonform.encode(signature))
    disk.write_file(folders.identity, jsonform.encode(record))
    disk.sync_folder(folders.root)


def read_papers(folders: Folders) -> Papers:
    """All of them, each checked, and against each other."""
    record = _read(folders.identity, HubIdentity)
    signature = _read(folders.identity_sig, IdentitySignature)
    record.verify(signature, record.hub_id)
    if _bytes(folders.key_map) != record.key_map():
        raise Unverified("hub-key-map.json", "it is not that of hub-identity.json")
    return Papers(record, signature, _read(folders.limits, Limits), _read(folders.profile, Profile))


def read_signing_key(folders: Folders, key_id: bytes) -> SigningKey:
    """The hub's secret key of that id."""
    return _read_seed(_key_file(folders, key_id))


def read_control_key(folders: Folders) -> SigningKey:
    """The key the hub writes its control stream with."""
    return _read_seed(folders.keys / CONTROL_KEY)


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
    if os.stat(path).st_mode & 0o077:
        raise Unavailable(f"{path} can be read by others; its mode must be 600")
    if len(seed) != SEED_BYTES:
        raise Malformed(path.name, f"{len(seed)} bytes, not {SEED_BYTES}")
    return SigningKey(seed)


def _read(path: Path, cls: type[W]) -> W:
    return jsonform.decode_canonical(cls, _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
