"""The state of one client directory: verified labels, receipts, hubs, contradictions and the rekey ladder.

The rekey ladder derives a new key per receipt, one way. Spec 001 §9, 002 §9.1. Nothing on the wire is sealed with these
keys.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Protocol, TypeVar, cast

import lmdb

from plumbing import lmdb_env
from plumbing.durable import PRIVATE_FILE
from veen.client.client_identity import ClientIdentity
from veen.client.contradiction import Caught, Contradiction, Lie
from veen.client.local_files import named
from veen.core import Checkpoint, Malformed, Receipt, Unavailable, Unverified, hpke, mmr
from veen.core.cbor import Bstr, Bytes, ListOf, Text, Uint, VersionField, Wire, array
from veen.core.hashing import HASH_BYTES, h, u64be
from veen.core.hpke import Hmac, hmac32
from veen.core.limits import MAX_PEAKS, MAX_TEXT_BYTES, MAX_WITNESS_SIGS
from veen.core.proof import Head, label_of
from veen.core.signing import SIGNATURE_BYTES

W = TypeVar("W", bound=Wire)

FORMAT = 1
_CERTIFICATE = b"cert:"  # in the table of URLs, before that of a pinned certificate
_PAST_ANY_NUMBER = b"\xff" * 9
MAP_BYTES = 1 << 36  # address space, not disk
TABLES = (
    "meta",
    "labels",
    "ladders",
    "receipts",
    "checkpoints",
    "generations",
    "eras",
    "writers",
    "outbox",
    "leaves",
    "marks",
    "hubs",
    "caught",
    "urls",
    "streams",
    "grants",
)


class _Get(Protocol):
    """`lmdb.Transaction.get` of an environment that returns bytes, not buffers."""

    def __call__(self, key: bytes, *, db: lmdb._Database) -> bytes | None: ...


class TableRows:
    """The tables within one transaction. `get`, `put` and `delete` are those of LMDB; `db` has its tables by name."""

    __slots__ = ("_last_decoded", "_txn", "db", "delete", "get", "put")

    def __init__(self, txn: lmdb.Transaction, tables: "ClientTables") -> None:
        self.db = tables.dbs
        self.get = cast("_Get", txn.get)
        self.put, self.delete = txn.put, txn.delete
        self._txn = txn
        self._last_decoded = tables.last_decoded

    def load(self, table: str, key: bytes, cls: type[W]) -> W | None:
        """The decoded row; None if there is none."""
        row = self.get(key, db=self.db[table])
        return None if row is None else self.decoded(table, row, cls)

    def decoded(self, table: str, row: bytes, cls: type[W]) -> W:
        """Decode a row of the table. The last row is not decoded again: a sender reads what it stored before."""
        known = self._last_decoded.get(table)
        if known is None or known[0] != row:
            known = self._last_decoded[table] = (row, cls.decode(row))
        found = known[1]
        assert isinstance(found, cls)
        return found

    def store(self, table: str, key: bytes, wire: Wire) -> None:
        """Encode and put a row."""
        row = wire.encode()
        self.put(key, row, db=self.db[table])
        self._last_decoded[table] = (row, wire)

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys have the prefix, ascending, from key prefix + `start` on."""
        cursor = self._txn.cursor(self.db[table])
        found = cursor.set_range(prefix + start) if prefix + start else cursor.first()
        while found and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.next()

    def first_after(self, table: str, prefix: bytes) -> bytes | None:
        """The first key after all keys made of the prefix and a number; without prefix, the first key."""
        cursor = self._txn.cursor(self.db[table])
        found = cursor.set_range(prefix + _PAST_ANY_NUMBER) if prefix else cursor.first()
        return bytes(cursor.key()) if found else None

    def last(self, table: str, prefix: bytes = b"") -> tuple[bytes, bytes] | None:
        """The last row whose key is the prefix and a number."""
        cursor = self._txn.cursor(self.db[table])
        found = cursor.prev() if cursor.set_range(prefix + _PAST_ANY_NUMBER) else cursor.last()
        key = bytes(cursor.key())
        return (key, bytes(cursor.value())) if found and key.startswith(prefix) else None

    def number(self, name: str) -> int:
        row = self.get(name.encode(), db=self.db["meta"])
        return 0 if row is None else int.from_bytes(row, "big")

    def put_number(self, name: str, number: int) -> None:
        self.put(name.encode(), u64be(number), db=self.db["meta"])


class ClientTables:
    """The environment. Any number of readers in any process; one writer at a time, others wait."""

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        try:
            self._env = lmdb_env.open_environment(
                folder, map_size=map_bytes, max_dbs=len(TABLES), mode=PRIVATE_FILE, readahead=False
            )
        except (lmdb.Error, OSError) as error:
            raise _named(folder, error) from None
        self._folder = folder
        self.last_decoded: dict[str, tuple[bytes, Wire]] = {}  # by table: the row that was read or stored last
        try:
            with named(folder):
                lmdb_env.extend_file(self._env, folder)
            self._env.reader_check()  # free the reader slots of killed processes
            self.dbs = {name: self._env.open_db(name.encode()) for name in TABLES}
            self._check_format()
        except BaseException as error:
            self._env.close()
            if isinstance(error, lmdb.Error | OSError):
                raise _named(folder, error) from None
            raise

    def close(self) -> None:
        self._env.close()

    @contextmanager
    def read(self) -> Iterator[TableRows]:
        """A snapshot that does not change."""
        try:
            with self._env.begin() as txn:
                yield TableRows(txn, self)
        except (lmdb.Error, OSError) as error:
            raise _named(self._folder, error) from None

    @contextmanager
    def write(self) -> Iterator[TableRows]:
        """Commit when the block ends. If it raises or the process dies before, nothing is written."""
        try:
            with self._env.begin(write=True) as txn:
                yield TableRows(txn, self)
        except (lmdb.Error, OSError) as error:
            raise _named(self._folder, error) from None

    def _check_format(self) -> None:
        with self.read() as rows:
            found = rows.number("format")
        if found == 0:
            with self.write() as rows:
                rows.put_number("format", FORMAT)
        elif found != FORMAT:
            raise Malformed(str(self._folder), f"unsupported format {found}; this program supports {FORMAT}")


def _named(folder: Path, error: Exception) -> Malformed | Unavailable:
    if isinstance(error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return Malformed(str(folder), str(error))
    return Unavailable(f"{folder}: {error}")


_NO_SALT = Hmac(b"")


def step(rk: bytes, stream_seq: int) -> bytes:
    """The key after the receipt at `stream_seq`. The previous key cannot be derived from it."""
    # HKDF without salt and with one block of output. Written out, because senders call it for every message.
    return hmac32(_NO_SALT.digest(rk), b"veen/rk" + u64be(stream_seq) + b"\x01")


# The longest statement that can sign a root: a checkpoint with all witness signatures.
_MAX_HEAD_BYTES = 256 + MAX_WITNESS_SIGS * (SIGNATURE_BYTES + 2)


class StateConflict(Unavailable):
    """Another task or process changed the state that the caller read: read it again and retry."""


@array("label state", VersionField())
class LabelState(Wire):
    """How far a label's log has been verified: last_stream_seq is `size`, last_mmr_root is `root`."""

    profile_id: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint(least=1)]
    root: Annotated[bytes, Bstr()]
    peaks: Annotated[tuple[bytes, ...], ListOf(Bstr(name="peak"), most=MAX_PEAKS)]
    head: Annotated[bytes, Bytes(_MAX_HEAD_BYTES)]  # the encoded RECEIPT or CHECKPOINT that signs (size, root)

    def flaw(self) -> str | None:
        if len(self.peaks) != self.size.bit_count():
            return f"a tree of {self.size} leaves cannot have {len(self.peaks)} peaks"
        return None if mmr.root_of(self.peaks) == self.root else "its peaks do not match its root"

    def tree(self) -> mmr.Mmr:
        """The tree, ready to append to."""
        return mmr.Mmr(self.size, self.peaks)


@array("caught hub", VersionField())
class CaughtRow(Wire):
    """One proven contradiction: its kind, when it was detected, and its evidence file."""

    lie: Annotated[str, Text(MAX_TEXT_BYTES)]
    reason: Annotated[str, Text(MAX_TEXT_BYTES)]
    caught_at: Annotated[int, Uint()]
    file: Annotated[str, Text(MAX_TEXT_BYTES)]  # relative to the client directory, which may be moved

    def flaw(self) -> str | None:
        return None if self.lie in set(Lie) else f"unknown kind of contradiction {self.lie!r}"


class ClientState:
    """The tables of one client directory."""

    def __init__(self, folder: Path, identity: ClientIdentity, *, map_bytes: int = MAP_BYTES) -> None:
        self.tables = ClientTables(folder, map_bytes=map_bytes)
        self._home = folder.parent
        self.identity = identity
        self._key = identity.state_key()

    def close(self) -> None:
        self.tables.close()

    def label(self, hub_id: bytes, label: bytes) -> LabelState | None:
        """How far this label was verified; None if never."""
        with self.tables.read() as rows:
            return rows.load("labels", hub_id + label, LabelState)

    def rk(self, hub_id: bytes, label: bytes) -> bytes:
        """The current key of the label's rekey ladder."""
        with self.tables.read() as rows:
            return self._rk(rows, hub_id + label)

    def labels(self, hub_id: bytes = b"") -> tuple[tuple[bytes, bytes, LabelState], ...]:
        """`(hub_id, label, state)` of every label, or of every label of one hub."""
        with self.tables.read() as rows:
            return tuple(
                (key[:HASH_BYTES], key[HASH_BYTES:], LabelState.decode(row)) for key, row in rows.scan("labels", hub_id)
            )

    def advance(
        self,
        hub_id: bytes,
        label: bytes,
        new: LabelState,
        *,
        after: LabelState | None,
        receipts: Iterable[Receipt] = (),
        done: Collection[bytes] = (),
    ) -> None:
        """Move a label from `after` to `new`, store these receipts, and remove the `done` leaves from the outbox.

        `new` may equal `after` if a receipt is for a place already passed. Raises `Moved` if the label is no longer at
        `after`, `Caught` if another process of this client caught the hub meanwhile, and `Unverified` if a stored
        receipt contradicts one of these.
        """
        kept = sorted(receipts, key=attrgetter("stream_seq"))
        if not set(done).issubset(map(attrgetter("leaf_hash"), kept)):
            raise ValueError("a message can leave the outbox only with its receipt")
        if after is not None and (new.size < after.size or (new.size == after.size and new.root != after.root)):
            raise ValueError(f"a label cannot go back from {after.size} to {new.size} entries")
        key = hub_id + label
        with self.tables.write() as rows:
            for caught in self._caught(rows, hub_id):
                raise caught
            stored = rows.load("labels", key, LabelState)
            if stored != after:
                raise StateConflict(f"label {label.hex()[:8]} has {stored.size if stored else 0} entries now")
            rows.store("labels", key, new)
            self._keep_receipts(rows, key, kept)
            for leaf in done:
                take_from_outbox(rows, leaf)

    def forget(self, hub_id: bytes, label: bytes) -> tuple[bytes, ...]:
        """Delete a label's state, because the user decided to start over with the hub.

        Also clears the hub's proven contradictions, for all labels; the evidence files stay. Returns the stored
        receipts and checkpoints, which another history would contradict. Used client_seqs, the outbox and the rekey
        ladder stay, because they must never go back.
        """
        dropped = []
        with self.tables.write() as rows:
            for key, _ in tuple(rows.scan("caught", hub_id)):
                rows.delete(key, db=rows.db["caught"])
            rows.delete(hub_id + label, db=rows.db["labels"])
            for table in ("receipts", "checkpoints"):
                for key, row in tuple(rows.scan(table, hub_id + label)):
                    rows.delete(key, db=rows.db[table])
                    dropped.append(row)
        return tuple(dropped)

    def receipt(self, hub_id: bytes, label: bytes, stream_seq: int) -> bytes | None:
        """The stored receipt of that place."""
        with self.tables.read() as rows:
            return rows.get(hub_id + label + u64be(stream_seq), db=rows.db["receipts"])

    def checkpoint(self, hub_id: bytes, label: bytes) -> bytes | None:
        """The stored checkpoint with the highest upto_seq."""
        with self.tables.read() as rows:
            found = rows.last("checkpoints", hub_id + label)
        return found[1] if found else None

    def put_checkpoint(self, hub_id: bytes, checkpoint: Checkpoint) -> None:
        """Store a checkpoint under its label_curr. Raises `Unverified` if a stored one contradicts it."""
        key = hub_id + checkpoint.label_curr + u64be(checkpoint.upto_seq)
        with self.tables.write() as rows:
            row = rows.get(key, db=rows.db["checkpoints"])
            # Witness signatures may have been added, but the signed content must be the same.
            if row is not None and Checkpoint.decode(row).signing_digest() != checkpoint.signing_digest():
                raise Unverified("checkpoint", f"it contradicts the stored one at {checkpoint.upto_seq}")
            rows.put(key, checkpoint.encode(), db=rows.db["checkpoints"])

    def hub(self, hub_id: bytes) -> bytes | None:
        """The record that was stored with `put_hub`."""
        with self.tables.read() as rows:
            return rows.get(hub_id, db=rows.db["hubs"])

    def put_hub(self, hub_id: bytes, known: bytes) -> None:
        with self.tables.write() as rows:
            rows.put(hub_id, known, db=rows.db["hubs"])

    def caught(self, hub_id: bytes) -> tuple[Caught, ...]:
        """The proven contradictions of the hub, oldest first."""
        with self.tables.read() as rows:
            return tuple(sorted(self._caught(rows, hub_id), key=lambda caught: caught.caught_at))

    def put_caught(self, hub_id: bytes, found: Contradiction, now: int) -> None:
        """Record a proven contradiction, once per evidence file."""
        assert found.evidence is not None
        reason = found.reason.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
        row = CaughtRow(str(found.lie), reason, now, str(found.evidence.relative_to(self._home)))
        key = hub_id + h(row.file.encode())
        with self.tables.write() as rows:
            if rows.get(key, db=rows.db["caught"]) is None:
                rows.put(key, row.encode(), db=rows.db["caught"])

    def _caught(self, rows: TableRows, hub_id: bytes) -> Iterator[Caught]:
        for _, encoded in rows.scan("caught", hub_id):
            row = CaughtRow.decode(encoded)
            yield Caught(hub_id, Lie(row.lie), row.reason, row.caught_at, self._home / row.file)

    def hub_of(self, url: str) -> bytes | None:
        """The hub_id that was stored for a URL."""
        with self.tables.read() as rows:
            return rows.get(url.encode(), db=rows.db["urls"])

    def put_hub_of(self, url: str, hub_id: bytes) -> None:
        with self.tables.write() as rows:
            rows.put(url.encode(), hub_id, db=rows.db["urls"])

    def certificate_of(self, url: str) -> bytes | None:
        """The fingerprint of the TLS certificate that was pinned for a URL."""
        with self.tables.read() as rows:
            return rows.get(_CERTIFICATE + url.encode(), db=rows.db["urls"])

    def put_certificate_of(self, url: str, fingerprint: bytes) -> None:
        with self.tables.write() as rows:
            rows.put(_CERTIFICATE + url.encode(), fingerprint, db=rows.db["urls"])

    def has_signed(self, hub_id: bytes, head: Head) -> bool:
        """Whether this client has stored the statement before."""
        label, encoded = label_of(head), head.encode()
        state = self.label(hub_id, label)
        if state is not None and state.head == encoded:
            return True
        with self.tables.read() as rows:
            for table in ("receipts", "checkpoints"):
                if any(row == encoded for _, row in rows.scan(table, hub_id + label)):
                    return True
        return False

    def _keep_receipts(self, rows: TableRows, key: bytes, receipts: Iterable[Receipt]) -> None:
        rk = first = self._rk(rows, key)
        for receipt in receipts:
            place, encoded = key + u64be(receipt.stream_seq), receipt.encode()
            kept = rows.get(place, db=rows.db["receipts"])
            if kept is None:
                rows.put(place, encoded, db=rows.db["receipts"])
                rk = step(rk, receipt.stream_seq)
            elif kept != encoded:
                raise Unverified("receipt", f"it contradicts the stored one at {receipt.stream_seq}")
        if rk != first:
            self._put_rk(rows, key, rk)

    def start_ladder(self, rows: TableRows, key: bytes) -> None:
        """Start a new rekey ladder for a label with a random key."""
        self._put_rk(rows, key, os.urandom(HASH_BYTES))

    def _put_rk(self, rows: TableRows, key: bytes, rk: bytes) -> None:
        nonce = os.urandom(hpke.XCHACHA_NONCE_BYTES)
        rows.put(key, nonce + hpke.xchacha_seal(self._key, nonce, key, rk), db=rows.db["ladders"])

    def _rk(self, rows: TableRows, key: bytes) -> bytes:
        sealed = rows.get(key, db=rows.db["ladders"])
        if sealed is None:
            return self.identity.first_rk(key[HASH_BYTES:])
        nonce, sealed = sealed[: hpke.XCHACHA_NONCE_BYTES], sealed[hpke.XCHACHA_NONCE_BYTES :]
        return hpke.xchacha_open(self._key, nonce, key, sealed, "rk")


def take_from_outbox(rows: TableRows, leaf_hash: bytes) -> None:
    """Remove a message from the outbox, if it is there."""
    place = rows.get(leaf_hash, db=rows.db["leaves"])
    if place is not None:
        rows.delete(place, db=rows.db["outbox"])
        rows.delete(leaf_hash, db=rows.db["leaves"])
