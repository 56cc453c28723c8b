"""Typed events, and the faults of entries that are not applied.

Decoding is total and deterministic: every body is either a typed event or an `EventFault`. Spec §4.7.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from veen.core import PayloadHdr
from veen.core.cbor import Array, Bytes, Text, Uint, Wire
from veen.core.limits import MAX_BODY_BYTES, MAX_MSG_BYTES
from veen.core.naming import ZERO_HASH
from veen.overlays.entry import At, FoldEntry


class Event(Wire):
    """Base of event bodies: a frozen dataclass whose `LAYOUT` lists its text keys. Two forms may share a schema."""

    __slots__ = ()
    SCHEMA: ClassVar[bytes]

    def payload(self, parent_id: bytes | None = None) -> tuple[PayloadHdr, bytes]:
        """The header and body of a message that carries this event."""
        return PayloadHdr(self.SCHEMA, parent_id), self.encode()


def draft(
    event: Event, *, client_id: bytes, hub_ts: int, after: At | None = None, parent_id: bytes | None = None
) -> FoldEntry:
    """Build the entry that this event would become if it were logged after `after`. Used with `preview`."""
    epoch, stream_seq = after or (0, 0)
    return FoldEntry(ZERO_HASH, epoch, stream_seq + 1, hub_ts, client_id, None, ZERO_HASH, *event.payload(parent_id))


class FaultKind(StrEnum):
    """Why an entry was not applied."""

    SEALED = "sealed"  # this reader cannot open the payload
    MALFORMED = "malformed"  # the body does not match its schema
    COPY = "copy"  # the same event is already in the log
    REFUSED = "refused"  # well formed, but the state does not allow it


@dataclass(frozen=True, slots=True)
class EventFault(Wire):
    """An entry that was not applied, its place and the reason. `part` is set if only that part did not apply it."""

    epoch: int
    stream_seq: int
    kind: str
    reason: str
    part: bytes | None = None

    LAYOUT: ClassVar = Array(
        "fault",
        Uint("epoch"),
        Uint("stream_seq", least=1),
        Text("kind", MAX_BODY_BYTES),
        Text("reason", MAX_MSG_BYTES),
        Bytes("part", MAX_BODY_BYTES, optional=True),
    )

    def flaw(self) -> str | None:
        return None if self.kind in FaultKind.__members__.values() else f"unknown fault kind {self.kind!r}"

    @classmethod
    def at(cls, at: At, kind: FaultKind, reason: str, part: bytes | None = None) -> "EventFault":
        return cls(at.epoch, at.stream_seq, str(kind), reason, part)

    @property
    def place(self) -> At:
        return At(self.epoch, self.stream_seq)
