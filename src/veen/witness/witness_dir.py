"""The directory of a witness: its key, and the last checkpoint that it cosigned of every label.

witness.key, witness.enc   the key, as it is or encrypted with a passphrase
lock                       held by the process that cosigns
hubs/HUB_ID/record.cbor    the newest identity record of a hub
hubs/HUB_ID/LABEL.cbor     what the witness holds of a label
hubs/HUB_ID/reset-KEY.cbor the statements of recoveries that it cosigned
forks/HASH.cbor            proofs that a hub signed two histories

A cosignature leaves the witness only after the state that forbids another one is on disk: each file is replaced
atomically, and its folder synced. A crash before that leaves the old state, and no signature was sent. Opening a
directory syncs it, because an earlier process may have crashed between the two steps. After a failed write nothing more
is cosigned until the directory is opened again.

A copy of the directory that is older than the last answer could cosign a second history. Do not restore a witness from
a backup: create a new one.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.core import HubIdentity, IdentitySignature, Malformed, Refused, SigningKey, Unavailable, cosignature, limits
from veen.core.cbor import Bstr, Constant, Nested, Uint, VersionField, Wire, int_map
from veen.core.cosignature import (
    Cosignature,
    CosignRequest,
    Forked,
    ForkProof,
    HeldLabels,
    HeldRequest,
    ResetRequest,
    WitnessedLabel,
)
from veen.core.hashing import h
from veen.core.passphrase import DEFAULT_COST, Cost, PassphraseLock, SealedSecrets
from veen.core.recovery import RecoveryStatement
from veen.core.signing import SEED_BYTES

PLAIN, ENCRYPTED = "witness.key", "witness.enc"
_HUBS, _FORKS, _LOCK, _RECORD = "hubs", "forks", "lock", "record.cbor"
_LABEL = re.compile(r"([0-9a-f]{64})\.cbor")
_HUB = re.compile(r"[0-9a-f]{64}")
_MAX_FILE_BYTES = 1 << 20
W = TypeVar("W", bound=Wire)


@int_map("witness secret", VersionField(), Constant("veen/witness", name="kind"))
class WitnessSecret(Wire):
    """The content of the key file."""

    seed: Annotated[bytes, Bstr(SEED_BYTES)] = field(repr=False)
    created_at: Annotated[int, Uint()]


@int_map("witnessed hub", VersionField())
class WitnessedHub(Wire):
    """The newest identity record of a hub that the witness has seen."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]


def create(
    folder: Path, passphrase: bytes | None, *, disk: Disk | None = None, now: int = 0, cost: Cost = DEFAULT_COST
) -> bytes:
    """Create the directory of a new witness. Returns its public key. A folder that is not empty is rejected."""
    disk = disk or Disk()
    if folder.exists() and any(folder.iterdir()):
        raise Unavailable(f"{folder} is not empty")
    key = SigningKey.generate()
    secret = WitnessSecret(key.seed, now or int(time.time())).encode()
    try:
        for one in (folder, folder / _HUBS, folder / _FORKS):
            disk.make_folder(one, PRIVATE_FOLDER)
        if passphrase is None:
            disk.write_file(folder / PLAIN, secret, PRIVATE_FILE)
        else:
            disk.write_file(folder / ENCRYPTED, PassphraseLock.new(passphrase, cost).seal(secret), PRIVATE_FILE)
        disk.sync_folder(folder)
        disk.sync_folder(folder.absolute().parent)
    except OSError as error:
        raise Unavailable(f"the witness cannot be written to {folder}: {error.strerror}") from error
    return key.public_key


def is_encrypted(folder: Path) -> bool:
    """Whether the key of a witness needs a passphrase. Raises `Unavailable` if there is no witness."""
    found = [name for name in (PLAIN, ENCRYPTED) if (folder / name).exists()]
    if len(found) != 1:
        raise Unavailable(f"{folder} is not the directory of a witness")
    return found == [ENCRYPTED]


def read_key(folder: Path, passphrase: bytes | None) -> SigningKey:
    """The key of a witness. Raises `WrongPassphrase` if it does not open."""
    if not is_encrypted(folder):
        path = folder / PLAIN
        data = _bytes(path, limits.MAX_SEALED_BYTES)
        if path.stat().st_mode & 0o077:
            raise Unavailable(f"others can read {path}; run chmod 600 {path}")
    elif passphrase is None:
        raise Unavailable(f"{folder / ENCRYPTED} is encrypted: a passphrase is required")
    else:
        sealed = SealedSecrets.decode(_bytes(folder / ENCRYPTED, limits.MAX_SEALED_BYTES))
        data = PassphraseLock.of(sealed, passphrase).unseal(sealed, str(folder / ENCRYPTED))
    return SigningKey(WitnessSecret.decode(data).seed)


def read_hubs(folder: Path) -> Iterator[tuple[WitnessedHub, list[WitnessedLabel]]]:
    """The records of a witness, for people. Works while the witness runs."""
    for path in sorted((folder / _HUBS).iterdir()):
        if _HUB.fullmatch(path.name) and (path / _RECORD).exists():
            labels = [_read(path / name, WitnessedLabel) for name in sorted(_label_files(path))]
            yield _read(path / _RECORD, WitnessedHub), labels


def read_forks(folder: Path) -> list[ForkProof]:
    """The proofs against hubs that the witness has refused."""
    return [_read(path, ForkProof) for path in sorted((folder / _FORKS).glob("*.cbor"))]


@dataclass(eq=False)
class WitnessDir:
    """An open directory. One process and one thread at a time cosign; a lock enforces the first."""

    folder: Path
    key: SigningKey
    hubs: frozenset[bytes] | None = None  # the hubs that it serves; None: any
    disk: Disk = field(default_factory=Disk)
    clock: Callable[[], float] = time.time
    _labels: dict[bytes, int] = field(default_factory=dict)  # number of labels by hub
    _broken: bool = False

    def __post_init__(self) -> None:
        self._lock = _lock(self.folder)
        try:
            for path in (self.folder / _HUBS).iterdir():
                if _HUB.fullmatch(path.name):
                    self.disk.sync_folder(path)
                    self._labels[bytes.fromhex(path.name)] = len(_label_files(path))
            for path in (self.folder / _HUBS, self.folder / _FORKS):
                self.disk.sync_folder(path)
            self.forks = len(list((self.folder / _FORKS).glob("*.cbor")))
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.folder} cannot be read: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    @property
    def label_count(self) -> int:
        return sum(self._labels.values())

    @property
    def hub_count(self) -> int:
        return len(self._labels)

    def cosign(self, asked: CosignRequest) -> Cosignature:
        """Cosign a checkpoint that continues what this witness holds. Raises `Refused` or `Unverified`."""
        hub_id, label = asked.identity.hub_id, asked.checkpoint.label_curr
        known, held = self._open(hub_id, label)
        try:
            identity = cosignature.cosigned(known, held, asked, int(self.clock()))
        except Forked as forked:
            self._keep(forked.proof)
            raise
        made = replace(asked.checkpoint, witness_sigs=None).witnessed(self.key)
        assert made.witness_sigs is not None
        # For a repeated request the state is durable: opening the directory, or the first answer, made it so.
        is_repeated = held is not None and held.reset is None and held.size == made.upto_seq
        if not is_repeated or identity != known:
            self._store(identity, known, asked.signature, None if is_repeated else WitnessedLabel(label, made))
        return Cosignature(self.key.public_key, made.witness_sigs[0])

    def reset(self, asked: ResetRequest) -> Cosignature:
        """Cosign the statement of a recovery. Raises `Refused` or `Unverified`."""
        known, held = self._open(asked.identity.hub_id, asked.label)
        identity, state = cosignature.reset(known, held, asked)
        stated = asked.recovery.statement
        self._store(identity, known, asked.signature, state, stated)
        return Cosignature(self.key.public_key, self.key.sign(cosignature.reset_digest(stated.recovery)))

    def size(self, hub_id: bytes, label: bytes) -> int:
        """The size that the next checkpoint of a label must continue; 0 if the witness holds none."""
        _, held = self._open(hub_id, label)
        return held.size if held else 0

    def held(self, asked: HeldRequest) -> HeldLabels:
        """A signed page of what this witness holds of a hub."""
        self._check_served(asked.hub_id)
        folder = self._folder_of(asked.hub_id)
        names = sorted(_label_files(folder)) if asked.hub_id in self._labels else []
        after = "" if asked.after is None else f"{asked.after.hex()}.cbor"
        rest = [name for name in names if name > after]
        labels = tuple(_read(folder / name, WitnessedLabel) for name in rest[: limits.MAX_HELD_LABELS])
        return HeldLabels.sign(self.key, asked, labels, has_more=len(rest) > limits.MAX_HELD_LABELS)

    def close(self) -> None:
        os.close(self._lock)

    def _open(self, hub_id: bytes, label: bytes) -> tuple[HubIdentity | None, WitnessedLabel | None]:
        """The stored state that a request is judged by."""
        self._check_served(hub_id)
        if self._broken:
            raise Refused("E.UNAVAILABLE", "the disk of the witness failed; its operator must restart it")
        if hub_id not in self._labels:
            if len(self._labels) >= limits.MAX_WITNESSED_HUBS:
                raise Refused("E.LIMIT", f"this witness serves {limits.MAX_WITNESSED_HUBS} hubs and no more")
            return None, None
        folder = self._folder_of(hub_id)
        held = _read_if(folder / f"{label.hex()}.cbor", WitnessedLabel)
        if held is None and self._labels[hub_id] >= limits.MAX_WITNESSED_LABELS:
            raise Refused("E.LIMIT", f"this witness holds {limits.MAX_WITNESSED_LABELS} labels of the hub and no more")
        record = _read_if(folder / _RECORD, WitnessedHub)
        return record.identity if record else None, held

    def _check_served(self, hub_id: bytes) -> None:
        if self.hubs is not None and hub_id not in self.hubs:
            raise Refused("E.FORBIDDEN", "this witness does not serve the hub; its operator must add it with --hub")

    def _store(
        self,
        identity: HubIdentity,
        known: HubIdentity | None,
        signature: IdentitySignature,
        state: WitnessedLabel | None,
        stated: RecoveryStatement | None = None,
    ) -> None:
        """Make the new state durable. The record comes first: a label needs the keys that signed it."""
        folder = self._folder_of(identity.hub_id)
        try:
            if identity.hub_id not in self._labels:
                self.disk.make_folder(folder, PRIVATE_FOLDER)
                self.disk.sync_folder(folder.parent)
            if identity != known:
                self.disk.write_file(folder / _RECORD, WitnessedHub(identity, signature).encode(), PRIVATE_FILE)
                self.disk.sync_folder(folder)
            if stated is not None:
                path = folder / f"reset-{stated.recovery.new_key_id.hex()[:16]}.cbor"
                if not path.exists() and len(list(folder.glob("reset-*.cbor"))) >= limits.MAX_RECOVERIES:
                    raise Refused("E.LIMIT", f"this witness cosigned {limits.MAX_RECOVERIES} recoveries of the hub")
                self.disk.write_file(path, stated.encode(), PRIVATE_FILE)
            is_new = False
            if state is not None:
                path = folder / f"{state.label.hex()}.cbor"
                is_new = not path.exists()
                self.disk.write_file(path, state.encode(), PRIVATE_FILE)
            self.disk.sync_folder(folder)
        except OSError as error:
            self._broken = True
            raise Unavailable(f"the witness cannot write its state: {error.strerror}") from error
        self._labels[identity.hub_id] = self._labels.get(identity.hub_id, 0) + is_new

    def _keep(self, found: ForkProof) -> None:
        """Store a proof against a hub, once, and not above a limit. The refusal has it, too."""
        path = self.folder / _FORKS / f"{h(found.held.encode() + found.offered.encode()).hex()[:32]}.cbor"
        if path.exists() or self.forks >= limits.MAX_EVIDENCE:
            return
        try:
            self.disk.write_file(path, found.encode(), PRIVATE_FILE)
            self.disk.sync_folder(path.parent)
        except OSError as error:
            self._broken = True
            raise Unavailable(f"the witness cannot write the proof: {error.strerror}") from error
        self.forks += 1

    def _folder_of(self, hub_id: bytes) -> Path:
        return self.folder / _HUBS / hub_id.hex()


def _label_files(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if _LABEL.fullmatch(name)]


def _bytes(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise Malformed(path.name, f"longer than {most} bytes")
    return data


def _read(path: Path, cls: type[W]) -> W:
    """A file of this witness. Damage is an error: without it the witness cannot know what it signed."""
    return cls.decode(_bytes(path, _MAX_FILE_BYTES))


def _read_if(path: Path, cls: type[W]) -> W | None:
    try:
        return _read(path, cls)
    except FileNotFoundError:
        return None


def _lock(folder: Path) -> int:
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be locked: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Unavailable(f"another process uses the witness in {folder}") from None
    return fd
