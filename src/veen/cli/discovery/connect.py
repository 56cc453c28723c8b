"""`veen connect`: the four phases from a directory to a service that can be called, and how far each connection is."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import group
from veen.cli.discovery.directory_view import Looks, Publishers, Region, Tags, look_at, sendable, stream_of
from veen.cli.discovery.remote_query import Timeout
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import SendOptions, options_command, send_command

if TYPE_CHECKING:
    from veen.cli.kit import output
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays import AnyOverlay, Event, FoldStep
    from veen.overlays.connect import ServiceConnection, ServiceCriteria
    from veen.state.state_at import StateAt

    Connections: TypeAlias = StateAt[ServiceConnection, tuple[FoldStep, ...]]

STREAM = "connect"
app = group(
    "connect",
    """Go from a directory to a service that can be called.

    1  veen connect hub       which hub, and whether its key is trusted
    2  veen connect service   which service there
    3  veen connect cap       leave to use it
    4  veen connect bind      on which streams

    Each phase is an event of a stream of your own, by default the one called connect: so a connection is the same on
    each of your devices, and can be looked at as it was. veen connect call then uses it.
    """,
)

NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="what you call this connection")]
OverlayName: TypeAlias = Annotated[
    str | None, typer.Option("--overlay", metavar="NAME", help="services of this overlay, such as rpc or kv")
]
MethodOption: TypeAlias = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="services with this method")
]
TrustOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--trust", metavar="HEX|PATH", help="the hub you mean: its id, a key's fingerprint, or its identity"),
]
DirectoryStream: TypeAlias = Annotated[
    str | None,
    typer.Option("--directory", metavar="NAME", help="the directory's stream", show_default="the well-known one"),
]
OverlayIds: TypeAlias = Annotated[
    list[str] | None, typer.Option("--overlay-id", metavar="HEX", help="prefer hubs with this overlay")
]
Profiles: TypeAlias = Annotated[
    list[str] | None, typer.Option("--profile", metavar="HEX", help="also take hubs with this profile_id")
]
Chosen: TypeAlias = Annotated[
    str | None, typer.Option("--id", metavar="HEX", help="this one", show_default="the first that is proposed")
]


@options_command(Looks, app, "hubs", "veen connect hubs --region ap-northeast-1", "veen connect hubs --tag test --json")
def hubs(
    asked: Looks,
    region: Region = None,
    tag: Tags = None,
    overlay: OverlayIds = None,
    profile: Profiles = None,
    trust: TrustOption = None,
) -> None:
    """Propose hubs, the best first, and say which were left out and why."""
    from veen.cli.discovery import connect_phases

    wish = connect_phases.hub_wish(region, tag, overlay, profile)
    connect_phases.look_at_hubs(asked, wish, connect_phases.pin_of(trust))


@options_command(
    Looks, app, "services", "veen connect services --method charge", "veen connect services --overlay rpc --json"
)
def services(
    asked: Looks,
    overlay: OverlayName = None,
    method: MethodOption = None,
    region: Region = None,
    tag: Tags = None,
) -> None:
    """Propose services whose overlay is one that this client reads in the same way.

    Overlays and services are read from one stream, where --stream names it; else from the two well-known ones.
    """
    from veen.cli.discovery import connect_phases

    connect_phases.look_at_services(asked, _service_wish(method, region, tag), overlay)


def _service_wish(method: str | None, region: str | None, tag: list[str] | None) -> "ServiceCriteria":
    from veen.overlays.connect import ServiceCriteria

    return ServiceCriteria(frozenset(), method, None, region, tuple(tag or ()))


@send_command(
    app,
    "hub",
    "veen connect hub work --region ap-northeast-1 --trust 4f…a1",
    "veen connect hub work --id 4f…a1 --trust hub-identity.json",
)
def hub(
    asked: SendOptions,
    name: NameArgument,
    chosen: Chosen = None,
    region: Region = None,
    tag: Tags = None,
    overlay: OverlayIds = None,
    profile: Profiles = None,
    trust: TrustOption = None,
    latency: Annotated[
        int | None,
        typer.Option("--max-latency", metavar="MS", min=1, help="ask each, and leave out those that take longer"),
    ] = None,
    directory: DirectoryStream = None,
    publisher: Publishers = None,
) -> None:
    """Phase 1: choose a hub for a connection.

    A directory only hints. A hub is trusted where this client knows it already, or where --trust names it; to one that
    is not, no capability is shown and nothing is sent.
    """
    from veen.cli.discovery import connect_phases

    wish = connect_phases.hub_wish(region, tag, overlay, profile, latency)
    connect_phases.choose_hub(asked, name, wish, chosen, trust, directory or stream_of("hub"), publisher)


@send_command(
    app,
    "service",
    "veen connect service work --method charge",
    "veen connect service work --overlay kv --id 4f…a1",
)
def service(
    asked: SendOptions,
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
    from veen.cli.discovery import connect_phases

    wish = _service_wish(method, region, tag)
    connect_phases.choose_service(asked, name, wish, overlay, chosen, directory, publisher)


@send_command(
    app,
    "cap",
    "veen connect cap work",
    "veen connect cap work --token work.cap",
    "veen connect cap work --ask --ttl 86400",
)
def cap(
    asked: SendOptions,
    name: NameArgument,
    token: Annotated[
        str | None, typer.Option("--token", metavar="FILE", help="the capability that was issued: show it to the hub")
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="ask the issuing service that the directory names")] = False,
    ttl: Annotated[int | None, durations.whole_option("--ttl", least=1, help="with --ask: for how long")] = None,
    wait: Annotated[
        int | None, durations.whole_option("--wait", least=1, help="how long to wait for a token at the most")
    ] = None,
    timeout: Timeout = 30,
    directory: DirectoryStream = None,
) -> None:
    """Phase 3: plan and get leave to use the service.

    Without --token it says what is needed and from whom. With it, the token is checked, shown to the chosen hub, and
    the hub's answer is kept. Again, with another token, renews.
    """
    from veen.cli.discovery import authorization

    authorization.get(
        asked, name, authorization.Wanted(token, ask, ttl, wait, timeout, directory or stream_of("service"))
    )


@send_command(app, "bind", "veen connect bind work", "veen connect bind work --stream my.connections")
def bind(asked: SendOptions, name: NameArgument) -> None:
    """Phase 4: settle on which streams the service is used."""
    from veen.cli.kit import send_event
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.connect import CONNECT, binding

    def make(reading: "Connections") -> "Event":
        chosen = reading.state(name.encode()).service
        if chosen is None:
            hint = f"veen connect service {name} chooses one"
            raise hinted(Unavailable(f"connection {name!r} has no service yet"), hint)
        return sendable(binding(name, chosen))

    send_event.send_checked(asked, CONNECT, make, {"connection": name}, stream=STREAM)


@send_command(app, "end", "veen connect end work", "veen connect end work --reason moved")
def end(
    asked: SendOptions,
    name: NameArgument,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why")] = None,
) -> None:
    """Give a connection up."""
    from veen.cli.kit import send_event
    from veen.overlays.connect import CONNECT, ConnectionEnded

    made = sendable(ConnectionEnded(name, reason))
    send_event.send_checked(asked, CONNECT, lambda reading: made, {"connection": name}, stream=STREAM, blind=made)


@send_command(
    app, "call", "veen connect call work charge '{\"amount\": 5}'", "veen connect call work refund 7 --timeout 5"
)
def call(
    asked: SendOptions,
    name: NameArgument,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="one of the service's methods")],
    args: Annotated[str, typer.Argument(metavar="JSON", help="its arguments")] = "null",
    timeout: Timeout = 30,
) -> None:
    """Call the service of a connection that is bound, and show its answer."""
    from veen.cli.discovery import authorization

    authorization.call(asked, name, method, args, timeout)


@options_command(Looks, app, "status", "veen connect status", "veen connect status work --at 3 --prove")
def status(
    asked: Looks,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="which connection", show_default="all of them")
    ] = None,
) -> None:
    """Show how far connections have come, and what has lapsed since."""
    from veen.overlays.connect import CONNECT

    look_at(asked, CONNECT, lambda reading, now: _status(reading, now, name), stream=STREAM)


def _status(reading: "Connections", now: int, name: str | None) -> "StateAnswer":
    from veen.cli.kit import read_state, render_state
    from veen.cli.kit.exit_status import hinted
    from veen.cli.kit.sanitize import printable, short
    from veen.core import Unavailable
    from veen.overlays.connect import CONNECT

    states = dict(reading.states)
    if name is not None and name.encode() not in states:
        raise hinted(Unavailable(f"there is no connection {name!r}"), f"veen connect hub {name} begins one")
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


def _overlay() -> "AnyOverlay":
    from veen.overlays.connect import CONNECT

    return CONNECT


faults_command.add(app, "veen connect", _overlay, STREAM)
