"""Connect: from a directory entry to a usable service, in four phases. 001, spec-5 §7, §8.1.

    absent --hub--> hub --service--> service --plan--> planned --authorize--> authorized --bind--> bound
                                                          |  if no token is needed                   ^
                                                          +------------------------------------------+

The specification defines the result of each phase but not where it is stored. Here it is a log sealed for its owner, so
a connection is derived like any other state, is the same on all devices of its owner, and can be proved. A repeated
choice resets all later phases; a repeated authorization renews the token. Each step requires that the preceding phases
are still valid at its own `hub_ts`. Every step that lets the client send requires a trusted hub key.

A descriptor grants nothing (§8.3); a token does, once the hub has accepted it. The `details` of a service's auth policy
may name `issuer_service`, a service of the directory with the method `cap.issue.v1`. Otherwise the token comes from the
operator.

    cap.issue.v1   args {"caps": [text], "hub_id": bstr(32)?, "stream_ids": [bstr(32)], "subject_pk": bstr(32),
                         "ttl": uint?}
                   result: the cap_token or cap_presentation as a byte string

If a service has methods, its first stream is for requests and the others are for replies; a single stream serves both.
A client of a service without methods writes to all of its streams, as the overlay's documentation defines.

Phases 1 and 2 select a hub, an overlay and a service. Their functions return the candidates, best first, and the
excluded descriptors with the reason, so that the user sees what was not proposed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Generic, TypeVar

from veen.core import Unverified, cbor
from veen.core.cap_token import Capability, decode_capability, token_of
from veen.core.cbor import Bool, Bstr, ListOf, Nested, Text, Uint, Wire, text_map
from veen.overlays.discovery import (
    MAX_DESCRIPTOR_BYTES,
    MAX_NAMES,
    Advertised,
    HubAdvertise,
    Operator,
    OverlayAdvertise,
    ServiceAdvertise,
    ServiceEndpoint,
)
from veen.overlays.event import Event, FoldEntry, event, plain_wire
from veen.overlays.overlay import FoldStep, WalkOverlay
from veen.overlays.rpc import CallRequest, Reply

MAX_NAME_BYTES = 256

D = TypeVar("D", HubAdvertise, OverlayAdvertise, ServiceAdvertise)


def _texts(*, name: str = "") -> ListOf:
    return ListOf(Text(MAX_DESCRIPTOR_BYTES, name=name), name=name, most=MAX_NAMES)


def _streams(*, name: str = "") -> ListOf:
    return ListOf(Bstr(name=name), name=name, most=MAX_NAMES)


@text_map("connect event")
class ConnectEvent(Event):
    """A step of the connection `name`."""

    name: Annotated[str, Text(MAX_NAME_BYTES)]


@event("connect.hub.v1")
class HubChosen(ConnectEvent):
    """Phase 1. `trusted` is the client's own decision to trust the hub key; it never comes from the directory."""

    hub_id: Annotated[bytes, Bstr()]
    hub_pk: Annotated[bytes, Bstr()]
    profile_id: Annotated[bytes, Bstr()]
    endpoint: Annotated[ServiceEndpoint, Nested(ServiceEndpoint)]
    trusted: Annotated[bool, Bool()]
    expires_at: Annotated[int, Uint()]


@event("connect.service.v1")
class ServiceChosen(ConnectEvent):
    """Phase 2. `auth_mode` is the mode of the service's auth policy."""

    service_id: Annotated[bytes, Bstr()]
    overlay_id: Annotated[bytes, Bstr()]
    methods: Annotated[tuple[str, ...], _texts()]
    stream_ids: Annotated[tuple[bytes, ...], _streams()]
    required_caps: Annotated[tuple[str, ...], _texts()]
    auth_mode: Annotated[str, Text(MAX_DESCRIPTOR_BYTES)]
    expires_at: Annotated[int, Uint()]


@event("connect.plan.v1")
class Planned(ConnectEvent):
    """Phase 3, first half: the source of the capability. `wait_until` is the last second to wait for a token."""

    route: Annotated[str, Text(MAX_NAME_BYTES)]
    issuer_service: Annotated[bytes | None, Bstr(optional=True)] = None
    wait_until: Annotated[int | None, Uint(optional=True)] = None


@event("connect.authorize.v1")
class Authorized(ConnectEvent):
    """Phase 3, second half: the hub accepted a token. A repeated event renews it."""

    auth_ref: Annotated[bytes, Bstr()]
    expires_at: Annotated[int, Uint()]


@event("connect.bind.v1")
class ServiceBound(ConnectEvent):
    """Phase 4: the streams to write requests or other events to, and the streams of replies."""

    request_streams: Annotated[tuple[bytes, ...], _streams()]
    reply_streams: Annotated[tuple[bytes, ...], _streams()]


@event("connect.end.v1")
class ConnectionEnded(ConnectEvent):
    """The client ends the connection."""

    reason: Annotated[str | None, Text(MAX_DESCRIPTOR_BYTES, optional=True)] = None


ISSUE_METHOD = "cap.issue.v1"
ISSUER_KEY = "issuer_service"


class CapabilityRoute(StrEnum):
    """The source of the permission to use a service."""

    NONE = "none"  # no permission needed
    SERVICE = "service"  # a token from an issuance call to an admin service
    OPERATOR = "operator"  # a token from the operator, out of band
    OUTSIDE = "outside"  # not a capability: mutual TLS and the like


WITH_TOKEN = (CapabilityRoute.SERVICE, CapabilityRoute.OPERATOR)


@dataclass(frozen=True, slots=True)
class AuthorizationPlan:
    """The requirements of a service before it can be used."""

    route: CapabilityRoute
    required_caps: tuple[str, ...]
    stream_ids: tuple[bytes, ...]  # that the token must allow
    issuer: ServiceAdvertise | None = None
    operator: Operator | None = None


def written_streams(service: ServiceAdvertise) -> tuple[bytes, ...]:
    """The streams that a client writes to: the request stream if the service has methods, else all of them."""
    return service.stream_ids[:1] if service.methods else service.stream_ids


def auth_mode(service: ServiceAdvertise) -> str:
    """The auth mode of a service. Without a policy it is `cap_token` if the service requires capabilities."""
    if service.auth_policy is not None:
        return service.auth_policy.mode
    return "cap_token" if service.required_caps else "none"


def plan(service: ServiceAdvertise, services: Iterable[ServiceAdvertise] = ()) -> AuthorizationPlan:
    """The requirements of a service, given the services that are live in the directory."""
    wanted = (service.required_caps, written_streams(service))
    match auth_mode(service):
        case "none":
            return AuthorizationPlan(CapabilityRoute.NONE, *wanted)
        case "cap_token":
            named = _issuer_named(service)
            issuer = next((one for one in services if one.service_id == named and ISSUE_METHOD in one.methods), None)
            if issuer is not None and issuer.stream_ids:
                return AuthorizationPlan(CapabilityRoute.SERVICE, *wanted, issuer, service.operator)
            return AuthorizationPlan(CapabilityRoute.OPERATOR, *wanted, None, service.operator)
    return AuthorizationPlan(CapabilityRoute.OUTSIDE, *wanted, None, service.operator)


def issuance(
    wanted: AuthorizationPlan,
    subject_pk: bytes,
    *,
    hub_id: bytes | None = None,
    ttl: int | None = None,
    timeout_ms: int | None = None,
) -> CallRequest:
    """The call that requests a token from an admin service, presented for a hub if one is given."""
    args: dict[str, cbor.Value] = {
        "caps": wanted.required_caps,
        "stream_ids": tuple(sorted(set(wanted.stream_ids))),
        "subject_pk": subject_pk,
    }
    args |= {} if hub_id is None else {"hub_id": hub_id}
    args |= {} if ttl is None else {"ttl": ttl}
    return CallRequest(ISSUE_METHOD, cbor.encode(args), timeout_ms)


def issued(answered: Reply, wanted: AuthorizationPlan, subject_pk: bytes) -> Capability:
    """The token or presentation of an issuance reply. Raises if there is none or it does not meet the plan."""
    if answered.error is not None:
        raise Unverified("issuance", f"the issuing service refused: {answered.error.code}")
    found = cbor.decode(answered.result or b"", "issuance")
    if not isinstance(found, bytes):
        raise Unverified("issuance", "the result is not a capability token")
    capability = decode_capability(found)
    check_capability(capability, wanted, subject_pk)
    return capability


def check_capability(capability: Capability, wanted: AuthorizationPlan, subject_pk: bytes) -> None:
    """Raise unless a capability is validly signed, is for this client and allows the streams of the plan."""
    capability.verify()
    token = token_of(capability)
    if token.subject_pk != subject_pk:
        raise Unverified("cap_token", "the token is for another client")
    missing = set(wanted.stream_ids) - set(token.allow.stream_ids)
    if missing:
        raise Unverified("cap_token", f"the token does not allow stream {min(missing).hex()}")


def _issuer_named(service: ServiceAdvertise) -> bytes | None:
    details = service.auth_policy.details if service.auth_policy else None
    found = None if details is None else cbor.decode(details, "details")
    named = found.get(ISSUER_KEY) if isinstance(found, Mapping) else None  # type: ignore[call-overload]
    return named if isinstance(named, bytes) else None


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
        """The reasons why the connection has expired at `now`, in seconds of hub time."""
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


class NotBound(Exception):
    """The connection does not allow the call; the message says why."""


def binding(name: str, service: ServiceChosen) -> ServiceBound:
    """The event that binds a connection to its service."""
    if service.methods:
        return ServiceBound(name, service.stream_ids[:1], service.stream_ids[1:] or service.stream_ids[:1])
    return ServiceBound(name, service.stream_ids, ())


@dataclass(frozen=True, slots=True)
class CallRoute:
    """The destination of a call: hub, stream, capability, and the stream of the reply."""

    hub_id: bytes
    hub_pk: bytes
    url: str
    stream_id: bytes
    reply_stream: bytes
    auth_ref: bytes | None


def call_route(connection: ServiceConnection, now: int) -> CallRoute:
    """The route of a call at a time. Raises `NotBound` if the client must not send."""
    hub, bound = connection.hub, connection.bound
    if hub is None or bound is None or connection.service is None:
        raise NotBound(f"the connection is in phase {connection.phase}, not bound")
    if not connection.usable(now):
        raise NotBound("; ".join(connection.lapsed(now)))
    if not bound.reply_streams:
        raise NotBound("the service has no methods to call")
    auth_ref = connection.authorized.auth_ref if connection.authorized else None
    return CallRoute(
        hub.hub_id, hub.hub_pk, hub.endpoint.url, bound.request_streams[0], bound.reply_streams[0], auth_ref
    )


def call(
    connection: ServiceConnection,
    method: str,
    args: bytes,
    now: int,
    *,
    timeout_ms: int | None = None,
    idem: int | None = None,
) -> CallRequest:
    """The request of a call. The service must have the method; `args` is one CBOR value."""
    route = call_route(connection, now)
    if connection.service is None or method not in connection.service.methods:
        raise NotBound(f"the service has no method {method}")
    reply_to = None if route.reply_stream == route.stream_id else route.reply_stream
    return CallRequest(method, args, timeout_ms, reply_to, idem)


# A descriptor with one of these tags is proposed only if the client requests the tag.
GUARDED_TAGS = frozenset({"beta", "experimental", "internal", "private", "test"})


@dataclass(frozen=True, slots=True)
class FoundService(Generic[D]):
    """A descriptor, and the last second in which it is valid."""

    descriptor: D
    expires_at: int


def found_in(directory: Iterable[Advertised], kind: type[D]) -> tuple[FoundService[D], ...]:
    """The descriptors of a locally folded directory."""
    listed = ((known.descriptor, known.expires_at) for known in directory)
    return tuple(FoundService(one, expires_at) for one, expires_at in listed if isinstance(one, kind))


@dataclass(frozen=True, slots=True)
class Excluded:
    """A descriptor that is not proposed, and the reason."""

    id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Choice(Generic[D]):
    """The candidates, best first, and the excluded descriptors."""

    candidates: tuple[FoundService[D], ...]
    left_out: tuple[Excluded, ...]


@dataclass(frozen=True, slots=True)
class HubCriteria:
    """A client's criteria for a hub. `overlays` and `region` are preferences, all others are requirements."""

    profiles: frozenset[bytes]
    region: str | None = None
    tags_any: tuple[str, ...] = ()
    overlays: tuple[bytes, ...] = ()
    hub_pk: bytes | None = None
    max_latency_ms: int | None = None


def choose_hubs(
    found: Iterable[FoundService[HubAdvertise]], wish: HubCriteria, latency_ms: Mapping[bytes, int] | None = None
) -> Choice[HubAdvertise]:
    """Steps 2 to 4 of §7.1: order by region, then by supported overlays, then by measured round trip."""
    measured = latency_ms or {}

    def against(hub: HubAdvertise) -> str | None:
        if hub.profile_id not in wish.profiles:
            return "this client does not support its profile"
        if wish.hub_pk is not None and hub.hub_pk != wish.hub_pk:
            return "its key is not the pinned key"
        if not hub.endpoints:
            return "it lists no endpoint"
        took, most = measured.get(hub.hub_id), wish.max_latency_ms
        if most is not None and (took is None or took > most):
            return f"its round trip takes more than {most} ms" if took is not None else "it did not answer"
        return _tags_against(hub.tags, wish.tags_any)

    def rank(hub: HubAdvertise) -> tuple[bool, int, bool, int]:
        lacks = len(set(wish.overlays) - set(hub.overlays))
        took = measured.get(hub.hub_id)
        return wish.region not in (None, hub.region), lacks, took is None, took or 0

    return _choose(found, against, rank)


def choose_overlays(
    found: Iterable[FoundService[OverlayAdvertise]],
    implemented: Mapping[str, frozenset[bytes]],
    name: str | None = None,
    tags_any: tuple[str, ...] = (),
) -> Choice[OverlayAdvertise]:
    """Step 2 of §7.2: overlays with exactly the schemas that this client's overlay of the same name reads.

    An additional schema may be an event that changes the meaning of all others, so it is as wrong as a missing one.
    """

    def against(one: OverlayAdvertise) -> str | None:
        if name is not None and one.name != name:
            return f"its name is {one.name}, not {name}"
        expected = implemented.get(one.name)
        if expected is None:
            return f"this client has no overlay {one.name}"
        if expected - set(one.schemas):
            return f"it lacks {len(expected - set(one.schemas))} of the schemas that this client expects"
        if set(one.schemas) - expected:
            return f"it has {len(set(one.schemas) - expected)} schemas that this client does not know"
        return _tags_against(one.tags, tags_any)

    return _choose(found, against, lambda one: (one.name,))


@dataclass(frozen=True, slots=True)
class ServiceCriteria:
    """A client's criteria for a service. `region` is a preference, all others are requirements."""

    overlay_ids: frozenset[bytes]
    method: str | None = None
    name_prefix: str | None = None
    region: str | None = None
    tags_any: tuple[str, ...] = ()


def choose_services(found: Iterable[FoundService[ServiceAdvertise]], wish: ServiceCriteria) -> Choice[ServiceAdvertise]:
    """Step 4 of §7.2: order by region, then by name."""

    def against(one: ServiceAdvertise) -> str | None:
        if one.overlay_id not in wish.overlay_ids:
            return "its overlay was not verified"
        if wish.method is not None and wish.method not in one.methods:
            return f"it has no method {wish.method}"
        if not one.name.startswith(wish.name_prefix or ""):
            return f"its name does not start with {wish.name_prefix}"
        if not one.stream_ids:
            return "it lists no stream"
        return _tags_against(one.tags, wish.tags_any)

    return _choose(found, against, lambda one: (wish.region is not None and wish.region not in one.regions, one.name))


def _tags_against(tags: tuple[str, ...], wanted: tuple[str, ...]) -> str | None:
    if wanted and set(wanted).isdisjoint(tags):
        return f"it has none of the tags {', '.join(wanted)}"
    guarded = sorted(GUARDED_TAGS.intersection(tags).difference(wanted))
    return f"it is tagged {guarded[0]}, which was not requested" if guarded else None


def _choose(
    found: Iterable[FoundService[D]], against: Callable[[D], str | None], rank: Callable[[D], tuple[object, ...]]
) -> Choice[D]:
    listed = sorted(found, key=lambda one: one.descriptor.id)
    judged = [(one, against(one.descriptor)) for one in listed]
    fit = [one for one, reason in judged if reason is None]
    left_out = tuple(Excluded(one.descriptor.id, reason) for one, reason in judged if reason is not None)
    return Choice(tuple(sorted(fit, key=lambda one: rank(one.descriptor))), left_out)
