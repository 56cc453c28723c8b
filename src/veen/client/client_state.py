"""The rekey ladder: one step per receipt, never back. Spec 001 §9, 002 §9.1.

Nothing on the wire is sealed under these keys: they are there for what two ends agree on beside the log.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from veen.client.client_identity import ClientIdentity
from veen.client.contradiction import Caught, Contradiction, Lie
from veen.client.lmdb_tables import MAP_BYTES, ClientTables, TableRows
from veen.core import Checkpoint, Receipt, Unavailable, Unverified, aead, mmr
from veen.core.cbor import Array, Bstr, Bytes, ListOf, Text, Uint, VersionField, Wire
from veen.core.hashing import HASH_BYTES, h, u64be
from veen.core.hpke import Hmac, hmac32
from veen.core.limits import MAX_PEAKS, MAX_TEXT_BYTES, MAX_WITNESS_SIGS
from veen.core.signing import SIGNATURE_BYTES

_NO_SALT = Hmac(b"")


def step(rk: bytes, stream_seq: int) -> bytes:
    """The rung after the receipt at `stream_seq`; the rung before it cannot be worked out from it."""
    return _hkdf(rk, b"veen/rk" + u64be(stream_seq))


def send_key(rk: bytes) -> bytes:
    return _hkdf(rk, b"veen/send")


def recv_key(rk: bytes) -> bytes:
    return _hkdf(rk, b"veen/recv")


def _hkdf(rk: bytes, info: bytes) -> bytes:
    """HKDF without salt and with one block of output, written out because a bulk sender takes one per message."""
    return hmac32(_NO_SALT.digest(rk), info + b"\x01")


# The longest of the two objects that can sign a head: a checkpoint with every witness.
_MAX_HEAD_BYTES = 256 + MAX_WITNESS_SIGS * (SIGNATURE_BYTES + 2)


class Moved(Unavailable):
    """Another task or process changed what the caller built on: look again and decide again."""


@dataclass(frozen=True, slots=True)
class LabelState(Wire):
    """How far a label's log has been verified: last_stream_seq is `size`, last_mmr_root is `root`."""

    profile_id: bytes
    size: int
    root: bytes
    peaks: tuple[bytes, ...]
    head: bytes  # the encoded RECEIPT or CHECKPOINT that signs (size, root)

    LAYOUT: ClassVar = Array(
        "label state",
        VersionField(),
        Bstr("profile_id"),
        Uint("size", least=1),
        Bstr("root"),
        ListOf("peaks", Bstr("peak"), most=MAX_PEAKS),
        Bytes("head", _MAX_HEAD_BYTES),
    )

    def flaw(self) -> str | None:
        if len(self.peaks) != self.size.bit_count():
            return f"{len(self.peaks)} peaks cannot be those of {self.size} leaves"
        return None if mmr.root_of(self.peaks) == self.root else "its peaks do not give its root"

    def tree(self) -> mmr.Mmr:
        """The tip of the tree, to append to."""
        return mmr.Mmr(self.size, self.peaks)


@dataclass(frozen=True, slots=True)
class CaughtRow(Wire):
    """One proven contradiction: what the hub did, when it was noticed, and the file that shows it."""

    lie: str
    reason: str
    caught_at: int
    file: str  # below the client directory, which may be moved

    LAYOUT: ClassVar = Array(
        "caught hub",
        VersionField(),
        Text("lie", MAX_TEXT_BYTES),
        Text("reason", MAX_TEXT_BYTES),
        Uint("caught_at"),
        Text("file", MAX_TEXT_BYTES),
    )

    def flaw(self) -> str | None:
        return None if self.lie in set(Lie) else f"{self.lie!r} is no contradiction that has a name"


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
        """How far this label has been verified; None where it never was."""
        with self.tables.read() as rows:
            return _label(rows, hub_id + label)

    def rk(self, hub_id: bytes, label: bytes) -> bytes:
        """The label's rung of the rekey ladder."""
        with self.tables.read() as rows:
            return self._rk(rows, hub_id + label)

    def labels(self, hub_id: bytes = b"") -> tuple[tuple[bytes, bytes, LabelState], ...]:
        """`(hub_id, label, state)` of every label, or of every one of this hub."""
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
        """Move a label from `after` to `new`, keep these receipts, and take the `done` leaves out of the outbox.

        `new` may equal `after`, where a receipt came for a place already passed. Raises `Moved` where the label is
        not at `after` any more, `Caught` where any process of this client caught the hub meanwhile, and `Unverified`
        where a kept receipt says otherwise about the same place.
        """
        kept = sorted(receipts, key=lambda receipt: receipt.stream_seq)
        if not set(done) <= {receipt.leaf_hash for receipt in kept}:
            raise ValueError("a message leaves the outbox only with its receipt")
        if after is not None and (new.size < after.size or (new.size == after.size and new.root != after.root)):
            raise ValueError(f"a label does not go back from {after.size} to {new.size}")
        key = hub_id + label
        with self.tables.write() as rows:
            for caught in self._caught(rows, hub_id):
                raise caught
            stored = _label(rows, key)
            if stored != after:
                raise Moved(f"label {label.hex()[:8]} is at {stored.size if stored else 0} by now")
            rows.put("labels", key, new.encode())
            self._keep_receipts(rows, key, kept)
            for leaf in done:
                place = rows.get("leaves", leaf)
                if place is not None:
                    rows.delete("outbox", place)
                    rows.delete("leaves", leaf)

    def forget(self, hub_id: bytes, label: bytes) -> tuple[bytes, ...]:
        """Drop what a hub said of a label, because the client's owner decided to start over with it.

        The hub is no longer held to what it was caught at, on any label; the evidence files stay.
        Gives the receipts and checkpoints that were kept, which another history would contradict. What used up
        client_seqs, the outbox and the rekey ladder stay: they never go back.
        """
        dropped = []
        with self.tables.write() as rows:
            for key, _ in tuple(rows.scan("caught", hub_id)):
                rows.delete("caught", key)
            rows.delete("labels", hub_id + label)
            for table in ("receipts", "checkpoints"):
                for key, row in tuple(rows.scan(table, hub_id + label)):
                    rows.delete(table, key)
                    dropped.append(row)
        return tuple(dropped)

    def receipt(self, hub_id: bytes, label: bytes, stream_seq: int) -> bytes | None:
        """The kept receipt of that place."""
        with self.tables.read() as rows:
            return rows.get("receipts", hub_id + label + u64be(stream_seq))

    def checkpoint(self, hub_id: bytes, label: bytes) -> bytes | None:
        """The kept checkpoint with the highest upto_seq."""
        with self.tables.read() as rows:
            found = rows.last("checkpoints", hub_id + label)
        return found[1] if found else None

    def put_checkpoint(self, hub_id: bytes, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint under its label_curr. Raises `Unverified` where a kept one says otherwise."""
        key = hub_id + checkpoint.label_curr + u64be(checkpoint.upto_seq)
        with self.tables.write() as rows:
            row = rows.get("checkpoints", key)
            # Witnesses may have signed since; what they sign may not have changed.
            if row is not None and Checkpoint.decode(row).signing_digest() != checkpoint.signing_digest():
                raise Unverified("checkpoint", f"another is kept up to {checkpoint.upto_seq}: the hub signed both")
            rows.put("checkpoints", key, checkpoint.encode())

    def hub(self, hub_id: bytes) -> bytes | None:
        """What is known of a hub, as `put_hub` was given it."""
        with self.tables.read() as rows:
            return rows.get("hubs", hub_id)

    def put_hub(self, hub_id: bytes, known: bytes) -> None:
        with self.tables.write() as rows:
            rows.put("hubs", hub_id, known)

    def caught(self, hub_id: bytes) -> tuple[Caught, ...]:
        """What the hub was proven to contradict itself with, in order of time."""
        with self.tables.read() as rows:
            return tuple(sorted(self._caught(rows, hub_id), key=lambda caught: caught.caught_at))

    def put_caught(self, hub_id: bytes, found: Contradiction, now: int) -> None:
        """Hold the hub to a proven contradiction, once per evidence file."""
        assert found.evidence is not None
        reason = found.reason.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
        row = CaughtRow(str(found.lie), reason, now, str(found.evidence.relative_to(self._home)))
        key = hub_id + h(row.file.encode())
        with self.tables.write() as rows:
            if rows.get("caught", key) is None:
                rows.put("caught", key, row.encode())

    def _caught(self, rows: TableRows, hub_id: bytes) -> Iterator[Caught]:
        for _, encoded in rows.scan("caught", hub_id):
            row = CaughtRow.decode(encoded)
            yield Caught(hub_id, Lie(row.lie), row.reason, row.caught_at, self._home / row.file)

    def hub_of(self, url: str) -> bytes | None:
        """The hub_id that a URL was pinned to."""
        with self.tables.read() as rows:
            return rows.get("urls", url.encode())

    def put_hub_of(self, url: str, hub_id: bytes) -> None:
        with self.tables.write() as rows:
            rows.put("urls", url.encode(), hub_id)

    def _keep_receipts(self, rows: TableRows, key: bytes, receipts: Iterable[Receipt]) -> None:
        rk = first = self._rk(rows, key)
        for receipt in receipts:
            place, encoded = key + u64be(receipt.stream_seq), receipt.encode()
            kept = rows.get("receipts", place)
            if kept is None:
                rows.put("receipts", place, encoded)
                rk = step(rk, receipt.stream_seq)
            elif kept != encoded:
                raise Unverified("receipt", f"another is kept for place {receipt.stream_seq}: the hub signed both")
        if rk != first:
            self._put_rk(rows, key, rk)

    def start_ladder(self, rows: TableRows, key: bytes) -> None:
        """Begin a label's ladder where nobody has begun it before."""
        self._put_rk(rows, key, os.urandom(HASH_BYTES))

    def _put_rk(self, rows: TableRows, key: bytes, rk: bytes) -> None:
        nonce = os.urandom(aead.XCHACHA_NONCE_BYTES)
        rows.put("ladders", key, nonce + aead.xchacha_seal(self._key, nonce, key, rk))

    def _rk(self, rows: TableRows, key: bytes) -> bytes:
        sealed = rows.get("ladders", key)
        if sealed is None:
            return self.identity.first_rk(key[HASH_BYTES:])
        nonce, sealed = sealed[: aead.XCHACHA_NONCE_BYTES], sealed[aead.XCHACHA_NONCE_BYTES :]
        return aead.xchacha_open(self._key, nonce, key, sealed, "rk")


def _label(rows: TableRows, key: bytes) -> LabelState | None:
    row = rows.get("labels", key)
    return None if row is None else LabelState.decode(row)
