"""Messages that are signed and not yet answered.

A message is stored here before it is sent, in the transaction that uses its client_seq. So a crash leaves nothing, or
exactly the bytes to send again: no client_seq and no nonce is ever used for two messages. `ClientState.advance` removes
it, in the transaction that moves the label past its receipt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Self

from veen.client.client_state import ClientState, StateConflict
from veen.client.lmdb_tables import TableRows
from veen.client.writer_keys import WriterKey, WriterState, retire, writer_state
from veen.core import Msg
from veen.core.hashing import HASH_BYTES, u64be

_NEXT_PLACE = "outbox_next"
_NO_MARKS: Mapping[bytes, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pending:
    """A message in the outbox, decoded and encoded."""

    msg: Msg
    encoded: bytes
    leaf_hash: bytes

    @classmethod
    def of(cls, msg: Msg) -> Self:
        return cls(msg, msg.encode(), msg.leaf_hash())

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Decode a row of the outbox."""
        msg = Msg.decode(encoded)
        return cls(msg, encoded, msg.leaf_hash())


class Outbox:
    """The messages without an answer, by hub and label, in the order in which they were put."""

    def __init__(self, state: ClientState) -> None:
        self._tables = state.tables

    def put(
        self, writer: WriterKey, messages: Sequence[Pending], marks: Mapping[bytes, bytes] = _NO_MARKS
    ) -> WriterKey:
        """Use the places of these messages and store the messages. Returns the writer for the places after them.

        `marks` are ids that the program gave some of them, each with the leaf_hash. They are stored in the same
        transaction.

        Raises `Moved` if another task or process used some of the places since `writer` was returned. Then none of
        these messages may be sent; they must be signed again for other places.
        """
        used = _used_after(writer, messages)
        client = writer.client_id + writer.hub_id + writer.label
        with self._tables.write() as rows:
            if writer_state(rows, client) != writer.used:
                raise StateConflict("another sender used these places: get a new writer")
            rows.put("writers", client, used.encode())
            append(rows, writer.hub_id + writer.label, messages)
            for mark, leaf_hash in marks.items():
                rows.put("marks", mark, leaf_hash)
            room = writer.room - len(messages)
            if room == 0:
                retire(rows, writer.generation)
        return replace(writer, used=used, room=room)

    def marks(self, prefix: bytes) -> dict[bytes, bytes]:
        """The marks with this prefix and the leaf_hash of each message, which is in the log or in the outbox.

        Abandoned messages lose their mark. So a program that marks its messages, and checks before it sends one, sends
        nothing twice, even if it is killed.
        """
        with self._tables.read() as rows:
            return dict(rows.scan("marks", prefix))

    def forget_marks(self, marks: Iterable[bytes]) -> None:
        """Delete marks that their program no longer needs."""
        with self._tables.write() as rows:
            for mark in marks:
                rows.delete("marks", mark)

    def pending(self, hub_id: bytes, label: bytes, limit: int | None = None) -> tuple[Pending, ...]:
        """The messages of a label that wait for an answer, in the order in which the hub must receive them."""
        with self._tables.read() as rows:
            return tuple(Pending.decode(row) for _, row in islice(rows.scan("outbox", hub_id + label), limit))

    def places(self) -> tuple[tuple[bytes, bytes], ...]:
        """`(hub_id, label)` of every label with messages."""
        found: list[tuple[bytes, bytes]] = []
        with self._tables.read() as rows:
            key = rows.first_after("outbox", b"")
            while key is not None:
                hub_id, label = key[:HASH_BYTES], key[HASH_BYTES : 2 * HASH_BYTES]
                found.append((hub_id, label))
                key = rows.first_after("outbox", hub_id + label)
        return tuple(found)

    def abandon(self, hub_id: bytes, label: bytes, client_id: bytes, from_seq: int) -> tuple[Pending, ...]:
        """Remove a message that the hub rejected permanently, and all later messages of the same key under the label.

        Their places are never used again. The hub would accept nothing after the gap, so the key is closed for this
        label and the next writer uses a new one. Returns the removed messages, in order.
        """
        removed = []
        client = client_id + hub_id + label
        with self._tables.write() as rows:
            for key, row in tuple(rows.scan("outbox", hub_id + label)):
                message = Pending.decode(row)
                if message.msg.client_id == client_id and message.msg.client_seq >= from_seq:
                    rows.delete("outbox", key)
                    rows.delete("leaves", message.leaf_hash)
                    removed.append(message)
            if removed:
                _unmark(rows, {message.leaf_hash for message in removed})
                rows.put("writers", client, replace(writer_state(rows, client), closed=True).encode())
        return tuple(removed)


def append(rows: TableRows, label: bytes, messages: Sequence[Pending]) -> None:
    """Append messages. `label` is hub_id and label."""
    first = rows.number(_NEXT_PLACE)
    for place, message in enumerate(messages, first):
        key = label + u64be(place)
        rows.put("outbox", key, message.encoded)
        rows.put("leaves", message.leaf_hash, key)
    rows.put_number(_NEXT_PLACE, first + len(messages))


def _unmark(rows: TableRows, leaves: set[bytes]) -> None:
    """Delete the marks of abandoned messages, so that their program may send them again."""
    for mark, leaf_hash in tuple(rows.scan("marks")):
        if leaf_hash in leaves:
            rows.delete("marks", mark)


def _used_after(writer: WriterKey, messages: Sequence[Pending]) -> WriterState:
    """The state of the writer after these messages. Raises `ValueError` unless they are its next messages."""
    if not messages or len(messages) > writer.room:
        raise ValueError(f"expected 1 to {writer.room} messages for this writer, got {len(messages)}")
    client_seq, prev_ack = writer.used.last_client_seq, writer.used.last_prev_ack
    for message in messages:
        msg = message.msg
        if (msg.label, msg.client_id, msg.client_seq) != (writer.label, writer.client_id, client_seq + 1):
            raise ValueError(f"expected the writer's message with client_seq {client_seq + 1}")
        if msg.prev_ack < prev_ack:
            raise ValueError(f"prev_ack decreases from {prev_ack} to {msg.prev_ack}")
        client_seq, prev_ack = msg.client_seq, msg.prev_ack
    return WriterState(client_seq, prev_ack, closed=False)
