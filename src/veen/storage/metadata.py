"""Hub metadata: identity record, keys, limits and profile of a data directory. Verified on every read. Spec §8.4."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
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
    recovery,
    strict_json,
    wire_json,
)
from veen.core import hub_identity as identities
from veen.core.cbor import Wire
from veen.core.hub_identity import ForkOrigin, Lineage, lineage
from veen.core.profile import AdmissionSettings, EarlierLimits, LimitRegistry
from veen.core.recovery import RecoveredLog
from veen.core.signing import DigestSigner
from veen.storage import journal_mark, safe_open, secret_keys
from veen.storage.artifacts import CheckpointBinding
from veen.storage.journal_mark import Mark
from veen.storage.paths import Folders
from veen.storage.secret_keys import OTHERS, PLAIN, ExposedKeyError, KeySource, NewKey

W = TypeVar("W", bound=Wire)
CONTROL_KEY = "control"
# The format of the directories that this version makes. A directory without format.json has format 1. Format 2: the log
# may have pruned chunks and manifests, which versions before it report as damage.
FORMAT = 2
UNFINISHED_RECOVERY = (
    "a recovery of this directory is not finished; run `veen hub recover` again, or with the answer of the root"
)


class NewerFormat(Unavailable):
    """The data directory is of a later version of the program."""


@dataclass(frozen=True, slots=True)
class HubMetadata:
    """The public metadata of a data directory."""

    identity: HubIdentity
    signature: IdentitySignature
    limits: Limits
    profile: Profile
    lineage: Lineage
    earlier_limits: tuple[EarlierLimits, ...] = ()

    @property
    def limit_registry(self) -> LimitRegistry:
        return LimitRegistry(self.limits, self.earlier_limits)

    def identity_at(self, label: bytes, stream_seq: int) -> HubIdentity:
        """The identity that signed an entry: in a fork, that of the origin for the entries it kept."""
        return self.lineage.identity_at(label, stream_seq)

    def control_hub(self, label: bytes, hub_ts: int) -> HubIdentity | None:
        """The hub whose control stream a label with an entry at `hub_ts` belongs to: in a fork, also an origin."""
        epoch, routing_key = self.profile.epoch(hub_ts), self.identity.routing_key
        for one in self.lineage.identities:
            if naming.label(routing_key, naming.control_stream(one.hub_id), epoch) == label:
                return one
        return None


def create(
    disk: Disk,
    root: Path,
    profile: Profile,
    limits: Limits,
    now: int,
    realm_id: bytes | None = None,
    root_key: SigningKey | None = None,
    source: KeySource = PLAIN,
    *,
    incarnates: bool = False,
) -> HubMetadata:
    """Create a data directory. Refuses a folder that is not empty, so that nothing is overwritten.

    `root_key` endorses the first signing key. Its secret half is not stored in the directory. `source` makes the keys
    of the hub, and those of later rotations. A hub that `incarnates` may have existed before with that root: it states
    that it begins without entries.
    """
    try:
        check_empty(root)
        keys = new_keys(source)  # before any folder is made: a token may refuse
        folders = create_folders(disk, root)
        record = identities.create(keys[0].signer, now, realm_id=realm_id, root=root_key, incarnates=incarnates)
        disk.write_file(folders.binding, CheckpointBinding(record.hub_id, ()).encode())
        if root_key is not None and incarnates:
            began = RecoveredLog(recovery.incarnate(root_key, keys[0].signer, now), ())
            disk.make_folder(folders.recoveries, PRIVATE_FOLDER)
            disk.write_file(folders.recovery(record.newest.key_id), began.encode())
            disk.sync_folder(folders.recoveries)
        write_metadata(disk, folders, record, keys, profile, LimitRegistry(limits))
    except OSError as error:
        raise Unavailable(f"cannot create a data directory in {root}: {error.strerror}") from error
    return read_metadata(folders)


def check_empty(root: Path) -> None:
    if root.exists() and any(root.iterdir()):
        raise Unavailable(f"{root} is not empty")


def create_folders(disk: Disk, root: Path) -> Folders:
    """Create the folders of a data directory, in a folder that is empty or missing."""
    folders = Folders(root)
    check_empty(root)
    disk.make_folder(root, PRIVATE_FOLDER)
    for folder in (folders.keys, folders.journal, folders.log, folders.nodes, folders.attachments, folders.evidence):
        disk.make_folder(folder, PRIVATE_FOLDER)
    return folders


def new_keys(source: KeySource = PLAIN) -> tuple[NewKey, NewKey]:
    """The signing key and the control key of a new hub."""
    return _new_key(source), _new_key(source)


def _new_key(source: KeySource) -> NewKey:
    try:
        return source.new_key()
    except (OSError, ValueError) as error:
        raise Unavailable(f"a key cannot be made: {error}") from None


def write_metadata(
    disk: Disk,
    folders: Folders,
    record: HubIdentity,
    keys: tuple[NewKey, NewKey],
    profile: Profile,
    limits: LimitRegistry,
    *,
    bare_tokens: bool = False,
) -> None:
    """Write the metadata of a new hub. The identity record is last: a directory without it is not a hub."""
    signing, control = keys
    _write_key(disk, folders, CONTROL_KEY, control)
    _write_key(disk, folders, key_name(record.newest.key_id), signing)
    if limits.earlier:
        disk.write_file(folders.limit_history, wire_json.encode(limits))
    disk.write_file(folders.limits, wire_json.encode(limits.limits))
    disk.write_file(folders.profile, wire_json.encode(profile))
    journal_mark.create(disk, folders.journal, Mark(first=1))
    disk.write_file(folders.admission, wire_json.encode(AdmissionSettings(bare_tokens)))
    write_format(disk, folders)
    disk.sync_folder(folders.keys)
    write_identity(disk, folders, record, identities.sign(record, signing.signer))
    disk.sync_folder(folders.root.absolute().parent)


def write_identity(disk: Disk, folders: Folders, record: HubIdentity, signature: IdentitySignature) -> None:
    """Write record, key map and signature. The keys they name must already be on disk."""
    disk.write_file(folders.key_map, record.key_map())
    disk.write_file(folders.identity_sig, wire_json.encode(signature))
    disk.write_file(folders.identity, wire_json.encode(record))
    disk.sync_folder(folders.root)


def read_metadata(folders: Folders) -> HubMetadata:
    """Read and verify all metadata files, and check that they agree. Raises `NewerFormat` as `read_format` does."""
    read_format(folders)
    record = read_json(folders.identity, HubIdentity)
    signature = read_json(folders.identity_sig, IdentitySignature)
    record.verify(signature, record.hub_id)
    if _bytes(folders.key_map) != record.key_map():
        raise Unverified("hub-key-map.json", "it does not match hub-identity.json")
    limits, profile = read_json(folders.limits, Limits), read_json(folders.profile, Profile)
    return HubMetadata(record, signature, limits, profile, read_lineage(folders, record), read_earlier_limits(folders))


def read_format(folders: Folders) -> int:
    """The format of a data directory. Raises `NewerFormat` if this version does not know it."""
    if not os.path.lexists(folders.format):
        return 1
    data = _bytes(folders.format)
    found = strict_json.decode(data, folders.format.name)
    number = found.get("format") if isinstance(found, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1 or data != _format(number):
        raise Malformed(folders.format.name, "it does not say which format the directory has")
    if number > FORMAT:
        what = f"{folders.root} has format {number}, and this version knows formats up to {FORMAT}"
        raise NewerFormat(f"{what}: use the version of veen that wrote it, or a later one")
    return number


def write_format(disk: Disk, folders: Folders) -> None:
    """State that the directory has the format of this version. The caller syncs the folder."""
    disk.write_file(folders.format, _format(FORMAT))


def _format(number: int) -> bytes:
    return strict_json.encode({"format": number})


def read_earlier_limits(folders: Folders) -> tuple[EarlierLimits, ...]:
    return read_json(folders.limit_history, LimitRegistry).earlier if folders.limit_history.exists() else ()


def write_limits(disk: Disk, folders: Folders, registry: LimitRegistry) -> None:
    """Write lowered limits and their history. The event is already durable.

    The history is first: a crash in between leaves the earlier limits in limits.json, and the next start writes it.
    """
    disk.write_file(folders.limit_history, wire_json.encode(registry))
    disk.sync_folder(folders.root)
    disk.write_file(folders.limits, wire_json.encode(registry.limits))
    disk.sync_folder(folders.root)


def is_recovery_pending(folders: Folders) -> bool:
    """Whether a recovery was interrupted."""
    return folders.recovery_pending.exists()


def accepts_bare_tokens(folders: Folders) -> bool:
    """Whether the hub authorizes tokens without a presentation, unless it is started with another setting."""
    return not os.path.lexists(folders.admission) or read_json(folders.admission, AdmissionSettings).bare_tokens


def read_lineage(folders: Folders, identity: HubIdentity) -> Lineage:
    """The origins of a fork. Raises if origin.cbor is not the one that the identity record names."""
    return lineage(identity, ForkOrigin.decode(_bytes(folders.origin)) if folders.origin.exists() else None)


def read_signing_key(folders: Folders, key_id: bytes) -> DigestSigner:
    name = key_name(key_id)
    with _key_errors(secret_keys.key_path(folders.keys, name)):
        return secret_keys.load(folders.keys, name)


def has_no_keys(folders: Folders) -> bool:
    """Whether all secret keys are missing, as in a copy made without them."""
    return not secret_keys.key_files(folders.keys)


def key_files(folders: Folders, identity: HubIdentity) -> dict[Path, bytes | None]:
    """The secret key files of a hub, each with its public key. The control key's public key is not recorded."""
    keys: dict[str, bytes | None] = {key_name(one.key_id): one.hub_pk for one in identity.signing_keys}
    keys[CONTROL_KEY] = None
    return {secret_keys.key_path(folders.keys, name): public_key for name, public_key in keys.items()}


def check_key(path: Path, public_key: bytes | None) -> None:
    """Raise if a secret key file is unusable or belongs to another public key. Opens no token, decrypts nothing."""
    with _key_errors(path):
        found = secret_keys.public_key_of(path)
    if public_key is not None and found != public_key:
        raise Unverified(path.name, "it does not match the public key in hub-identity.json")


def world_readable_keys(root: Path) -> list[Path]:
    """The secret keys that other users can read. A hub refuses to use them."""
    return [path for path in secret_keys.key_files(Folders(root).keys) if path.stat().st_mode & OTHERS]


def next_key(folders: Folders, identity: HubIdentity) -> NewKey:
    """Make the successor of the newest key, in the same kind of place."""
    names = (key_name(identity.newest.key_id), CONTROL_KEY)  # a hub that is recovered may lack the first
    paths = [secret_keys.key_path(folders.keys, name) for name in names]
    path = next((one for one in paths if one.exists()), paths[0])
    with _key_errors(path):
        source = secret_keys.source_of(path)
    return _new_key(source)


def ensure_control_key(disk: Disk, folders: Folders, identity: HubIdentity) -> None:
    """Make another key for the control stream if the hub lost its own. Only receipts must be of endorsed keys."""
    if not secret_keys.key_path(folders.keys, CONTROL_KEY).exists():
        disk.make_folder(folders.keys, PRIVATE_FOLDER)
        _write_key(disk, folders, CONTROL_KEY, next_key(folders, identity))
        disk.sync_folder(folders.keys)


def add_signing_key(disk: Disk, folders: Folders, key: NewKey) -> None:
    """Store a new key of the hub, before a record names it."""
    disk.make_folder(folders.keys, PRIVATE_FOLDER)
    _write_key(disk, folders, key_name(naming.key_id(key.signer.public_key)), key)
    disk.sync_folder(folders.keys)


def key_name(key_id: bytes) -> str:
    """The name of the file of a signing key, without its suffix."""
    return f"hub-{key_id.hex()[:16]}"


def _write_key(disk: Disk, folders: Folders, name: str, key: NewKey) -> None:
    disk.write_file(folders.keys / f"{name}{key.suffix}", key.content, PRIVATE_FILE)


@contextmanager
def _key_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except ExposedKeyError as error:
        raise Unavailable(str(error)) from None
    except OSError as error:
        raise Unavailable(f"{error.filename or path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise Malformed(path.name, str(error)) from None


def read_json(path: Path, cls: type[W]) -> W:
    return wire_json.decode_canonical(cls, _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        return safe_open.read(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
