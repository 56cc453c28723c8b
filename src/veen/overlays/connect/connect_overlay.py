"""Connections: the phase of each connection, and the reasons that block its next step. 001, spec-5 §7, §8.1.

    absent --hub--> hub --service--> service --plan--> planned --authorize--> authorized --bind--> bound
                                                          |  if no token is needed                   ^
                                                          +------------------------------------------+

A repeated choice resets all later phases; a repeated authorization renews the token. Each step requires that the
preceding phases are still valid at its own `hub_ts`. Every step that lets the client send requires a trusted hub key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from veen.core import cbor
from veen.core.cbor import Nested, Wire, text_map
from veen.overlays.connect.connect_events import (
    Authorized,
    ConnectEvent,
    ConnectionEnded,
    HubChosen,
    Planned,
    ServiceBound,
    ServiceChosen,
)
from veen.overlays.connect.connect_plan import WITH_TOKEN, CapabilityRoute
from veen.overlays.discovery.directory import plain_wire
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.overlay import FoldStep, WalkOverlay


class Phase(StrEnum):
    ABSENT = "absent"
    HUB = "hub"
    SERVICE = "service"
    PLANNED = "planned"
    AUTHORIZED = "authorized"
    BOUND = "bound"
    ENDED = "ended"


@text_map("connection")
class ServiceConnection(Wire):
    """The results of the phases."""

    hub: Annotated[HubChosen | None, Nested(HubChosen, optional=True)] = None
    service: Annotated[ServiceChosen | None, Nested(ServiceChosen, optional=True)] = None
    plan: Annotated[Planned | None, Nested(Planned, optional=True)] = None
    authorized: Annotated[Authorized | None, Nested(Authorized, optional=True)] = None
    bound: Annotated[ServiceBound | None, Nested(ServiceBound, optional=True)] = None
    ended: Annotated[ConnectionEnded | None, Nested(ConnectionEnded, optional=True)] = None

    @property
    def phase(self) -> Phase:
        reached = (
            (self.ended, Phase.ENDED),
            (self.bound, Phase.BOUND),
            (self.authorized, Phase.AUTHORIZED),
            (self.plan, Phase.PLANNED),
            (self.service, Phase.SERVICE),
            (self.hub, Phase.HUB),
        )
        return next((phase for found, phase in reached if found is not None), Phase.ABSENT)

    @property
    def needs_token(self) -> bool:
        return self.plan is not None and self.plan.route in WITH_TOKEN

    def lapsed(self, now: int) -> Iterator[str]:
        """What has expired at `now`, in seconds of hub time."""
        if self.hub is not None and now > self.hub.expires_at:
            yield "the hub's advertisement has expired"
        if self.service is not None and now > self.service.expires_at:
            yield "the service's advertisement has expired"
        wait_until = self.plan.wait_until if self.plan is not None and self.authorized is None else None
        if wait_until is not None and now > wait_until:
            yield "the wait for a token has timed out"
        if self.authorized is not None and now > self.authorized.expires_at:
            yield "the capability has expired"

    def usable(self, now: int) -> bool:
        """Whether the client may send: the connection is bound and any required capability is valid.

        An expired advertisement does not prevent sending: it means that the client should query again.
        """
        has_token = not self.needs_token or (self.authorized is not None and now <= self.authorized.expires_at)
        return self.phase is Phase.BOUND and has_token


NO_CONNECTION = ServiceConnection()
States: TypeAlias = Mapping[bytes, ServiceConnection]


class Connect(WalkOverlay[ServiceConnection]):
    """One part per connection, under its name."""

    CLASS = "connect"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (
        HubChosen,
        ServiceChosen,
        Planned,
        Authorized,
        ServiceBound,
        ConnectionEnded,
    )
    INITIAL = NO_CONNECTION

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, ConnectEvent)
        return (event.name.encode(),)

    def refusal(self, state: ServiceConnection, step: FoldStep) -> str | None:
        event, now = step.event, step.entry.hub_ts
        if isinstance(event, HubChosen):
            return "the hub's advertisement has expired" if now > event.expires_at else None
        if state.phase in (Phase.ABSENT, Phase.ENDED):
            return "no such connection: choose a hub first"
        match event:
            case ServiceChosen():
                return _service_refusal(state, event, now)
            case Planned():
                return _plan_refusal(state, event, now)
            case Authorized():
                return _authorize_refusal(state, event, now)
            case ServiceBound():
                return _bind_refusal(state, event, now)
        return None

    def apply(self, state: ServiceConnection, step: FoldStep) -> ServiceConnection:
        event = step.event
        match event:
            case HubChosen():
                return ServiceConnection(hub=event)
            case ServiceChosen():
                return ServiceConnection(hub=state.hub, service=event)
            case Planned():
                return ServiceConnection(hub=state.hub, service=state.service, plan=event)
            case Authorized():
                return replace(state, authorized=event)
            case ServiceBound():
                return replace(state, bound=event)
            case ConnectionEnded():
                return ServiceConnection(ended=event)
        raise AssertionError(event)

    def live(self, state: ServiceConnection) -> bool:
        return state.phase not in (Phase.ABSENT, Phase.ENDED)

    def encode_state(self, state: ServiceConnection) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> ServiceConnection:
        return ServiceConnection.decode(data)

    def plain(self, part: bytes, state: ServiceConnection) -> Mapping[str, cbor.Value]:
        shown: dict[str, cbor.Value] = {"name": part.decode(), "phase": str(state.phase)}
        for field in ("hub", "service", "plan", "authorized", "bound", "ended"):
            found = getattr(state, field)
            if found is not None:
                shown[field] = {name: value for name, value in plain_wire(found).items() if name != "name"}
        return shown


CONNECT = Connect()


def _service_refusal(state: ServiceConnection, event: ServiceChosen, now: int) -> str | None:
    if state.hub is not None and now > state.hub.expires_at:
        return "the hub's advertisement has expired"
    if now > event.expires_at:
        return "the service's advertisement has expired"
    return None if event.stream_ids else "the service lists no stream"


def _plan_refusal(state: ServiceConnection, event: Planned, now: int) -> str | None:
    if state.service is None:
        return "no service is chosen"
    if now > state.service.expires_at:
        return "the service's advertisement has expired"
    routes = {"none": (CapabilityRoute.NONE,), "cap_token": WITH_TOKEN}.get(
        state.service.auth_mode, (CapabilityRoute.OUTSIDE,)
    )
    if event.route not in routes:
        return f"route {event.route} does not fit auth mode {state.service.auth_mode}"
    has_issuer = event.issuer_service is not None
    if has_issuer != (event.route == CapabilityRoute.SERVICE):
        return "issuer_service is required with route service and not allowed with another route"
    return None


def _authorize_refusal(state: ServiceConnection, event: Authorized, now: int) -> str | None:
    if state.plan is None:
        return "there is no authorization plan yet"
    if not state.needs_token:
        return "the service needs no capability"
    if state.hub is None or not state.hub.trusted:
        return "the hub's key is not trusted yet"
    wait_until = state.plan.wait_until
    if state.authorized is None and wait_until is not None and now > wait_until:
        return "the wait for a token has timed out"
    return "the capability has expired" if now > event.expires_at else None


def _bind_refusal(state: ServiceConnection, event: ServiceBound, now: int) -> str | None:
    if state.plan is None or state.service is None:
        return "there is no authorization plan yet"
    if state.hub is None or not state.hub.trusted:
        return "the hub's key is not trusted yet"
    if now > state.service.expires_at:
        return "the service's advertisement has expired"
    if state.needs_token and state.authorized is None:
        return "the hub has not accepted a capability yet"
    if state.authorized is not None and now > state.authorized.expires_at:
        return "the capability has expired"
    if not event.request_streams:
        return "request_streams is empty"
    named = {*event.request_streams, *event.reply_streams}
    return None if named <= set(state.service.stream_ids) else "a stream does not belong to the service"
