"""Where an event goes, and whether its producer may send it: what the administrator said, as of the last look."""

from dataclasses import dataclass, field

from veen.client.client import Client
from veen.core import Refused, Unavailable
from veen.overlays import FaultKind
from veen.overlays.record import (
    CHANGES,
    RECORDER_CHANGES,
    Producer,
    RecorderProfile,
    RecorderSetting,
    RecordEvent,
    producer_of,
    profile_of,
    stream_of,
)
from veen.overlays.record.changes import States
from veen.state.state_view import StateView

CODE = "E.RECORDER"


class NotSetUp(Unavailable):
    """The hub answers, and has no recorder: waiting changes nothing, an administrator does."""

    def __init__(self) -> None:
        super().__init__(f"no recorder is set up at this hub: {CHANGES} has no profile")


class NotRecorded(Refused):
    """An event that is not sent, because of what it is; nothing but the administrator's word changes that."""

    def __init__(self, reason: str) -> None:
        super().__init__(CODE, reason)


@dataclass(frozen=True, slots=True)
class Routes:
    """The map as it was read, for one producer; for the administrator where there is none."""

    profile: RecorderProfile
    states: States = field(repr=False)
    producer: Producer | None = None

    def stream(self, event: RecordEvent) -> str:
        """The one stream of an event. Raises `NotRecorded` where it has none, or not from this producer."""
        found = stream_of(self.states, event.event_type)
        if found is None:
            raise NotRecorded(f"event type {event.event_type!r} is mapped to no stream")
        size = len(event.content.encode())
        if size > self.profile.max_payload_bytes:
            raise NotRecorded(f"a payload of {size} bytes, above the {self.profile.max_payload_bytes} of this recorder")
        if self.producer is not None:
            if event.origin not in self.producer.origins:
                raise NotRecorded(f"origin {event.origin!r} is not one that {self.producer.name} speaks for")
            if found not in self.producer.streams:
                raise NotRecorded(f"{self.producer.name} does not write to {found}")
        return found

    def refusal(self, event: RecordEvent) -> str | None:
        """Why an event would not be sent, or None where it would."""
        try:
            self.stream(event)
        except NotRecorded as refused:
            return refused.message
        return None


async def read_states(client: Client) -> dict[bytes, RecorderSetting]:
    """All that the administrator said, verified. Raises `Refused` where some of it is sealed for another key."""
    async with StateView.of(client, CHANGES, RECORDER_CHANGES, cached=False) as view, view.reading() as reading:
        if any(fault.kind == FaultKind.SEALED for fault in reading.faults()):
            raise Refused(CODE, f"{CHANGES} of this hub is sealed for another key: another recorder is set up there")
        return dict(reading.states)


async def routes_of(client: Client) -> Routes:
    """The map for a producer. Raises `Unavailable` where no recorder is set up, `Refused` where it is no producer."""
    states = await read_states(client)
    profile = profile_of(states)
    if profile is None:
        raise NotSetUp
    client_id = client.dir.writers.current().client_id
    if profile.admin_pk == client.dir.card.id_sign:
        raise Refused(CODE, "this identity administers the recorder, and an administrator is no producer")
    found = producer_of(states, client_id)
    if found is None:
        raise Refused(CODE, f"client key {client_id.hex()[:16]}… is of no producer of this recorder")
    return Routes(profile, states, found)
