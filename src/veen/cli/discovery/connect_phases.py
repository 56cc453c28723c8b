"""Phases 1 to 3 of `veen connect`: choose a hub and a service from a directory, and get a capability."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn
from urllib.parse import urlsplit

from plumbing.cli.command import Misuse
from veen.cli.discovery.directory_view import answer_time, stream_of
from veen.cli.discovery.remote_query import call_over_stream
from veen.cli.kit import key_files, open_session, pinning
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, Result, listed
from veen.cli.kit.state_session import Answer, SendSession
from veen.client import cbor_sequence
from veen.client.capabilities import at_hub
from veen.client.client import Client
from veen.client.trust import HubRecord, Pin
from veen.core import Profile, Refused, Unavailable, Unverified, cbor, hashing
from veen.core.cap_token import Capability, token_of
from veen.overlays import connect, registry
from veen.overlays.connect import (
    AuthorizationPlan,
    Authorized,
    CapabilityRoute,
    Choice,
    Excluded,
    FoundService,
    HubChosen,
    HubCriteria,
    Planned,
    ServiceChosen,
    ServiceConnection,
    ServiceCriteria,
    auth_mode,
    choose_hubs,
    choose_overlays,
    choose_services,
    found_in,
)
from veen.overlays.discovery import (
    DISCOVERY,
    DescriptorKind,
    DirectoryRecord,
    Discovery,
    HubAdvertise,
    OverlayAdvertise,
    ServiceAdvertise,
    live_advertisements,
    part_of,
)
from veen.overlays.event import plain_wire

Directory = Mapping[bytes, DirectoryRecord]
_PROBE_TIMEOUT_S = 3.0
_DEFAULT_PORT = {"http": 80, "https": 443}


def hub_wish(
    region: str | None,
    tags: Sequence[str] | None,
    overlays: Sequence[bytes] | None,
    profiles: Sequence[bytes] | None,
    max_latency_ms: int | None = None,
) -> HubCriteria:
    """The criteria for a hub. Profiles are compared by id, so any but the default must be named."""
    accepted = frozenset({Profile().profile_id(), *(profiles or ())})
    return HubCriteria(accepted, region, tuple(tags or ()), tuple(overlays or ()), None, max_latency_ms)


def hubs_in(
    states: Directory,
    wish: HubCriteria,
    now: int,
    pin: Pin | None = None,
    latency_ms: Mapping[bytes, int] | None = None,
) -> Choice[HubAdvertise]:
    """Return the hubs of a directory that meet the criteria; with a pin, only the pinned one."""
    choice = choose_hubs(found_in(live_advertisements(states, DescriptorKind.HUB, now), HubAdvertise), wish, latency_ms)
    if pin is None:
        return choice
    pinned = tuple(one for one in choice.candidates if is_pinned(one.descriptor, pin))
    others = (one.descriptor.hub_id for one in choice.candidates if one not in pinned)
    return Choice(
        pinned, (*choice.left_out, *(Excluded(one, "it is not the hub that --trust names") for one in others))
    )


def is_pinned(hub: HubAdvertise, pin: Pin) -> bool:
    """Return whether a descriptor names the pinned hub. `need_hub_key` verifies the key at contact."""
    if pin.record is not None:
        keys = {key.hub_pk for key in pin.record.signing_keys}
        return pin.record.hub_id == hub.hub_id and hub.hub_pk in keys
    return pin.key in (hub.hub_id, hashing.h(hub.hub_pk))


def pin_of(text: str) -> Pin:
    """Parse --trust."""
    found = pinning.parse(text)
    if found.certificate is not None:
        raise Misuse("--trust does not accept a certificate", "give the hub's id, or its identity file")
    return found


def is_known(client: Client, hub: HubAdvertise) -> bool:
    """Return whether this client has a record of the hub with the key that the directory names."""
    stored = client.dir.state.hub(hub.hub_id)
    return stored is not None and any(
        key.hub_pk == hub.hub_pk for key in HubRecord.decode(stored).identity.signing_keys
    )


def services_in(
    states: Directory, overlays: Directory, wish: ServiceCriteria, overlay: str | None, now: int
) -> Choice[ServiceAdvertise]:
    """Return the services that meet the criteria and whose overlay has the schemas that this client expects."""
    implemented = {one.CLASS: frozenset(one.schemas) for one in registry()}
    listed = found_in(live_advertisements(overlays, DescriptorKind.OVERLAY, now), OverlayAdvertise)
    verified = choose_overlays(listed, implemented, overlay, wish.tags_any)
    ids = frozenset(one.descriptor.overlay_id for one in verified.candidates)
    services = found_in(live_advertisements(states, DescriptorKind.SERVICE, now), ServiceAdvertise)
    return choose_services(services, replace(wish, overlay_ids=ids))


def proposed(choice: Choice[Any], now: int) -> Answer:
    """The proposed and the excluded candidates as an answer."""
    rows: list[dict[str, Any]] = []
    for one in choice.candidates:
        name = one.descriptor.region if isinstance(one.descriptor, HubAdvertise) else one.descriptor.name
        rows.append({"id": one.descriptor.id, "name": name, "why": "proposed", "ends": Moment(one.expires_at)})
    left_out = [{"id": one.id, "reason": one.reason} for one in choice.left_out]
    rows += [{"id": one.id, "name": None, "why": one.reason, "ends": None} for one in choice.left_out]
    candidates = [{"expires_at": one.expires_at, "descriptor": plain_wire(one.descriptor)} for one in choice.candidates]
    return Answer(
        {"candidates": candidates, "left_out": left_out, "now": now, "_rows": rows},
        rows="_rows",
        columns=("id", ("name or region", "name"), ("proposed", "why"), ("expires_at", "ends")),
        parts=tuple(part_of(one.descriptor.KIND, one.descriptor.id) for one in choice.candidates),
    )


async def choose_hub(
    session: SendSession,
    name: str,
    wish: HubCriteria,
    id_: bytes | None,
    pin: Pin | None,
    directory: str,
    folded: Discovery,
) -> HubChosen:
    """Phase 1."""
    client = await session.client()
    states, now = await current_directory(session, folded, directory)
    own = replace(wish, profiles=wish.profiles | {client.session.trust.profile.profile_id()})
    latencies = await _latencies(states, now) if wish.max_latency_ms is not None else None
    found = _pick(hubs_in(states, own, now, pin, latencies), id_, "hub")
    hub = found.descriptor
    trusted = pin is not None or is_known(client, hub)
    return HubChosen(name, hub.hub_id, hub.hub_pk, hub.profile_id, hub.endpoints[0], trusted, found.expires_at)


async def choose_service(
    session: SendSession,
    name: str,
    wish: ServiceCriteria,
    overlay: str | None,
    id_: bytes | None,
    directory: str | None,
    folded: Discovery,
) -> ServiceChosen:
    """Phase 2. Overlays are looked up on the same directory if one is named."""
    states, now = await current_directory(session, folded, directory or stream_of("service"))
    known = states if directory else (await current_directory(session, folded, stream_of("overlay")))[0]
    found = _pick(services_in(states, known, wish, overlay, now), id_, "service")
    one = found.descriptor
    fixed = (one.service_id, one.overlay_id, one.methods, one.stream_ids, one.required_caps)
    return ServiceChosen(name, *fixed, auth_mode(one), found.expires_at)


async def current_directory(
    session: SendSession, folded: Discovery, stream: str
) -> tuple[dict[bytes, DirectoryRecord], int]:
    """The current state of a directory, and the hub's time."""
    state = await session.open_other(folded, stream)
    return dict(state.live()), await answer_time(session.view_of(state), state, False)


def _pick(choice: Choice[Any], id_: bytes | None, kind: str) -> FoundService[Any]:
    """Return the candidate with this id, or the first."""
    for one in choice.candidates:
        if id_ in (None, one.descriptor.id):
            return one
    reasons = [f"{one.id.hex()[:16]}…: {one.reason}" for one in choice.left_out if id_ in (None, one.id)]
    hint = f"veen connect {kind}s lists all {kind}s, with the reasons why some are excluded"
    raise hinted(Unavailable(f"no {kind} in the directory meets the criteria"), *reasons[:3], hint)


async def _latencies(states: Directory, now: int) -> dict[bytes, int]:
    """Measure how long each hub takes to accept a connection, in milliseconds. Hubs that do not answer are omitted."""
    hubs = [
        one for one in live_advertisements(states, DescriptorKind.HUB, now) if isinstance(one.descriptor, HubAdvertise)
    ]
    measured = await asyncio.gather(
        *(_latency(one.descriptor) for one in hubs if isinstance(one.descriptor, HubAdvertise))
    )
    return {one.descriptor.id: ms for one, ms in zip(hubs, measured, strict=True) if ms is not None}


async def _latency(hub: HubAdvertise) -> int | None:
    for endpoint in hub.endpoints[:1]:
        with suppress(OSError, TimeoutError, ValueError):
            where = urlsplit(endpoint.url)
            port = where.port or _DEFAULT_PORT.get(where.scheme)
            start = monotonic()
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(where.hostname, port)
            elapsed = monotonic() - start
            writer.close()
            return int(elapsed * 1000) + 1
    return None


def need_hub_key(client: Client, chosen: HubChosen) -> None:
    """Raise `Unverified` unless the hub that answers has the key that the directory named."""
    keys = {key.hub_pk for key in client.session.trust.known.identity.signing_keys}
    if client.hub_id != chosen.hub_id or chosen.hub_pk not in keys:
        raise hinted(
            Unverified("hub", "it does not have the key that the directory names"),
            "veen connect hub chooses a hub again, from the current directory",
        )


async def plan_of(
    session: SendSession, state: ServiceConnection, name: str, directory: str
) -> tuple[AuthorizationPlan, int]:
    """The authorization that the service requires, from the current directory, and the hub's time."""
    chosen = state.service
    if chosen is None:
        raise hinted(Unavailable(f"connection {name!r} has no service"), f"veen connect service {name} chooses one")
    live, now = await current_directory(session, DISCOVERY, directory)
    found = [one.descriptor for one in live_advertisements(live, DescriptorKind.SERVICE, now)]
    services = [one for one in found if isinstance(one, ServiceAdvertise)]
    own = next((one for one in services if one.service_id == chosen.service_id), None)
    if own is None:
        raise hinted(Unavailable("the service is no longer advertised"), f"veen connect service {name} chooses another")
    return connect.plan(own, services), now


def is_recorded(state: ServiceConnection, plan: AuthorizationPlan) -> bool:
    """Whether the connection has this plan. It is not sent again then, because that would reset later phases."""
    issuer = plan.issuer.service_id if plan.issuer else None
    return state.plan is not None and (state.plan.route, state.plan.issuer_service) == (str(plan.route), issuer)


def shown_plan(planned: Planned, plan: AuthorizationPlan, name: str) -> Result:
    operator = plan.operator
    next_step = {
        CapabilityRoute.NONE: f"veen connect bind {name}",
        CapabilityRoute.SERVICE: f"veen connect cap {name} --ask",
        CapabilityRoute.OPERATOR: f"veen connect cap {name} --token FILE, with a capability from the operator",
        CapabilityRoute.OUTSIDE: f"veen connect bind {name}, once the operator has authorized you by other means",
    }[plan.route]
    data = {
        "connection": name,
        "route": str(plan.route),
        "required_caps": plan.required_caps,
        "stream_ids": plan.stream_ids,
        "issuer_service": planned.issuer_service,
        "operator": None if operator is None else {"org": operator.org, "contact": operator.contact},
        "wait_until": Moment.of(planned.wait_until),
        "next": next_step,
    }
    return Result(
        data,
        facts=(
            "connection",
            "route",
            ("capabilities", listed("required_caps")),
            ("issuer", "issuer_service"),
            ("operator", lambda _: operator and operator.org),
            ("contact", lambda _: operator and operator.contact),
            ("wait until", "wait_until"),
            "next",
        ),
    )


@asynccontextmanager
async def chosen_hub(session: SendSession, hub: HubChosen) -> AsyncIterator[Client]:
    """A client of the chosen hub, pinned to the hub id that was trusted."""
    await session.disconnect()
    options = session.options
    call = open_session.HubCall(hub.endpoint.url, options.client, options.passphrase_file, hub.hub_id.hex())
    async with call.connected(session.folder, call.url()) as client:
        need_hub_key(client, hub)
        yield client


async def authorize(
    session: SendSession,
    hub: HubChosen | None,
    name: str,
    plan: AuthorizationPlan,
    token_file: Path | None,
    ttl: int | None,
    timeout_s: float,
) -> Authorized:
    """Present a capability to the chosen hub: the one of the file, or one that the issuing service gives."""
    if hub is None or not hub.trusted:  # a hub that is not trusted must not see the capability
        raise hinted(
            Refused("E.STATE", "the hub's key is not trusted"),
            f"veen connect hub {name} --trust HEX|PATH chooses a hub and trusts it",
        )
    async with chosen_hub(session, hub) as client:
        own = client.dir.writers.current().client_id
        if token_file is None:
            given = await _request_cap(client, plan, own, ttl, timeout_s)
        else:
            given = key_files.read_capabilities(token_file)
        here = at_hub(given, client.hub_id)
        chosen = next((one for one in here if token_of(one).subject_pk == own), here[0])
        connect.check_capability(chosen, plan, own)
        answer = await client.authorize(chosen)
        client.dir.caps.add_all(cbor_sequence.encode(given))
        return Authorized(name, answer.auth_ref, answer.expires_at)


async def _request_cap(
    client: Client, plan: AuthorizationPlan, own: bytes, ttl: int | None, timeout_s: float
) -> tuple[Capability, ...]:
    """Request a capability from the issuing service, on the chosen hub."""
    if plan.issuer is None:
        raise hinted(
            Unavailable("the directory names no issuing service"),
            "ask the operator for a capability, then give --token",
        )
    request = connect.issuance(plan, own, hub_id=client.hub_id, ttl=ttl, timeout_ms=int(timeout_s * 1000))
    reply, _ = await call_over_stream(client, plan.issuer.stream_ids[0], request, timeout_s)
    return (connect.issued(reply, plan, own),)


def json_argument(text: str) -> cbor.Value:
    """Parse the arguments of a call from JSON. CBOR on the wire has no fractions."""
    try:
        found: cbor.Value = json.loads(text, parse_float=_no_fraction, parse_constant=_no_fraction)
        cbor.encode(found)
    except ValueError as error:
        raise Misuse(f"the arguments cannot be sent: {error}", "give JSON: text, whole numbers, lists, maps") from None
    return found


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a whole number")
