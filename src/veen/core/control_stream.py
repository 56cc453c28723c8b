"""The control stream: events that a hub logs about itself, so that replay restores them.

Each event is a MSG on the control stream. It is sealed to a key that anyone can derive from `hub_id`: sealing keeps the
message format and hides nothing from an auditor.

A new type of event is a class with `encode` and `decode`, and a row in `EVENT_TYPES`. If it changes something that no
event changed before, add a field to `Effects` and apply it in `AdmissionState.apply_control_event` (memory and journal)
and `Registrar` (rebuild of the index).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Generic, Self, TypeAlias, TypeVar

from veen.core import ciphertext, naming
from veen.core.admin import OperatorRevocation
from veen.core.cap_token import Capability, CapPresentation, CapToken
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.checkpoint import RequestedCheckpoint
from veen.core.ciphertext import PayloadHdr, Place
from veen.core.errors import Malformed
from veen.core.handover import HandOver
from veen.core.hashing import HASH_BYTES, ht
from veen.core.hpke import DhKey
from veen.core.limits import MAX_ENDED_LABELS
from veen.core.msg import Msg, sign
from veen.core.profile import Limits, LoweredLimits
from veen.core.recovery import RecoveryStatement
from veen.core.retention import AttachmentPrune, Hold, Prune, RetentionPolicy
from veen.core.signing import DigestSigner


@dataclass(frozen=True, slots=True)
class RegisteredStream:
    """A stream that the operator registered. The encoding is the id itself."""

    stream_id: bytes

    def encode(self) -> bytes:
        return self.stream_id

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) != HASH_BYTES:
            raise Malformed("registered stream", f"{len(data)} bytes, not {HASH_BYTES}")
        return cls(data)


@int_map("ended label")
class EndedLabel(Wire):
    """The final size and root of a label."""

    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    size: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]


# The end of an epoch. Spec §8.4. A label is listed once no message can name it any more: its epoch is outside the
# window around `hub_ts`. As an event of the log, it closes the same chunks in every replay.
@int_map("epoch end", VersionField())
class EpochEnd(Wire):
    """Labels whose epochs are over, in ascending order of label."""

    labels: Annotated[
        tuple[EndedLabel, ...], ListOf(Nested(EndedLabel, name="ended label"), least=1, most=MAX_ENDED_LABELS)
    ]

    def flaw(self) -> str | None:
        ordered = all(one.label < other.label for one, other in pairwise(self.labels))
        return None if ordered else "the labels are not in ascending order"


Event: TypeAlias = (
    CapToken
    | CapPresentation
    | RegisteredStream
    | OperatorRevocation
    | HandOver
    | RecoveryStatement
    | LoweredLimits
    | RequestedCheckpoint
    | Prune
    | AttachmentPrune
    | RetentionPolicy
    | Hold
    | EpochEnd
)
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Effects:
    """Everything that a logged event changes at a hub."""

    streams: tuple[bytes, ...] = ()  # stream ids that become registered
    capability: Capability | None = None  # becomes valid
    revocation: OperatorRevocation | None = None  # takes effect with the next message
    limits: LoweredLimits | None = None  # limits for entries with a later hub_ts
    retention: RetentionPolicy | Hold | None = None  # what may be pruned from now on
    epoch_end: EpochEnd | None = None  # the labels whose last chunk is closed


@dataclass(frozen=True, slots=True)
class EventType(Generic[E]):
    """A type of event: its schema name, its codec (`encode` and `decode` of the class) and its effects."""

    name: str
    cls: type[E]
    effects: Callable[[E, int], Effects]  # the event and its hub_ts

    @property
    def schema(self) -> bytes:
        return naming.schema_id(self.name)


CAP = EventType("veen.control.cap.v1", CapToken, lambda token, _: Effects(token.allow.stream_ids, token))
PRESENTATION = EventType(
    "veen.control.presentation.v1", CapPresentation, lambda event, _: Effects(event.token.allow.stream_ids, event)
)
REVOCATION = EventType(OperatorRevocation.NAME, OperatorRevocation, lambda event, _: Effects(revocation=event))
STREAM = EventType("veen.control.stream.v1", RegisteredStream, lambda event, _: Effects((event.stream_id,)))
HAND_OVER = EventType("veen.control.handover.v1", HandOver, lambda *_: Effects())  # for auditors; changes nothing
RECOVERY = EventType("veen.control.recovery.v1", RecoveryStatement, lambda *_: Effects())  # the same
LIMITS = EventType("veen.control.limits.v1", LoweredLimits, lambda event, _: Effects(limits=event))
CHECKPOINT = EventType("veen.control.checkpoint.v1", RequestedCheckpoint, lambda *_: Effects())  # changes no decision
PRUNE = EventType("veen.control.prune.v1", Prune, lambda *_: Effects())  # for auditors, before anything is deleted
ATTACHMENT_PRUNE = EventType("veen.control.attachment-prune.v1", AttachmentPrune, lambda *_: Effects())  # the same
RETENTION = EventType("veen.control.retention.v1", RetentionPolicy, lambda event, _: Effects(retention=event))
HOLD = EventType("veen.control.hold.v1", Hold, lambda event, _: Effects(retention=event))
EPOCH_END = EventType("veen.control.epoch-end.v1", EpochEnd, lambda event, _: Effects(epoch_end=event))
EVENT_TYPES: tuple[EventType[Any], ...] = (
    CAP,
    PRESENTATION,
    REVOCATION,
    STREAM,
    HAND_OVER,
    RECOVERY,
    LIMITS,
    CHECKPOINT,
    PRUNE,
    ATTACHMENT_PRUNE,
    RETENTION,
    HOLD,
    EPOCH_END,
)

_BY_SCHEMA = {row.schema: row for row in EVENT_TYPES}
_BY_CLASS: dict[type, EventType[Any]] = {row.cls: row for row in EVENT_TYPES}


def reader_key(hub_id: bytes) -> DhKey:
    """The key that opens a hub's control stream. It is public."""
    return DhKey(ht("veen/control-key", hub_id))


def effects(event: Event, hub_ts: int) -> Effects:
    """The effects of an event that is logged at `hub_ts`."""
    return _BY_CLASS[type(event)].effects(event, hub_ts)


def message(key: DigestSigner, hub_id: bytes, place: Place, event: Event, pad_block: int) -> Msg:
    """The MSG that logs an event, signed by the hub's own client key."""
    header = PayloadHdr(_BY_CLASS[type(event)].schema)
    sealed = ciphertext.seal(reader_key(hub_id).public_key, place, header, event.encode(), pad_block)
    return sign(
        key,
        profile_id=place.profile_id,
        label=place.label,
        client_seq=place.client_seq,
        prev_ack=place.prev_ack,
        auth_ref=None,
        ciphertext=sealed,
    )


def event_of(hub_id: bytes, logged: Msg, limits: Limits) -> Event:
    """Decode the event of a control message. Raises `Malformed` for a schema that this version does not know."""
    opened = ciphertext.open_sealed(reader_key(hub_id), Place.of(logged), logged.ciphertext, limits)
    schema = opened.header.schema
    found = _BY_SCHEMA.get(schema) if schema else None
    if found is None:
        known = ", ".join(row.name for row in EVENT_TYPES)
        named = f"{schema.hex()[:16]}…" if schema else "missing"
        raise Malformed(
            "control message", f"unknown schema {named}; use the version of veen that wrote it (known: {known})"
        )
    event: Event = found.cls.decode(opened.body)
    return event
