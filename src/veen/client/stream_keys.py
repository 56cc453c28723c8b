"""The reader keys of streams. The secret half opens entries; the public half seals to the readers.

All readers of a stream share one key. The secret half is in the keystore and leaves it only by `export`.
"""

from dataclasses import field, replace
from typing import Annotated

from veen.client.client_state import ClientState
from veen.client.keystore import Keystore, Secrets, StreamSecret
from veen.core import DhKey, Malformed, Unavailable, naming
from veen.core.cbor import Bstr, Constant, Text, VersionField, Wire, int_map
from veen.core.hpke import KEY_BYTES
from veen.core.limits import MAX_TEXT_BYTES


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
