"""`veen connect`: the four phases of connecting to a service, and the status of each connection."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import group
from veen.cli.discovery import authorization, connect_phases
from veen.cli.discovery.directory_view import (
    DirectoryOptions,
    Publishers,
    Region,
    Tags,
    sendable,
    show_directory,
    stream_of,
)
from veen.cli.discovery.remote_query import Timeout
from veen.cli.kit import faults_command, output, read_state, render_state, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import SendOptions, options_command, send_command
from veen.core import Unavailable
from veen.overlays import Event, FoldStep
from veen.overlays.connect import CONNECT, ConnectionEnded, ServiceConnection, binding
from veen.overlays.connect_selection import ServiceCriteria
from veen.state.state_view import StateAt

Connections: TypeAlias = StateAt[ServiceConnection, tuple[FoldStep, ...]]


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

NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="your name for this connection")]
OverlayName: TypeAlias = Annotated[
    str | None, typer.Option("--overlay", metavar="NAME", help="services of this overlay, such as rpc or kv")
]
MethodOption: TypeAlias = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="services with this method")
]
TrustOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--trust", metavar="HEX|PATH", help="the hub to trust: its id, a key fingerprint, or its identity file"
    ),
]
DirectoryStream: TypeAlias = Annotated[
    str | None,
    typer.Option("--directory", metavar="NAME", help="the directory's stream", show_default="the well-known one"),
]
OverlayIds: TypeAlias = Annotated[
    list[str] | None, typer.Option("--overlay-id", metavar="HEX", help="prefer hubs with this overlay")
]
Profiles: TypeAlias = Annotated[
    list[str] | None, typer.Option("--profile", metavar="HEX", help="also accept hubs with this profile_id")
]
Chosen: TypeAlias = Annotated[
    str | None, typer.Option("--id", metavar="HEX", help="choose this one", show_default="the first proposed")
]


@options_command(
    DirectoryOptions, app, "hubs", "veen connect hubs --region ap-northeast-1", "veen connect hubs --tag test --json"
)
def hubs(
    options: DirectoryOptions,
    region: Region = None,
    tag: Tags = None,
    overlay: OverlayIds = None,
    profile: Profiles = None,
    trust: TrustOption = None,
) -> None:
    """Propose hubs, the best first, and list the excluded ones with the reasons."""

    wish = connect_phases.hub_wish(region, tag, overlay, profile)
    connect_phases.look_at_hubs(options, wish, connect_phases.pin_of(trust))


@options_command(
    DirectoryOptions,
    app,
    "services",
    "veen connect services --method charge",
    "veen connect services --overlay rpc --json",
)
def services(
    options: DirectoryOptions,
    overlay: OverlayName = None,
    method: MethodOption = None,
    region: Region = None,
    tag: Tags = None,
) -> None:
    """Propose services whose overlay has the schemas that this client expects.

    Overlays and services are read from --stream, if given, else from the two well-known streams.
    """

    connect_phases.look_at_services(options, _service_wish(method, region, tag), overlay)


def _service_wish(method: str | None, region: str | None, tag: list[str] | None) -> ServiceCriteria:
    return ServiceCriteria(frozenset(), method, None, region, tuple(tag or ()))


@send_command(
    app,
    "hub",
    "veen connect hub work --region ap-northeast-1 --trust 4f…a1",
    "veen connect hub work --id 4f…a1 --trust hub-identity.json",
)
def hub(
    options: SendOptions,
    name: NameArgument,
    chosen: Chosen = None,
    region: Region = None,
    tag: Tags = None,
    overlay: OverlayIds = None,
    profile: Profiles = None,
    trust: TrustOption = None,
    latency: Annotated[
        int | None,
        typer.Option("--max-latency", metavar="MS", min=1, help="probe each hub, and exclude those that take longer"),
    ] = None,
    directory: DirectoryStream = None,
    publisher: Publishers = None,
) -> None:
    """Phase 1: choose a hub for a connection.

    A directory is not proof. A hub is trusted if this client has a record of it, or if --trust names it. No capability
    and no message is sent to a hub that is not trusted.
    """

    wish = connect_phases.hub_wish(region, tag, overlay, profile, latency)
    connect_phases.choose_hub(options, name, wish, chosen, trust, directory or stream_of("hub"), publisher)


@send_command(
    app,
    "service",
    "veen connect service work --method charge",
    "veen connect service work --overlay kv --id 4f…a1",
)
def service(
    options: SendOptions,
    name: NameArgument,
    chosen: Chosen = None,
    overlay: OverlayName = None,
    method: MethodOption = None,
    region: Region = None,
    tag: Tags = None,
    directory: DirectoryStream = None,
    publisher: Publishers = None,
) -> None:
    """Phase 2: choose a service.

    Its overlay must have exactly the schemas that this client expects.
    """

    wish = _service_wish(method, region, tag)
    connect_phases.choose_service(options, name, wish, overlay, chosen, directory, publisher)


@send_command(
    app,
    "cap",
    "veen connect cap work",
    "veen connect cap work --token work.cap",
    "veen connect cap work --ask --ttl 86400",
)
def cap(
    options: SendOptions,
    name: NameArgument,
    token: Annotated[
        str | None, typer.Option("--token", metavar="FILE", help="an issued capability to present to the hub")
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="request one from the issuing service in the directory")] = False,
    ttl: Annotated[int | None, durations.whole_option("--ttl", least=1, help="with --ask: its time to live")] = None,
    wait: Annotated[
        int | None, durations.whole_option("--wait", least=1, help="the longest time to wait for a capability")
    ] = None,
    timeout: Timeout = 30,
    directory: DirectoryStream = None,
) -> None:
    """Phase 3: get a capability for the service.

    Without --token, shows the required capability and its issuer. With --token, checks the capability, presents it to
    the chosen hub, and records the hub's answer. Repeat with another capability to renew it.
    """

    authorization.get(
        options, name, authorization.CapOptions(token, ask, ttl, wait, timeout, directory or stream_of("service"))
    )


@send_command(app, "bind", "veen connect bind work", "veen connect bind work --stream my.connections")
def bind(options: SendOptions, name: NameArgument) -> None:
    """Phase 4: fix the streams on which the service is used."""

    def make(reading: Connections) -> Event:
        chosen = reading.state(name.encode()).service
        if chosen is None:
            hint = f"veen connect service {name} chooses one"
            raise hinted(Unavailable(f"connection {name!r} has no service"), hint)
        return sendable(binding(name, chosen))

    send_event.send_checked(options, CONNECT, make, {"connection": name}, stream=STREAM)


@send_command(app, "end", "veen connect end work", "veen connect end work --reason moved")
def end(
    options: SendOptions,
    name: NameArgument,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="the reason")] = None,
) -> None:
    """End a connection."""

    made = sendable(ConnectionEnded(name, reason))
    send_event.send_checked(options, CONNECT, lambda reading: made, {"connection": name}, stream=STREAM, blind=made)


@send_command(
    app, "call", "veen connect call work charge '{\"amount\": 5}'", "veen connect call work refund 7 --timeout 5"
)
def call(
    options: SendOptions,
    name: NameArgument,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="one of the service's methods")],
    args: Annotated[str, typer.Argument(metavar="JSON", help="its arguments")] = "null",
    timeout: Timeout = 30,
) -> None:
    """Call the service of a bound connection and show its answer."""

    authorization.call(options, name, method, args, timeout)


@options_command(DirectoryOptions, app, "status", "veen connect status", "veen connect status work --at 3 --prove")
def status(
    options: DirectoryOptions,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="the connection", show_default="all of them")
    ] = None,
) -> None:
    """Show the phase of connections, and what has lapsed since."""

    show_directory(options, CONNECT, lambda reading, now: _status(reading, now, name), stream=STREAM)


def _status(reading: Connections, now: int, name: str | None) -> StateAnswer:
    states = dict(reading.states)
    if name is not None and name.encode() not in states:
        raise hinted(Unavailable(f"there is no connection {name!r}"), f"veen connect hub {name} starts one")
    rows: list[tuple[output.Value, ...]] = []
    data = []
    parts = sorted(states) if name is None else [name.encode()]
    for part in parts:
        one = states[part]
        lapsed = list(one.lapsed(now))
        hub_id = None if one.hub is None else short(one.hub.hub_id)
        service_id = None if one.service is None else short(one.service.service_id)
        rows.append((printable(part.decode()), str(one.phase), hub_id, service_id, "; ".join(lapsed) or None))
        plain = render_state.plain_json(CONNECT.plain(part, one))
        assert isinstance(plain, dict)
        data.append({**plain, "lapsed": lapsed, "usable": one.usable(now)})
    columns = ("connection", "phase", "hub", "service", "lapsed")
    return read_state.StateAnswer(
        columns=columns, rows=rows, data={"connections": data, "now": now}, parts=tuple(parts)
    )


faults_command.add(app, "veen connect", CONNECT, STREAM)
