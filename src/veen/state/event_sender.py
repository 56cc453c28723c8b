"""Send events to a stream after checking them against its state.

The same rules check an event before it is sent and when it is folded. Another entry may be logged in between, so the
sender reads the outcome again after sending.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from veen.client.client import Client
from veen.client.sender import Sent
from veen.core import Refused
from veen.overlays import At, Event, EventFault, FoldEntry, Outcome, draft, preview
from veen.state.entry_source import HubSource
from veen.state.state_view import StateAt, StateView

S = TypeVar("S")
M = TypeVar("M")

CODE = "E.STATE"


class EventRefused(Refused):
    """The state does not allow the event, so it was not sent. `faults` has the reason for each part."""

    def __init__(self, overlay_class: str, faults: Sequence[EventFault]) -> None:
        reasons = "; ".join(dict.fromkeys(fault.reason for fault in faults))
        super().__init__(CODE, f"the {overlay_class} state refuses the event: {reasons}")
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """A logged event with its receipt. `faults` is not empty if it was not applied after all."""

    sent: Sent
    faults: tuple[EventFault, ...] = ()

    @property
    def applied(self) -> bool:
        return not self.faults

    @property
    def msg_id(self) -> bytes:
        return self.sent.msg_id

    @property
    def at(self) -> At:
        return At(self.sent.epoch, self.sent.stream_seq)


class EventSender(Generic[S, M]):
    """Sends events of one overlay to one stream of a live hub."""

    def __init__(self, view: StateView[S, M]) -> None:
        """Raises `ValueError` if the view's source is not a hub."""
        if not isinstance(view.source, HubSource):
            raise ValueError("events can be sent only to a hub, not to a data directory")
        self.view = view
        self.client: Client = view.source.client

    def preview(self, reading: StateAt[S, M], event: Event, parent_id: bytes | None = None) -> tuple[Outcome[S], ...]:
        """The outcomes of an event if it were logged next."""
        return preview(self.view.overlay, self._draft(reading, event, parent_id), reading)

    def _draft(self, reading: StateAt[S, M], event: Event, parent_id: bytes | None) -> FoldEntry:
        client_id = self.client.dir.writers.current().client_id
        now = max(self.view.source.now(), 0)
        return draft(event, client_id=client_id, hub_ts=now, after=reading.upto, parent_id=parent_id)

    def check(self, reading: StateAt[S, M], event: Event, parent_id: bytes | None = None) -> None:
        """Raise `EventRefused` if the state would refuse an event."""
        faults = [one for one in self.preview(reading, event, parent_id) if isinstance(one, EventFault)]
        if faults:
            raise EventRefused(self.view.overlay.CLASS, faults)

    async def send(
        self,
        event: Event,
        *,
        parent_id: bytes | None = None,
        expires_at: int | None = None,
        reading: StateAt[S, M] | None = None,
    ) -> SentEvent:
        """Send an event unless the state refuses it, and return its outcome.

        `reading` is a state to check against; by default the current state is read.
        """
        if reading is None:
            async with self.view.reading() as fresh:
                self.check(fresh, event, parent_id)
        else:
            self.check(reading, event, parent_id)
        return await self.send_unchecked(event, parent_id=parent_id, expires_at=expires_at)

    async def send_unchecked(
        self, event: Event, *, parent_id: bytes | None = None, expires_at: int | None = None
    ) -> SentEvent:
        """Send an event without checking it first, and return its outcome."""
        sent = await self.client.send(
            self.view.stream_id, event.encode(), schema=event.SCHEMA, parent_id=parent_id, expires_at=expires_at
        )
        async with self.view.reading() as after:
            return SentEvent(sent, after.faults_at(At(sent.epoch, sent.stream_seq)))
