"""The keystore: a client's secrets in one file, encrypted with a passphrase, with the reader keys of its streams.

keystore.enc   the secrets, encrypted as `core.passphrase` says
keystore.key   the same secrets, not encrypted

The secret half of a stream's key opens entries; the public half seals to the readers. All readers of a stream share
one key. The secret half leaves the keystore only by `export`.
"""

from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Self

from veen.client import local_files
from veen.client.client_identity import SEED_BYTES, ClientIdentity
from veen.client.client_state import ClientState
from veen.client.local_files import Disk
from veen.core import DhKey, Malformed, SigningKey, Unavailable, naming
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.hpke import KEY_BYTES
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


@int_map("stream key", VersionField(), Constant("veen/stream-key", name="kind"))
class StreamKey(Wire):
    """A stream and its public reader key, which a writer needs."""

    name: Annotated[str, Text(MAX_TEXT_BYTES)]
    public_key: Annotated[bytes, Bstr()]

    @property
    def stream_id(self) -> bytes:
        return naming.stream_id(self.name)


@int_map("reader key", VersionField(), Constant("veen/reader-key", name="kind"))
class ReaderKey(Wire):
    """A stream and its secret reader key, as one reader gives it to another. Its holder can read the stream."""

    name: Annotated[str, Text(MAX_TEXT_BYTES)]
    secret: Annotated[bytes, Bstr()] = field(repr=False)


class StreamKeys:
    """The stream keys of one client."""

    def __init__(self, keystore: Keystore, state: ClientState) -> None:
        self._keystore = keystore
        self._tables = state.tables

    def create(self, name: str) -> DhKey:
        """Create the key of a stream that has none."""
        key = DhKey.generate()
        self._add(name, key, fresh=True)
        return key

    def import_secret(self, name: str, key: DhKey) -> None:
        """Become a reader. Importing the same key again changes nothing; another key is rejected."""
        self._add(name, key, fresh=False)

    def add_public(self, name: str, public_key: bytes) -> None:
        """Become able to write. Rejects another key than the known one, because readers could not open the entries."""
        if len(public_key) != KEY_BYTES:
            raise Malformed("stream key", f"it has {len(public_key)} bytes, not {KEY_BYTES}")
        self._check_same(name, self.public(_named(name)), public_key)
        self._put_public(StreamKey(name, public_key))

    def public(self, stream_id: bytes) -> bytes | None:
        """The key to seal to; None if it is unknown."""
        with self._tables.read() as rows:
            row = rows.get(stream_id, db=rows.db["streams"])
        if row is not None:
            return StreamKey.decode(row).public_key
        # A crash between the two writes of `_add` leaves only the secret half.
        key = self.secret(stream_id)
        return None if key is None else key.public_key

    def secret(self, stream_id: bytes) -> DhKey | None:
        """The key to open with; None if this client is not a reader of the stream."""
        found = _find(self._keystore.secrets, stream_id) or _find(self._keystore.reload(), stream_id)
        return None if found is None else DhKey(found.secret)

    def export(self, name: str) -> ReaderKey:
        """The secret half, for another reader."""
        key = self.secret(naming.stream_id(name))
        if key is None:
            raise Unavailable(f"no reader key for stream {name!r}")
        return ReaderKey(name, key.secret)

    def all(self) -> tuple[tuple[StreamKey, bool], ...]:
        """Every stream with a known key, and whether the secret half is known."""
        secrets = self._keystore.reload()
        known = {each.stream_id: StreamKey(each.name, DhKey(each.secret).public_key) for each in secrets.streams}
        readable = set(known)
        with self._tables.read() as rows:
            known |= {stream_id: StreamKey.decode(row) for stream_id, row in rows.scan("streams")}
        return tuple((known[stream_id], stream_id in readable) for stream_id in sorted(known))

    def _add(self, name: str, key: DhKey, *, fresh: bool) -> None:
        stream_id = _named(name)
        known = self.public(stream_id)
        if fresh and known is not None:
            raise Unavailable(f"stream {name!r} already has a key")
        self._check_same(name, known, key.public_key)

        def add(secrets: Secrets) -> Secrets:
            found = _find(secrets, stream_id)
            if found is not None:
                self._check_same(name, DhKey(found.secret).public_key, key.public_key)
                return secrets
            streams = (*secrets.streams, StreamSecret(stream_id, name, key.secret))
            return replace(secrets, streams=tuple(sorted(streams, key=lambda stream: stream.stream_id)))

        self._keystore.update(add)
        self._put_public(StreamKey(name, key.public_key))

    def _put_public(self, key: StreamKey) -> None:
        with self._tables.write() as rows:
            rows.put(key.stream_id, key.encode(), db=rows.db["streams"])

    @staticmethod
    def _check_same(name: str, known: bytes | None, new: bytes) -> None:
        if known is not None and known != new:
            raise Unavailable(f"stream {name!r} already has another key, {known.hex()[:16]}")


def _named(name: str) -> bytes:
    """The stream_id of a name. Raises `Malformed` for a name that is empty or too long."""
    if not name or len(name.encode()) > MAX_TEXT_BYTES:
        raise Malformed("stream name", f"it has {len(name.encode())} bytes, not 1 to {MAX_TEXT_BYTES}")
    return naming.stream_id(name)


def _find(secrets: Secrets, stream_id: bytes) -> StreamSecret | None:
    return next((stream for stream in secrets.streams if stream.stream_id == stream_id), None)
