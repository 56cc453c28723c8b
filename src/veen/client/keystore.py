"""The keystore: a client's secrets in one file, encrypted with a passphrase.

    keystore.enc   Argon2id over the passphrase, XChaCha20-Poly1305 over the secrets
    keystore.key   the same secrets, not encrypted

The file contains the cost of the key derivation. Reading bounds it, so that a foreign file can neither exhaust memory
nor weaken the derivation. The AEAD authenticates everything before the ciphertext.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from nacl import bindings
from nacl.exceptions import RuntimeError as SodiumError

from veen.client import local_files
from veen.client.client_identity import SEED_BYTES, ClientIdentity
from veen.client.local_files import Disk
from veen.core import DhKey, SigningKey, Unavailable, Unverified, hpke
from veen.core.cbor import Bstr, Bytes, Constant, ListOf, Map, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.limits import MAX_TEXT_BYTES

ENCRYPTED = "keystore.enc"
PLAIN = "keystore.key"
LOCK = "keystore.lock"
MAX_STREAMS = 4_096
MAX_KEYSTORE_BYTES = 1 << 23
_SALT_BYTES = 16
_KIB = 1_024


class WrongPassphrase(Unverified):
    """The passphrase is wrong or the keystore was altered; these cases cannot be distinguished."""


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


@int_map("cost")
class Cost(Wire):
    """The cost of one passphrase guess. The default is the second choice of RFC 9106 §4, with one lane."""

    passes: Annotated[int, Uint(least=1, most=16)] = 3
    memory_kib: Annotated[int, Uint(least=8_192, most=262_144)] = 65_536

    def key(self, passphrase: bytes, salt: bytes) -> bytes:
        try:
            return bindings.crypto_pwhash_alg(
                hpke.KEY_BYTES,
                passphrase,
                salt,
                self.passes,
                self.memory_kib * _KIB,
                bindings.crypto_pwhash_ALG_ARGON2ID13,
            )
        except SodiumError:
            raise Unavailable(f"not enough memory: the keystore's key derivation needs {self.memory_kib} KiB") from None


DEFAULT_COST = Cost()


@int_map("keystore", VersionField(), Constant("veen/keystore", name="kind"), Constant("argon2id", name="kdf"))
class _Sealed(Wire):
    """keystore.enc."""

    cost: Annotated[Cost, Nested(Cost)]
    salt: Annotated[bytes, Bstr(_SALT_BYTES)]
    nonce: Annotated[bytes, Bstr(hpke.XCHACHA_NONCE_BYTES)]
    sealed: Annotated[bytes, Bytes(MAX_KEYSTORE_BYTES)]


# The authenticated data: all fields before the ciphertext.
_HEADER = Map("keystore header", dict(zip(range(1, 7), _Sealed.LAYOUT.kinds, strict=False)))


@dataclass(frozen=True, slots=True)
class _Lock:
    """The key derived from the passphrase, so that the passphrase is not kept."""

    cost: Cost
    salt: bytes
    key: bytes = field(repr=False)

    @classmethod
    def new(cls, passphrase: bytes, cost: Cost) -> Self:
        if not passphrase:
            raise Unavailable("the passphrase is empty: give one, or choose a keystore without passphrase")
        salt = os.urandom(_SALT_BYTES)
        return cls(cost, salt, cost.key(passphrase, salt))

    def seal(self, secrets: Secrets) -> bytes:
        nonce = os.urandom(hpke.XCHACHA_NONCE_BYTES)
        header = _HEADER.write([self.cost, self.salt, nonce])
        sealed = hpke.xchacha_seal(self.key, nonce, header, secrets.encode())
        return _Sealed(self.cost, self.salt, nonce, sealed).encode()

    def unseal(self, file: _Sealed, path: Path) -> Secrets:
        header = _HEADER.write([file.cost, file.salt, file.nonce])
        try:
            return Secrets.decode(hpke.xchacha_open(self.key, file.nonce, header, file.sealed))
        except Unverified:
            raise WrongPassphrase(str(path), "the passphrase is wrong, or the file was altered") from None


class Keystore:
    """The open keystore of one folder."""

    def __init__(self, folder: Path, disk: Disk, secrets: Secrets, lock: _Lock | None) -> None:
        self.secrets = secrets
        self._folder = folder
        self._disk = disk
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, secrets: Secrets, passphrase: bytes | None, cost: Cost, disk: Disk) -> Self:
        """Write a keystore into a folder that has none. The caller syncs the folder."""
        lock = None if passphrase is None else _Lock.new(passphrase, cost)
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
        file = _Sealed.decode(data)
        lock = _Lock(file.cost, file.salt, file.cost.key(passphrase, file.salt))
        return cls(folder, disk, lock.unseal(file, path), lock)

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
            self.secrets = self._lock.unseal(_Sealed.decode(data), path)
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
            self._disk.write_file(self._folder / ENCRYPTED, self._lock.seal(secrets))


def keystore_file(folder: Path) -> Path:
    """The keystore file of a folder."""
    found = [folder / name for name in (ENCRYPTED, PLAIN) if (folder / name).exists()]
    if not found:
        raise Unavailable(f"{folder} has neither {ENCRYPTED} nor {PLAIN}")
    if len(found) == 2:
        raise Unavailable(f"{folder} has both {ENCRYPTED} and {PLAIN}: remove the one that is not used")
    return found[0]
