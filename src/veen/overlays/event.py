"""What an entry says, once its body is read by the layout of its schema; and what is wrong with those that say nothing.

Reading is total: every body is a typed event or a `Fault`, and the same one for everybody. Spec §4.7.
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
    """A body of one schema: a frozen dataclass whose `LAYOUT` lists its text keys. Two forms may share a schema."""

    __slots__ = ()
    SCHEMA: ClassVar[bytes]

    def payload(self, parent_id: bytes | None = None) -> tuple[PayloadHdr, bytes]:
        """The header and the body of a message that says this."""
        return PayloadHdr(self.SCHEMA, parent_id), self.encode()


def draft(
    event: Event, *, client_id: bytes, hub_ts: int, after: At | None = None, parent_id: bytes | None = None
) -> FoldEntry:
    """An entry that is not in the log yet, as it would be next: to ask what would become of it."""
    epoch, stream_seq = after or (0, 0)
    return FoldEntry(ZERO_HASH, epoch, stream_seq + 1, hub_ts, client_id, None, ZERO_HASH, *event.payload(parent_id))


class FaultKind(StrEnum):
    """Why an entry changed nothing."""

    SEALED = "sealed"  # it could not be opened here
    MALFORMED = "malformed"  # its body is not what its schema says
    COPY = "copy"  # the same event came before
    REFUSED = "refused"  # it is well formed, and the state does not allow it


@dataclass(frozen=True, slots=True)
class EventFault(Wire):
    """An entry that changed nothing, where it is and why; `part` where only that part of the state refused it."""

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
        return None if self.kind in FaultKind.__members__.values() else f"there is no kind of fault {self.kind!r}"

    @classmethod
    def at(cls, at: At, kind: FaultKind, reason: str, part: bytes | None = None) -> "EventFault":
        return cls(at.epoch, at.stream_seq, str(kind), reason, part)

    @property
    def place(self) -> At:
        return At(self.epoch, self.stream_seq)
