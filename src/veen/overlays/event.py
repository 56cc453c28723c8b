"""Typed events, and the faults of entries that are not applied.

Decoding is total and deterministic: every body is either a typed event or an `EventFault`. Spec §4.7.
"""

from collections.abc import Callable
from dataclasses import field
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar, dataclass_transform

from veen.core import PayloadHdr, naming
from veen.core.cbor import Bytes, Text, Uint, Wire, array, text_map
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


E = TypeVar("E", bound=Event)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def event(name: str) -> Callable[[type[E]], type[E]]:
    """Make a frozen dataclass whose encoding is a map with its field names as keys; `name` gives its schema id.

    >>> @event("door.opened.v1")
    ... class DoorOpened(Event):
    ...     door: Annotated[int, Uint()]
    """

    def make(cls: type[E]) -> type[E]:
        made = text_map(name)(cls)
        made.SCHEMA = naming.schema_id(name)
        return made

    return make


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


@array("fault")
class EventFault(Wire):
    """An entry that was not applied, its place and the reason. `part` is set if only that part did not apply it."""

    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint(least=1)]
    kind: Annotated[str, Text(MAX_BODY_BYTES)]
    reason: Annotated[str, Text(MAX_MSG_BYTES)]
    part: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None

    def flaw(self) -> str | None:
        return None if self.kind in FaultKind.__members__.values() else f"unknown fault kind {self.kind!r}"

    @classmethod
    def at(cls, at: At, kind: FaultKind, reason: str, part: bytes | None = None) -> "EventFault":
        return cls(at.epoch, at.stream_seq, str(kind), reason, part)

    @property
    def place(self) -> At:
        return At(self.epoch, self.stream_seq)
