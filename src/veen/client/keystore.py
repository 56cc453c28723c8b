"""The keystore: a client's secrets in one file, encrypted with a passphrase.

keystore.enc   the secrets, encrypted as `core.passphrase` says
keystore.key   the same secrets, not encrypted
"""

from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Annotated, Self

from veen.client import local_files
from veen.client.client_identity import SEED_BYTES, ClientIdentity
from veen.client.local_files import Disk
from veen.core import DhKey, SigningKey, Unavailable
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.limits import MAX_SEALED_BYTES, MAX_TEXT_BYTES
from veen.core.passphrase import DEFAULT_COST, Cost, PassphraseLock, SealedSecrets

ENCRYPTED = "keystore.enc"
PLAIN = "keystore.key"
LOCK = "keystore.lock"
MAX_STREAMS = 4_096
MAX_KEYSTORE_BYTES = MAX_SEALED_BYTES


@int_map("stream secret")
class StreamSecret(Wire):
    """The reader key of one stream."""

    stream_id: Annotated[bytes, Bstr()]
    name: Annotated[str, Text(MAX_TEXT_BYTES)]
    secret: Annotated[bytes, Bstr()] = field(repr=False)


@int_map("secrets", VersionField(), Constant("veen/secrets", name="kind"))
class Secrets(Wire):
    """The content of a keystore."""

    id_sign: Annotated[bytes, Bstr(SEED_BYTES)] = field(repr=False)
    id_dh: Annotated[bytes, Bstr(SEED_BYTES)] = field(repr=False)
    client_seed: Annotated[bytes, Bstr(SEED_BYTES)] = field(repr=False)
    created_at: Annotated[int, Uint()]
    streams: Annotated[tuple[StreamSecret, ...], ListOf(Nested(StreamSecret, name="stream"), most=MAX_STREAMS)] = ()

    @classmethod
    def of(cls, identity: ClientIdentity) -> Self:
        return cls(identity.id_sign.seed, identity.id_dh.secret, identity.client_seed, identity.created_at)

    def identity(self) -> ClientIdentity:
        return ClientIdentity(SigningKey(self.id_sign), DhKey(self.id_dh), self.client_seed, self.created_at)

    def flaw(self) -> str | None:
        ids = [stream.stream_id for stream in self.streams]
        return None if ids == sorted(set(ids)) else "streams are not in strictly ascending order of stream_id"


class Keystore:
    """The open keystore of one folder."""

    def __init__(self, folder: Path, disk: Disk, secrets: Secrets, lock: PassphraseLock | None) -> None:
        self.secrets = secrets
        self._folder = folder
        self._disk = disk
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, secrets: Secrets, passphrase: bytes | None, cost: Cost, disk: Disk) -> Self:
        """Write a keystore into a folder that has none. The caller syncs the folder."""
        lock = None if passphrase is None else PassphraseLock.new(passphrase, cost)
        keystore = cls(folder, disk, secrets, lock)
        keystore._write(secrets)
        return keystore

    @classmethod
    def open(cls, folder: Path, passphrase: bytes | None, disk: Disk) -> Self:
        """Raises `WrongPassphrase` if it does not open, `Unavailable` if it cannot be read."""
        path = keystore_file(folder)
        data = local_files.read_file(path, MAX_KEYSTORE_BYTES)
        if path.name == PLAIN:
            return cls(folder, disk, Secrets.decode(data), None)
        if passphrase is None:
            raise Unavailable(f"{path} is encrypted: a passphrase is required")
        file = SealedSecrets.decode(data)
        lock = PassphraseLock.of(file, passphrase)
        return cls(folder, disk, Secrets.decode(lock.unseal(file, str(path))), lock)

    @property
    def is_encrypted(self) -> bool:
        return self._lock is not None

    @property
    def cost(self) -> Cost:
        """The cost of its key derivation; the default if it is not encrypted."""
        return self._lock.cost if self._lock else DEFAULT_COST

    def reload(self) -> Secrets:
        """Read the file again: another process may have changed it."""
        path = self._folder / (PLAIN if self._lock is None else ENCRYPTED)
        data = local_files.read_file(path, MAX_KEYSTORE_BYTES)
        if self._lock is None:
            self.secrets = Secrets.decode(data)
        else:
            self.secrets = Secrets.decode(self._lock.unseal(SealedSecrets.decode(data), str(path)))
        return self.secrets

    def update(self, change: Callable[[Secrets], Secrets]) -> None:
        """Change the content of the file, under a lock and atomically."""
        with local_files.locked(self._folder / LOCK, str(self._folder), wait=True):
            changed = change(self.reload())
            self._write(changed)
            self._disk.sync_folder(self._folder)
        self.secrets = changed

    def _write(self, secrets: Secrets) -> None:
        if self._lock is None:
            self._disk.write_file(self._folder / PLAIN, secrets.encode())
        else:
            self._disk.write_file(self._folder / ENCRYPTED, self._lock.seal(secrets.encode()))


def keystore_file(folder: Path) -> Path:
    """The keystore file of a folder."""
    found = [folder / name for name in (ENCRYPTED, PLAIN) if (folder / name).exists()]
    if not found:
        raise Unavailable(f"{folder} has neither {ENCRYPTED} nor {PLAIN}")
    if len(found) == 2:
        raise Unavailable(f"{folder} has both {ENCRYPTED} and {PLAIN}: remove the one that is not used")
    return found[0]
