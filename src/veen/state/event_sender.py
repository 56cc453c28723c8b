"""Saying something on a stream, after asking the state whether it would be taken.

The same rules judge an event before it is sent and when it is folded. What comes in between may change the answer, so
after sending the channel looks again what became of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from veen.client.client import Client
from veen.client.draft import Sent
from veen.core import Refused
from veen.overlays import At, Event, EventFault, FoldEntry, Outcome, draft, preview
from veen.state.hub_source import HubSource
from veen.state.state_at import StateAt
from veen.state.state_view import StateView

S = TypeVar("S")
M = TypeVar("M")

CODE = "E.STATE"


class EventRefused(Refused):
    """The state does not allow the event, so it was not sent. `faults` say why, part by part."""

    def __init__(self, overlay_class: str, faults: Sequence[EventFault]) -> None:
        reasons = "; ".join(dict.fromkeys(fault.reason for fault in faults))
        super().__init__(CODE, f"{overlay_class} would not take it: {reasons}")
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that is in the log, with its receipt; `faults` where it changed nothing after all."""

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
    """Events of one overlay, to one stream of a live hub."""

    def __init__(self, view: StateView[S, M]) -> None:
        """Raises `ValueError` over a view of anything but a hub: nothing can be said to a directory."""
        if not isinstance(view.source, HubSource):
            raise ValueError("nothing can be said to a data directory")
        self.view = view
        self.client: Client = view.source.client

    def preview(self, reading: StateAt[S, M], event: Event, parent_id: bytes | None = None) -> tuple[Outcome[S], ...]:
        """What would become of an event if it came next."""
        return preview(self.view.overlay, self._draft(reading, event, parent_id), reading)

    def _draft(self, reading: StateAt[S, M], event: Event, parent_id: bytes | None) -> FoldEntry:
        client_id = self.client.dir.writers.current().client_id
        now = max(self.view.source.now(), 0)
        return draft(event, client_id=client_id, hub_ts=now, after=reading.upto, parent_id=parent_id)

    def check(self, reading: StateAt[S, M], event: Event, parent_id: bytes | None = None) -> None:
        """Raise `NotTaken` where the state would not take an event."""
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
        """Send an event unless the state refuses it, and tell what became of it. `reading` is a look already taken."""
        if reading is None:
            async with self.view.reading() as fresh:
                self.check(fresh, event, parent_id)
        else:
            self.check(reading, event, parent_id)
        return await self.send_unchecked(event, parent_id=parent_id, expires_at=expires_at)

    async def send_unchecked(
        self, event: Event, *, parent_id: bytes | None = None, expires_at: int | None = None
    ) -> SentEvent:
        """Send an event whatever the state says of it, and tell what became of it."""
        sent = await self.client.send(
            self.view.stream_id, event.encode(), schema=event.SCHEMA, parent_id=parent_id, expires_at=expires_at
        )
        async with self.view.reading() as after:
            return SentEvent(sent, after.faults_at(At(sent.epoch, sent.stream_seq)))
