"""Messages between being signed and being answered.

A message is put here, in the transaction that takes its client_seq, before a byte of it leaves. So a crash leaves
either nothing, and nobody has seen anything, or exactly the bytes to send again: no client_seq and no nonce ever
stands for two messages. It is taken out by `State.advance`, in the transaction that moves the label past its receipt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Self

from veen.client.client_state import ClientState, Moved
from veen.client.lmdb_tables import TableRows
from veen.client.writer_keys import WriterKey, WriterState, retire, writer_state
from veen.core import Msg
from veen.core.hashing import HASH_BYTES, u64be

_NEXT_PLACE = "outbox_next"
_NO_MARKS: Mapping[bytes, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that is on its way, in all the forms its sender needs."""

    msg: Msg
    encoded: bytes
    leaf_hash: bytes

    @classmethod
    def of(cls, msg: Msg) -> Self:
        return cls(msg, msg.encode(), msg.leaf_hash())

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """From a row of the outbox."""
        msg = Msg.decode(encoded)
        return cls(msg, encoded, msg.leaf_hash())


class Outbox:
    """What has been signed and not yet answered, by hub and label, in the order it was put."""

    def __init__(self, state: ClientState) -> None:
        self._tables = state.tables

    def put(
        self, writer: WriterKey, messages: Sequence[Pending], marks: Mapping[bytes, bytes] = _NO_MARKS
    ) -> WriterKey:
        """Take the places of these messages for ever, and keep them. Gives the writer of the places after them.

        `marks` are what a program knows some of them by, each with the leaf_hash: kept with the places or not at all.

        Raises `Moved` where another task or process has taken some of the places since `writer` was asked for: then
        nothing of these may leave, and they are signed again for other places.
        """
        used = _used_after(writer, messages)
        client = writer.client_id + writer.hub_id + writer.label
        with self._tables.write() as rows:
            if writer_state(rows, client) != writer.used:
                raise Moved("another sender took these places: ask for a writer again")
            rows.put("writers", client, used.encode())
            append(rows, writer.hub_id + writer.label, messages)
            for mark, leaf_hash in marks.items():
                rows.put("marks", mark, leaf_hash)
            room = writer.room - len(messages)
            if room == 0:
                retire(rows, writer.generation)
        return replace(writer, used=used, room=room)

    def marks(self, prefix: bytes) -> dict[bytes, bytes]:
        """What has been given a place under marks that start so, with the leaf_hash of each: it is in the log, or here.

        A message that was given up is none of them. So a program that marks its messages, and asks before it sends one,
        sends nothing twice, whenever it was killed.
        """
        with self._tables.read() as rows:
            return dict(rows.scan("marks", prefix))

    def forget_marks(self, marks: Iterable[bytes]) -> None:
        """Keep these no longer: their program will not ask again."""
        with self._tables.write() as rows:
            for mark in marks:
                rows.delete("marks", mark)

    def pending(self, hub_id: bytes, label: bytes, limit: int | None = None) -> tuple[Pending, ...]:
        """What waits for an answer under a label, in the order in which the hub must see it."""
        with self._tables.read() as rows:
            return tuple(Pending.decode(row) for _, row in islice(rows.scan("outbox", hub_id + label), limit))

    def places(self) -> tuple[tuple[bytes, bytes], ...]:
        """`(hub_id, label)` wherever something waits."""
        found: list[tuple[bytes, bytes]] = []
        with self._tables.read() as rows:
            key = rows.first_after("outbox", b"")
            while key is not None:
                hub_id, label = key[:HASH_BYTES], key[HASH_BYTES : 2 * HASH_BYTES]
                found.append((hub_id, label))
                key = rows.first_after("outbox", hub_id + label)
        return tuple(found)

    def abandon(self, hub_id: bytes, label: bytes, client_id: bytes, from_seq: int) -> tuple[Pending, ...]:
        """Give up a message that the hub refused for good, and all that the same key put after it under the label.

        Their places are never used again: the hub would take nothing after the gap, so the key is closed for this
        label and the next writer has a new one. Gives what was taken out, in order.
        """
        gone = []
        client = client_id + hub_id + label
        with self._tables.write() as rows:
            for key, row in tuple(rows.scan("outbox", hub_id + label)):
                message = Pending.decode(row)
                if message.msg.client_id == client_id and message.msg.client_seq >= from_seq:
                    rows.delete("outbox", key)
                    rows.delete("leaves", message.leaf_hash)
                    gone.append(message)
            if gone:
                _unmark(rows, {message.leaf_hash for message in gone})
                rows.put("writers", client, replace(writer_state(rows, client), closed=True).encode())
        return tuple(gone)


def append(rows: TableRows, label: bytes, messages: Sequence[Pending]) -> None:
    """Put messages behind all others; `label` with the hub_id before it."""
    first = rows.number(_NEXT_PLACE)
    for place, message in enumerate(messages, first):
        key = label + u64be(place)
        rows.put("outbox", key, message.encoded)
        rows.put("leaves", message.leaf_hash, key)
    rows.put_number(_NEXT_PLACE, first + len(messages))


def _unmark(rows: TableRows, leaves: set[bytes]) -> None:
    """Messages that are given up have no place any more: whoever marked them may send them again."""
    for mark, leaf_hash in tuple(rows.scan("marks")):
        if leaf_hash in leaves:
            rows.delete("marks", mark)


def _used_after(writer: WriterKey, messages: Sequence[Pending]) -> WriterState:
    """What is used up once these are put. A message that is not the writer's next is a mistake of the caller."""
    if not messages or len(messages) > writer.room:
        raise ValueError(f"{len(messages)} messages, where the writer has room for 1 to {writer.room}")
    client_seq, prev_ack = writer.used.last_client_seq, writer.used.last_prev_ack
    for message in messages:
        msg = message.msg
        if (msg.label, msg.client_id, msg.client_seq) != (writer.label, writer.client_id, client_seq + 1):
            raise ValueError(f"not the writer's message {client_seq + 1}")
        if msg.prev_ack < prev_ack:
            raise ValueError(f"prev_ack goes back from {prev_ack} to {msg.prev_ack}")
        client_seq, prev_ack = msg.client_seq, msg.prev_ack
    return WriterState(client_seq, prev_ack, closed=False)
