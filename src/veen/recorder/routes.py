"""The stream of each event type, and whether a producer may send an event, by the administrator's settings."""

from dataclasses import dataclass, field

from veen.client.client import Client
from veen.core import Refused, Unavailable
from veen.overlays import FaultKind, record
from veen.state.state_view import StateView

CODE = "E.RECORDER"


class NotSetUp(Unavailable):
    """The hub has no recorder. Retrying does not help; an administrator must set one up."""

    def __init__(self) -> None:
        super().__init__(f"no recorder is set up at this hub: {record.CHANGES} has no profile")


class RecorderRefused(Refused):
    """The settings of the recorder, or those of its hub, do not allow this."""

    def __init__(self, reason: str) -> None:
        super().__init__(CODE, reason)


class NotRecorded(RecorderRefused):
    """An event that is not sent because of its content. Only a change of the settings can help."""


class UnmappedType(NotRecorded):
    """The event type has no stream."""


class NotAProducer(RecorderRefused):
    """The administrator has not enrolled this client."""


class ProducerRoleConflict(RecorderRefused):
    """One identity would be both administrator and producer."""


class OpenHub(RecorderRefused):
    """The hub does not check capabilities, so producers are not kept to their streams."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The event map as last read, for one producer, or for the administrator if `producer` is None."""

    profile: record.RecorderProfile
    states: record.States = field(repr=False)
    producer: record.Producer | None = None

    def stream(self, event: record.RecordEvent) -> str:
        """The stream of an event. Raises `NotRecorded` if it has none, or if this producer may not send it."""
        found = record.stream_of(self.states, event.event_type)
        if found is None:
            raise UnmappedType(f"event type {event.event_type!r} is not mapped to a stream")
        size = len(event.content.encode())
        if size > self.profile.max_payload_bytes:
            raise NotRecorded(f"the payload has {size} bytes, the limit is {self.profile.max_payload_bytes}")
        if self.producer is not None:
            if event.origin not in self.producer.origins:
                raise NotRecorded(f"origin {event.origin!r} is not an origin of producer {self.producer.name}")
            if found not in self.producer.streams:
                raise NotRecorded(f"{self.producer.name} may not write to {found}")
        return found

    def refusal(self, event: record.RecordEvent) -> str | None:
        """The reason why an event would not be sent, or None."""
        try:
            self.stream(event)
        except NotRecorded as refused:
            return refused.message
        return None


async def read_states(client: Client) -> dict[bytes, record.RecorderSetting]:
    """All settings, verified. Raises `Refused` if some are sealed for another key."""
    async with (
        StateView.of(client, record.CHANGES, record.RECORDER_CHANGES, cached=False) as view,
        view.reading() as reading,
    ):
        if any(fault.kind == FaultKind.SEALED for fault in reading.faults()):
            raise RecorderRefused(
                f"{record.CHANGES} of this hub is sealed for another key; another recorder is set up there"
            )
        return dict(reading.states)


def required_profile(states: record.States) -> record.RecorderProfile:
    """The profile in the settings. Raises `NotSetUp` if there is none."""
    profile = record.profile_of(states)
    if profile is None:
        raise NotSetUp
    return profile


async def routes_of(client: Client) -> Routes:
    """The routes of a producer. Raises `Unavailable` without a recorder, `Refused` if the client is not a producer."""
    states = await read_states(client)
    profile = required_profile(states)
    client_id = client.dir.writers.current().client_id
    if profile.admin_pk == client.dir.card.id_sign:
        raise ProducerRoleConflict("this identity administers the recorder; an administrator cannot be a producer")
    found = record.producer_of(states, client_id)
    if found is None:
        raise NotAProducer(f"client key {client_id.hex()[:16]}… does not belong to a producer of this recorder")
    return Routes(profile, states, found)
