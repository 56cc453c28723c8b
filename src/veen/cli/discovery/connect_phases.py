"""Phases 1 and 2 of `veen connect`: choose a hub and a service from a directory, and record the choice."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from plumbing.cli.command import Misuse
from veen.cli.discovery.connection_stream import ConnectionSession, open_connections
from veen.cli.discovery.directory_view import DirectoryOptions, answer_time, overlay_of, show_directory, stream_of
from veen.cli.kit import output, output_files, pinning, read_state, render_state, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import SendOptions
from veen.client.client import Client
from veen.client.trust import HubRecord, Pin
from veen.core import Profile, Unavailable, Unverified, hashing
from veen.overlays import registry
from veen.overlays.connect import HubChosen, ServiceChosen, auth_mode
from veen.overlays.connect_selection import (
    Choice,
    Excluded,
    FoundService,
    HubCriteria,
    ServiceCriteria,
    choose_hubs,
    choose_overlays,
    choose_services,
    found_in,
)
from veen.overlays.discovery import (
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
from veen.state.entry_source import EntrySource
from veen.state.state_view import StateAt, StateView

Directory = Mapping[bytes, DirectoryRecord]
_PROBE_TIMEOUT_S = 3.0
_DEFAULT_PORT = {"http": 80, "https": 443}


def hub_wish(
    region: str | None,
    tags: Sequence[str] | None,
    overlays: Sequence[str] | None,
    profiles: Sequence[str] | None,
    max_latency_ms: int | None = None,
) -> HubCriteria:
    """Return the criteria for a hub. Profiles are compared by id, so any but the default must be named."""
    wanted = tuple(values.id_of(one, "the id of an overlay") for one in overlays or ())
    named = {values.id_of(one, "the id of a profile") for one in profiles or ()}
    return HubCriteria(
        frozenset({Profile().profile_id(), *named}), region, tuple(tags or ()), wanted, None, max_latency_ms
    )


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
        keys = {key.hub_pk for key in pin.record.hub_keys}
        return pin.record.hub_id == hub.hub_id and hub.hub_pk in keys
    return pin.key in (hub.hub_id, hashing.h(hub.hub_pk))


def pin_of(text: str | None) -> Pin | None:
    """Parse --trust."""
    found = None if text is None else pinning.parse(text)
    if found is not None and found.certificate is not None:
        raise Misuse("--trust does not accept a certificate", "give the hub's id, or its identity file")
    return found


def is_known(client: Client, hub: HubAdvertise) -> bool:
    """Return whether this client has a record of the hub with the key that the directory names."""
    stored = client.dir.state.hub(hub.hub_id)
    return stored is not None and any(key.hub_pk == hub.hub_pk for key in HubRecord.decode(stored).identity.hub_keys)


def look_at_hubs(options: DirectoryOptions, wish: HubCriteria, pin: Pin | None) -> None:
    def look(reading: StateAt[DirectoryRecord, DirectoryRecord], now: int) -> read_state.StateAnswer:
        return proposed(hubs_in(dict(reading.states), wish, now, pin), now)

    show_directory(options, overlay_of(options.publishers), look, stream=stream_of("hub"))


def proposed(choice: Choice[Any], now: int) -> read_state.StateAnswer:
    """Return the proposed and the excluded candidates as an answer."""

    rows: list[tuple[output.Value, ...]] = []
    for one in choice.candidates:
        name = one.descriptor.region if isinstance(one.descriptor, HubAdvertise) else one.descriptor.name
        rows.append((short(one.descriptor.id), printable(name), "proposed", output.moment(one.expires_at)))
    rows += [(short(one.id), None, printable(one.reason), None) for one in choice.left_out]
    candidates = [
        {"expires_at": one.expires_at, "descriptor": render_state.plain_json(plain_wire(one.descriptor))}
        for one in choice.candidates
    ]
    left_out = [{"id": one.id, "reason": one.reason} for one in choice.left_out]
    parts = tuple(part_of(one.descriptor.KIND, one.descriptor.id) for one in choice.candidates)
    data = {"candidates": candidates, "left_out": left_out, "now": now}
    return read_state.StateAnswer(
        columns=("id", "name or region", "proposed", "expires_at"), rows=rows, data=data, parts=parts
    )


def choose_hub(
    options: SendOptions,
    name: str,
    wish: HubCriteria,
    chosen: str | None,
    trust: str | None,
    directory: str,
    publishers: Sequence[str] | None,
) -> None:
    """Phase 1. Creates the key of the client's own connection stream if there is none."""
    id_, pin = None if chosen is None else values.id_of(chosen, "the id of a hub"), pin_of(trust)

    async def work(client: Client, session: ConnectionSession) -> HubChosen:
        states, now = await _states(client, directory, overlay_of(publishers))
        own = replace(wish, profiles=wish.profiles | {client.session.trust.profile.profile_id()})
        latencies = await _latencies(states, now) if wish.max_latency_ms is not None else None
        found = _pick(hubs_in(states, own, now, pin, latencies), id_, "hub")
        hub = found.descriptor
        trusted = pin is not None or is_known(client, hub)
        return HubChosen(name, hub.hub_id, hub.hub_pk, hub.profile_id, hub.endpoints[0], trusted, found.expires_at)

    with open_connections(options, begins=True) as session:
        event, sent = session.send(work)
    assert isinstance(event, HubChosen)
    if not event.trusted:
        output.remark("the hub's key is not trusted: choose the hub again with --trust HEX|PATH to use it")
    session.show_sent(
        sent, {"connection": name, "hub_id": event.hub_id, "url": event.endpoint.url, "trusted": event.trusted}
    )


def look_at_services(options: DirectoryOptions, wish: ServiceCriteria, overlay: str | None) -> None:
    """Propose services. Their overlays are looked up on --stream, or on the well-known stream."""

    folded = overlay_of(options.publishers)
    if options.out is not None:
        output_files.check_new(options.out)

    async def work(
        view: StateView[DirectoryRecord, DirectoryRecord], stream: str
    ) -> tuple[read_state.StateAnswer, read_state.StateBasis]:
        async with view.reading(read_state.parse_place(options.at, view)) as reading:
            now = await answer_time(view, reading, options.at is not None, options.when)
            states = dict(reading.states)
            known = states if options.stream else await _overlays(view.source, folded, cached=not options.no_cache)
            found = proposed(services_in(states, known, wish, overlay, now), now)
            return found, await read_state.basis_of(options, view, reading, stream, found)

    found, basis = read_state.with_view(options, folded, work, stream=stream_of("service"))
    render_state.show_answer(found, basis, options)


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


def choose_service(
    options: SendOptions,
    name: str,
    wish: ServiceCriteria,
    overlay: str | None,
    chosen: str | None,
    directory: str | None,
    publishers: Sequence[str] | None,
) -> None:
    id_ = None if chosen is None else values.id_of(chosen, "the id of a service")

    async def work(client: Client, session: ConnectionSession) -> ServiceChosen:
        folded = overlay_of(publishers)
        states, now = await _states(client, directory or stream_of("service"), folded)
        known = states if directory else (await _states(client, stream_of("overlay"), folded))[0]
        found = _pick(services_in(states, known, wish, overlay, now), id_, "service")
        one = found.descriptor
        fixed = (one.service_id, one.overlay_id, one.methods, one.stream_ids, one.required_caps)
        return ServiceChosen(name, *fixed, auth_mode(one), found.expires_at)

    with open_connections(options) as session:
        event, sent = session.send(work)
    assert isinstance(event, ServiceChosen)
    session.show_sent(sent, {"connection": name, "service_id": event.service_id, "auth_mode": event.auth_mode})


def _pick(choice: Choice[Any], id_: bytes | None, kind: str) -> FoundService[Any]:
    """Return the candidate with this id, or the first."""
    for one in choice.candidates:
        if id_ in (None, one.descriptor.id):
            return one
    reasons = [f"{one.id.hex()[:16]}…: {one.reason}" for one in choice.left_out if id_ in (None, one.id)]
    hint = f"veen connect {kind}s lists all {kind}s, with the reasons why some are excluded"
    raise hinted(Unavailable(f"no {kind} in the directory meets the criteria"), *reasons[:3], hint)


async def _states(client: Client, stream: str, overlay: Discovery) -> tuple[dict[bytes, DirectoryRecord], int]:
    """Return the current state of a directory, and the hub's time."""
    read_state.need_reader_key(client.dir, stream)
    async with StateView.of(client, stream, overlay) as view, view.reading() as reading:
        return dict(reading.live()), await answer_time(view, reading, False)


async def _overlays(source: EntrySource, overlay: Discovery, *, cached: bool) -> dict[bytes, DirectoryRecord]:
    stream = stream_of("overlay")
    read_state.need_reader_key(source.folder, stream)
    async with StateView(source, stream, overlay, cached=cached) as view, view.reading() as reading:
        return dict(reading.live())


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
    keys = {key.hub_pk for key in client.session.trust.known.identity.hub_keys}
    if client.hub_id != chosen.hub_id or chosen.hub_pk not in keys:
        raise hinted(
            Unverified("hub", "it does not have the key that the directory names"),
            "veen connect hub chooses a hub again, from the current directory",
        )
