"""`veen connect`: the four phases of connecting to a service, and the status of each connection."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.discovery import connect_phases
from veen.cli.discovery.directory_view import (
    DirectorySession,
    Method,
    Publishers,
    Region,
    Tags,
    directory_command,
    open_directory,
    overlay_of,
    stream_of,
)
from veen.cli.discovery.remote_query import Timeout, call_over_stream
from veen.cli.kit import output
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, Result
from veen.cli.kit.state_session import (
    Answer,
    SendSession,
    SentResult,
    add_faults,
    need_reader_key,
    send_command,
    sendable,
)
from veen.cli.kit.values import id_parser
from veen.client.trust import Pin
from veen.core import Refused, Unavailable, cbor
from veen.overlays import connect
from veen.overlays.connect import (
    CONNECT,
    ConnectionEnded,
    NotBound,
    Planned,
    ServiceConnection,
    ServiceCriteria,
    binding,
)

STREAM = "connect"
app = group(
    "connect",
    """Connect to a service that a directory advertises, and call it.

    1  veen connect hub       choose a hub whose key is trusted
    2  veen connect service   choose a service on it
    3  veen connect cap       get a capability for it
    4  veen connect bind      fix the streams to use

    Each phase sends an event to a stream of your own, named connect by default. All your devices therefore share a
    connection, and its past states can be shown. veen connect call then calls the service.
    """,
)

NameArgument: TypeAlias = Annotated[str, argument("NAME", "your name for this connection")]
OverlayName: TypeAlias = Annotated[str | None, option("--overlay NAME", "services of this overlay, such as rpc or kv")]
Trust: TypeAlias = Annotated[
    Pin | None,
    option(
        "--trust HEX|PATH",
        "the hub to trust: its id, a key fingerprint, or its identity file",
        parser=connect_phases.pin_of,
    ),
]
DirectoryStream: TypeAlias = Annotated[
    str | None, option("--directory NAME", "the directory's stream", default="the well-known one")
]
OverlayIds: TypeAlias = Annotated[
    list[bytes] | None,
    option("--overlay-id HEX", "prefer hubs with this overlay", parser=id_parser("the id of an overlay")),
]
Profiles: TypeAlias = Annotated[
    list[bytes] | None,
    option("--profile HEX", "also accept hubs with this profile_id", parser=id_parser("the id of a profile")),
]


def _chosen(kind: str) -> Any:
    return option("--id HEX", "choose this one", default="the first proposed", parser=id_parser(f"the id of a {kind}"))


@directory_command(app, "hubs", "veen connect hubs --region ap-northeast-1", "veen connect hubs --tag test --json")
async def hubs(
    session: DirectorySession,
    region: Region = None,
    tag: Tags = None,
    overlay: OverlayIds = None,
    profile: Profiles = None,
    trust: Trust = None,
) -> Answer:
    """Propose hubs, the best first, and list the excluded ones with the reasons."""
    wish = connect_phases.hub_wish(region, tag, overlay, profile)
    state, now = await open_directory(session, overlay_of(session.options.publishers), stream_of("hub"))
    return connect_phases.proposed(connect_phases.hubs_in(dict(state.states), wish, now, trust), now)


@directory_command(
    app, "services", "veen connect services --method charge", "veen connect services --overlay rpc --json"
)
async def services(
    session: DirectorySession,
    overlay: OverlayName = None,
    method: Method = None,
    region: Region = None,
    tag: Tags = None,
) -> Answer:
    """Propose services whose overlay has the schemas that this client expects.

    Overlays and services are read from --stream, if given, else from the two well-known streams.
    """
    folded = overlay_of(session.options.publishers)
    known = None
    if session.options.stream is None:
        known = dict((await session.open_other(folded, stream_of("overlay"))).live())
    state, now = await open_directory(session, folded, stream_of("service"))
    states = dict(state.states)
    wish = _service_wish(method, region, tag)
    return connect_phases.proposed(
        connect_phases.services_in(states, states if known is None else known, wish, overlay, now), now
    )


def _service_wish(method: str | None, region: str | None, tag: list[str] | None) -> ServiceCriteria:
    return ServiceCriteria(frozenset(), method, None, region, tuple(tag or ()))


@send_command(
    app,
    "hub",
    "veen connect hub work --region ap-northeast-1 --trust 4f…a1",
    "veen connect hub work --id 4f…a1 --trust hub-identity.json",
)
async def hub(
    session: SendSession,
    name: NameArgument,
    chosen: Annotated[bytes | None, _chosen("hub")] = None,
    region: Region = None,
    tag: Tags = None,
    overlay: OverlayIds = None,
    profile: Profiles = None,
    trust: Trust = None,
    latency: Annotated[
        int | None, option("--max-latency MS", "probe each hub, and exclude those that take longer", min=1)
    ] = None,
    directory: DirectoryStream = None,
    publisher: Publishers = None,
) -> SentResult:
    """Phase 1: choose a hub for a connection.

    A directory is not proof. A hub is trusted if this client has a record of it, or if --trust names it. No capability
    and no message is sent to a hub that is not trusted.
    """
    _reject_blind(session)
    wish = connect_phases.hub_wish(region, tag, overlay, profile, latency)
    folded = overlay_of(publisher)
    event = await connect_phases.choose_hub(session, name, wish, chosen, trust, directory or stream_of("hub"), folded)
    session.create_key(session.stream(STREAM))
    shown = {"connection": name, "hub_id": event.hub_id, "url": event.endpoint.url, "trusted": event.trusted}
    sent = await session.send(CONNECT, event, shown, default=STREAM)
    if not event.trusted:
        output.remark("the hub's key is not trusted: choose the hub again with --trust HEX|PATH to use it")
    return sent


@send_command(
    app,
    "service",
    "veen connect service work --method charge",
    "veen connect service work --overlay kv --id 4f…a1",
)
async def service(
    session: SendSession,
    name: NameArgument,
    chosen: Annotated[bytes | None, _chosen("service")] = None,
    overlay: OverlayName = None,
    method: Method = None,
    region: Region = None,
    tag: Tags = None,
    directory: DirectoryStream = None,
    publisher: Publishers = None,
) -> SentResult:
    """Phase 2: choose a service.

    Its overlay must have exactly the schemas that this client expects.
    """
    _reject_blind(session)
    need_reader_key(session.folder, session.stream(STREAM))
    wish, folded = _service_wish(method, region, tag), overlay_of(publisher)
    event = await connect_phases.choose_service(session, name, wish, overlay, chosen, directory, folded)
    shown = {"connection": name, "service_id": event.service_id, "auth_mode": event.auth_mode}
    return await session.send(CONNECT, event, shown, default=STREAM)


@send_command(
    app,
    "cap",
    "veen connect cap work",
    "veen connect cap work --token work.cap",
    "veen connect cap work --ask --ttl 86400",
)
async def cap(
    session: SendSession,
    name: NameArgument,
    token: Annotated[Path | None, option("--token FILE", "an issued capability to present to the hub")] = None,
    ask: Annotated[bool, option("--ask", "request one from the issuing service in the directory")] = False,
    ttl: Annotated[int | None, durations.whole_option("--ttl", least=1, help="with --ask: its time to live")] = None,
    wait: Annotated[
        int | None, durations.whole_option("--wait", least=1, help="the longest time to wait for a capability")
    ] = None,
    timeout: Timeout = 30,
    directory: DirectoryStream = None,
) -> Result:
    """Phase 3: get a capability for the service.

    Without --token, shows the required capability and its issuer. With --token, checks the capability, presents it to
    the chosen hub, and records the hub's answer. Repeat with another capability to renew it.
    """
    if ask and token is not None:
        raise Misuse("--ask and --token contradict each other", "give one of them")
    state, _ = await _connection(session, name)
    plan, now = await connect_phases.plan_of(session, state, name, directory or stream_of("service"))
    planned = state.plan
    if planned is None or wait is not None or not connect_phases.is_recorded(state, plan):
        issuer = plan.issuer.service_id if plan.issuer else None
        planned = Planned(name, str(plan.route), issuer, None if wait is None else now + wait)
        await session.send(CONNECT, planned, {}, default=STREAM)
    if plan.route not in connect.WITH_TOKEN or not (ask or token):
        return connect_phases.shown_plan(planned, plan, name)
    event = await connect_phases.authorize(session, state.hub, name, plan, token, ttl, timeout)
    shown = {"connection": name, "auth_ref": event.auth_ref, "expires_at": Moment.of(event.expires_at)}
    return await session.send(CONNECT, event, shown, default=STREAM)


@send_command(app, "bind", "veen connect bind work", "veen connect bind work --stream my.connections")
async def bind(session: SendSession, name: NameArgument) -> SentResult:
    """Phase 4: fix the streams on which the service is used."""
    chosen = (await session.open(CONNECT, STREAM)).state(name.encode()).service
    if chosen is None:
        raise hinted(Unavailable(f"connection {name!r} has no service"), f"veen connect service {name} chooses one")
    return await session.send(CONNECT, binding(name, chosen), {"connection": name}, default=STREAM)


@send_command(app, "end", "veen connect end work", "veen connect end work --reason moved")
async def end(
    session: SendSession,
    name: NameArgument,
    reason: Annotated[str | None, option("--reason TEXT", "the reason")] = None,
) -> SentResult:
    """End a connection."""
    return await session.send(CONNECT, sendable(ConnectionEnded(name, reason)), {"connection": name}, default=STREAM)


@send_command(
    app, "call", "veen connect call work charge '{\"amount\": 5}'", "veen connect call work refund 7 --timeout 5"
)
async def call(
    session: SendSession,
    name: NameArgument,
    method: Annotated[str, argument("METHOD", "one of the service's methods")],
    args: Annotated[str, argument("JSON", "its arguments")] = "null",
    timeout: Timeout = 30,
) -> Result:
    """Call the service of a bound connection and show its answer."""
    value = cbor.encode(connect_phases.json_argument(args))
    state, now = await _connection(session, name)
    try:
        way = connect.call_route(state, now)
        request = connect.call(state, method, value, now, timeout_ms=int(timeout * 1000))
    except NotBound as error:
        raise hinted(Refused("E.STATE", str(error)), f"veen connect status {name} shows its phase") from None
    assert state.hub is not None
    async with connect_phases.chosen_hub(session, state.hub) as client:
        reply, at = await call_over_stream(client, way.stream_id, request, timeout)
    if reply.error is not None:
        raise hinted(
            Refused(reply.error.code, reply.error.detail or "the service rejected the call"),
            "this error comes from the service, not from the hub",
        )
    data = {"connection": name, "method": method, "result": cbor.decode(reply.result or b""), "hub_ts": at}
    return Result(data, facts=("result",))


@directory_command(app, "status", "veen connect status", "veen connect status work --at 3 --prove")
async def status(
    session: DirectorySession,
    name: Annotated[str | None, argument("NAME", "the connection", default="all of them")] = None,
) -> Answer:
    """Show the phase of connections, and what has lapsed since."""
    state, now = await open_directory(session, CONNECT, STREAM)
    states = dict(state.states)
    if name is not None and name.encode() not in states:
        raise hinted(Unavailable(f"there is no connection {name!r}"), f"veen connect hub {name} starts one")
    parts = sorted(states) if name is None else [name.encode()]
    return Answer(
        {"connections": [_status(part, states[part], now) for part in parts], "now": now},
        rows="connections",
        columns=(
            ("connection", "_name"),
            "phase",
            ("hub", "_hub"),
            ("service", "_service"),
            ("lapsed", lambda row: "; ".join(row["lapsed"]) or None),
        ),
        parts=tuple(parts),
    )


def _status(part: bytes, one: ServiceConnection, now: int) -> dict[str, Any]:
    return {
        **CONNECT.plain(part, one),
        "lapsed": list(one.lapsed(now)),
        "usable": one.usable(now),
        "_name": part.decode(),
        "_hub": None if one.hub is None else one.hub.hub_id,
        "_service": None if one.service is None else one.service.service_id,
    }


async def _connection(session: SendSession, name: str) -> tuple[ServiceConnection, int]:
    """The state of a connection, and the hub's time."""
    _reject_blind(session)
    state = await session.open_other(CONNECT, session.stream(STREAM))
    return state.state(name.encode()), (await session.source()).now()


def _reject_blind(session: SendSession) -> None:
    session.reject_blind("the connection before it sends")


add_faults(app, "veen connect", lambda session: session.open(CONNECT, STREAM))
