"""The keys that write: client_ids rotate by age, by count and by epoch. KEX0.2, KEX1+ §4.1.

Only this state links one client_id to the next. A hub accepts a capability only from its subject key, so a rotation
under capabilities needs a token for the next client_id first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Self

from veen.client.capabilities import CapabilityStore
from veen.client.client_identity import ClientIdentity
from veen.client.client_state import ClientState, StateConflict, TableRows, take_from_outbox
from veen.core import CapToken, Limits, Malformed, Msg, Refused, SigningKey
from veen.core.admission import BY_DETAIL
from veen.core.cbor import Bool, Bstr, Uint, VersionField, Wire, array
from veen.core.hashing import HASH_BYTES, u64be


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """How long and how often one client_id may be used. The defaults are the maximum that KEX1+ recommends."""

    max_client_id_lifetime_sec: int = 86_400
    max_msgs_per_client_id_per_label: int = 65_536

    def __post_init__(self) -> None:
        if self.max_client_id_lifetime_sec < 1 or self.max_msgs_per_client_id_per_label < 1:
            raise ValueError("a client_id must be valid for at least one second and one message")

    def within(self, limits: Limits | None) -> "KeyBounds":
        """The stricter of these bounds and the hub's."""
        age = limits.max_client_id_lifetime_sec if limits else None
        count = limits.max_msgs_per_client_id_per_label if limits else None
        if age is None and count is None:
            return self
        return KeyBounds(
            min(age or self.max_client_id_lifetime_sec, self.max_client_id_lifetime_sec),
            min(count or self.max_msgs_per_client_id_per_label, self.max_msgs_per_client_id_per_label),
        )


DEFAULT_BOUNDS = KeyBounds()


@array("client key use", VersionField())
class ClientKeyUse(Wire):
    """One generation of the client_id. Its use under a label is the label's last client_seq."""

    generation: Annotated[int, Uint()]
    client_id: Annotated[bytes, Bstr()]
    created_at: Annotated[int, Uint()]
    retired: Annotated[bool, Bool()]  # the next writer uses the next generation, regardless of age


@array("writer state", VersionField())
class WriterState(Wire):
    """The sequence numbers that one client_id has used under one label, whether accepted or not."""

    last_client_seq: Annotated[int, Uint()] = 0
    last_prev_ack: Annotated[int, Uint()] = 0
    closed: Annotated[bool, Bool()] = False  # a place was abandoned, so the hub accepts nothing more from this key here


@dataclass(frozen=True, slots=True)
class WriterRequest:
    """The label to write to, and what its hub requires of a writer."""

    hub_id: bytes
    label: bytes
    stream_id: bytes
    now: int
    epoch: int = 0  # the label's
    capability: bool = False  # the hub admits only writers with a capability for the stream
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class WriterKey:
    """A key, and the places that it may write to next under one label."""

    hub_id: bytes
    label: bytes
    generation: int
    key: SigningKey
    used: WriterState
    room: int  # how many more messages before the next rotation
    cap: CapToken | None  # the capability for auth_ref, if the hub requires one

    @property
    def client_id(self) -> bytes:
        return self.key.public_key

    @property
    def next_client_seq(self) -> int:
        return self.used.last_client_seq + 1


class WriterKeys:
    """The client_ids of one identity."""

    def __init__(self, state: ClientState, identity: ClientIdentity, caps: CapabilityStore, bounds: KeyBounds) -> None:
        self.bounds = bounds
        self._tables = state.tables
        self._identity = identity
        self._caps = caps
        self._key: tuple[int, SigningKey] | None = None

    def writer(self, rows: TableRows, wanted: WriterRequest) -> WriterKey:
        """The key that writes next to the label. Rotates and records the rotation when due, by our or the hub's bounds.

        `rows` is a write transaction. Raises `Refused` if the due key has no capability, but needs one; the error names
        the key. The transaction must then be aborted, so that no rotation takes place.
        """
        bounds, place = self.bounds.within(wanted.limits), wanted.hub_id + wanted.label
        use = current(rows)
        used = writer_state(rows, use.client_id + place)
        era = rows.get(u64be(use.generation) + wanted.hub_id, db=rows.db["eras"])
        if _is_due(use, used, era, wanted, bounds):
            use = begin(rows, self._identity, use.generation + 1, wanted.now)
            used, era = writer_state(rows, use.client_id + place), None
        if era is None:
            rows.put(u64be(use.generation) + wanted.hub_id, u64be(wanted.epoch), db=rows.db["eras"])
        cap = self._capability(use.client_id, wanted) if wanted.capability else None
        if self._key is None or self._key[0] != use.generation:
            self._key = (use.generation, self._identity.client_key(use.generation))
        room = bounds.max_msgs_per_client_id_per_label - used.last_client_seq
        return WriterKey(wanted.hub_id, wanted.label, use.generation, self._key[1], used, room, cap)

    def _capability(self, client_id: bytes, wanted: WriterRequest) -> CapToken:
        cap = self._caps.for_writer(client_id, wanted.stream_id, wanted.now, wanted.hub_id)
        if cap is None:
            known = self._caps.reason_unusable(client_id, wanted.stream_id, wanted.hub_id)
            raise known or _no_capability(client_id, wanted.stream_id)
        return cap

    def current(self) -> ClientKeyUse:
        """The generation in use."""
        with self._tables.read() as rows:
            return current(rows)

    def refresh(self, now: int) -> ClientKeyUse:
        """The generation in use, after a rotation if it is too old."""
        with self._tables.write() as rows:
            use = current(rows)
            if _is_old(use, now, self.bounds):
                use = begin(rows, self._identity, use.generation + 1, now)
            return use

    def history(self) -> tuple[ClientKeyUse, ...]:
        """Every generation, oldest first. Messages do not reveal this sequence."""
        with self._tables.read() as rows:
            return tuple(ClientKeyUse.decode(row) for _, row in rows.scan("generations"))

    def state(self, hub_id: bytes, label: bytes, client_id: bytes) -> WriterState:
        """The sequence numbers that a client_id has used under a label."""
        with self._tables.read() as rows:
            return writer_state(rows, client_id + hub_id + label)

    def retire(self, generation: int) -> None:
        """Stop using this generation for new messages."""
        with self._tables.write() as rows:
            retire(rows, generation)


def _is_due(use: ClientKeyUse, used: WriterState, era: bytes | None, wanted: WriterRequest, bounds: KeyBounds) -> bool:
    return (
        use.retired
        or _is_old(use, wanted.now, bounds)
        or (era is not None and int.from_bytes(era, "big") < wanted.epoch)
        or used.closed
        or used.last_client_seq >= bounds.max_msgs_per_client_id_per_label
    )


def _is_old(use: ClientKeyUse, now: int, bounds: KeyBounds) -> bool:
    # Both directions: a clock that was far ahead when the key was created must not keep it in use for years.
    return abs(now - use.created_at) >= bounds.max_client_id_lifetime_sec


def writer_state(rows: TableRows, key: bytes) -> WriterState:
    """`key` is client_id, hub_id and label. Without a row, nothing was used."""
    return rows.load("writers", key, WriterState) or WriterState()


def retire(rows: TableRows, generation: int) -> None:
    """Stop using this generation for new messages. Does nothing for a generation that was never used."""
    use = rows.load("generations", u64be(generation), ClientKeyUse)
    if use is not None:
        rows.store("generations", u64be(generation), replace(use, retired=True))


def begin(rows: TableRows, identity: ClientIdentity, generation: int, now: int) -> ClientKeyUse:
    """Make this the generation in use."""
    use = ClientKeyUse(generation, identity.client_key(generation).public_key, now, retired=False)
    rows.store("generations", u64be(generation), use)
    return use


def current(rows: TableRows) -> ClientKeyUse:
    """The generation in use. A client has one from its creation on."""
    last = rows.last("generations")
    if last is None:
        raise Malformed("state", "it contains no client_id")
    return rows.decoded("generations", last[1], ClientKeyUse)


def _no_capability(client_id: bytes, stream_id: bytes) -> Refused:
    return BY_DETAIL["CAP_MISSING"].refused(
        f"no capability for client_id {client_id.hex()} on stream {stream_id.hex()}: give the issuer this client's "
        "card.cbor, which lists it, and add the tokens that come back",
        client_id=client_id.hex(),
        stream_id=stream_id.hex(),
    )


_NEXT_PLACE = "outbox_next"


@dataclass(frozen=True, slots=True)
class Pending:
    """A message in the outbox, decoded and encoded."""

    msg: Msg
    encoded: bytes
    leaf_hash: bytes
    mark: bytes | None = None  # the id that a program gave it, stored with its place: see `Outbox.marks`

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

    def put(self, writer: WriterKey, messages: Sequence[Pending]) -> WriterKey:
        """Use the places of these messages and store the messages. Returns the writer for the places after them.

        Raises `StateConflict` if another task or process used some of the places since `writer` was returned. Then none
        of these messages may be sent; they must be signed again for other places.
        """
        with self._tables.write() as rows:
            if writer_state(rows, writer.client_id + writer.hub_id + writer.label) != writer.used:
                raise StateConflict("another sender used these places: get a new writer")
            return use_places(rows, writer, messages)

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
                rows.delete(mark, db=rows.db["marks"])

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

    def remove(self, leaf_hash: bytes) -> None:
        """Remove a message that is in the log, but whose receipt does not exist any more. Its mark stays."""
        with self._tables.write() as rows:
            take_from_outbox(rows, leaf_hash)

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
                    rows.delete(key, db=rows.db["outbox"])
                    rows.delete(message.leaf_hash, db=rows.db["leaves"])
                    removed.append(message)
            if removed:
                _unmark(rows, {message.leaf_hash for message in removed})
                rows.store("writers", client, replace(writer_state(rows, client), closed=True))
        return tuple(removed)


def use_places(rows: TableRows, writer: WriterKey, messages: Sequence[Pending]) -> WriterKey:
    """As `Outbox.put`, within a write transaction that has read the state of the writer."""
    used = _used_after(writer, messages)
    rows.store("writers", writer.key.public_key + writer.hub_id + writer.label, used)
    append(rows, writer.hub_id + writer.label, messages)
    room = writer.room - len(messages)
    if room == 0:
        retire(rows, writer.generation)
    return replace(writer, used=used, room=room)


def append(rows: TableRows, label: bytes, messages: Sequence[Pending]) -> None:
    """Append messages and store their marks. `label` is hub_id and label."""
    first = rows.number(_NEXT_PLACE)
    for place, message in enumerate(messages, first):
        key = label + u64be(place)
        rows.put(key, message.encoded, db=rows.db["outbox"])
        rows.put(message.leaf_hash, key, db=rows.db["leaves"])
        if message.mark is not None:
            rows.put(message.mark, message.leaf_hash, db=rows.db["marks"])
    rows.put_number(_NEXT_PLACE, first + len(messages))


def _unmark(rows: TableRows, leaves: set[bytes]) -> None:
    """Delete the marks of abandoned messages, so that their program may send them again."""
    for mark, leaf_hash in tuple(rows.scan("marks")):
        if leaf_hash in leaves:
            rows.delete(mark, db=rows.db["marks"])


def _used_after(writer: WriterKey, messages: Sequence[Pending]) -> WriterState:
    """The state of the writer after these messages. Raises `ValueError` unless they are its next messages."""
    if not messages or len(messages) > writer.room:
        raise ValueError(f"expected 1 to {writer.room} messages for this writer, got {len(messages)}")
    label, client_id = writer.label, writer.key.public_key
    client_seq, prev_ack = writer.used.last_client_seq, writer.used.last_prev_ack
    for message in messages:
        msg = message.msg
        if (msg.label, msg.client_id, msg.client_seq) != (label, client_id, client_seq + 1):
            raise ValueError(f"expected the writer's message with client_seq {client_seq + 1}")
        if msg.prev_ack < prev_ack:
            raise ValueError(f"prev_ack decreases from {prev_ack} to {msg.prev_ack}")
        client_seq, prev_ack = msg.client_seq, msg.prev_ack
    return WriterState(client_seq, prev_ack, closed=False)
