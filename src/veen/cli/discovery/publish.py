"""`veen discover publish`: advertise a hub, an overlay or a service."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.discovery.directory_view import KindName, schema_of, sendable, stream_of
from veen.cli.kit import send_event, values
from veen.cli.kit.state_options import SendOptions, send_command
from veen.client.client import Client
from veen.core import cbor, naming
from veen.overlays import registry
from veen.overlays.discovery import (
    DISCOVERY,
    MAX_DESCRIPTOR_BYTES,
    AuthPolicy,
    Descriptor,
    HubAdvertise,
    Operator,
    OverlayAdvertise,
    ServiceAdvertise,
    ServiceEndpoint,
    overlay_id,
    service_id,
)
from veen.state.event_sender import EventSender, SentEvent
from veen.state.state_view import StateView

Describe: TypeAlias = Callable[[Client], Awaitable[Descriptor]]


app = group(
    "publish",
    """Advertise a hub, an overlay or a service for the time of --ttl.

    Publishing again replaces the advertisement and restarts its time.
    """,
)

Ttl: TypeAlias = Annotated[int, durations.whole_option("--ttl", least=1, help="how long it is valid")]
TagsOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", metavar="NAME", help="public, beta, internal or any other tag")
]
Id: TypeAlias = Annotated[
    str | None, typer.Option("--id", metavar="HEX", help="its id", show_default="derived from its name")
]


@send_command(
    app,
    "hub",
    "veen discover publish hub --region ap-northeast-1 --tag public",
    "veen discover publish hub --url https://hub.example --ttl 86400",
)
def publish_hub(
    options: SendOptions,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="its address", show_default="the address of --hub"),
    ] = None,
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="its region")] = "",
    tag: TagsOption = None,
    overlay: Annotated[
        list[str] | None, typer.Option("--overlay", metavar="HEX", help="the overlay_id of an overlay it hosts")
    ] = None,
    ttl: Ttl = 3600,
) -> None:
    """Advertise the hub of --hub.

    The id, key and profile come from the hub itself, after verification, so they cannot be mistyped.
    """

    overlays = tuple(values.id_of(one, "the id of an overlay") for one in overlay or ())

    async def describe(client: Client) -> Descriptor:
        status = await client.status()
        urls = url or [client.url]
        endpoints = tuple(ServiceEndpoint(one.partition(":")[0], one) for one in urls)
        fixed = (client.hub_id, status.hub_pk, status.profile.profile_id(), region, tuple(tag or ()), endpoints)
        return HubAdvertise(*fixed, overlays, ttl, status.server_version)

    _publish(options, KindName.HUB, describe)


@send_command(
    app,
    "overlay",
    "veen discover publish overlay rpc",
    "veen discover publish overlay example.tally --schema example.tally.v1 --tag experimental",
)
def publish_overlay(
    options: SendOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="the overlay's class, as in veen fold --overlay")],
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", metavar="NAME|HEX", help="a schema it uses", show_default="those of the built-in overlay"
        ),
    ] = None,
    version: Annotated[str, typer.Option("--overlay-version", metavar="TEXT", help="its version")] = "1",
    docs: Annotated[str | None, typer.Option("--docs", metavar="URL", help="the address of its documentation")] = None,
    tag: TagsOption = None,
    name_id: Id = None,
    ttl: Ttl = 3600,
) -> None:
    """Advertise an overlay.

    Clients accept it only if its schemas are exactly the ones they expect.
    """

    id_ = overlay_id(name, version) if name_id is None else values.id_of(name_id, "the id of an overlay")
    made = OverlayAdvertise(id_, name, version, _schemas(name, schema), docs, tuple(tag or ()), ttl)

    async def describe(client: Client) -> Descriptor:
        return made

    _publish(options, KindName.OVERLAY, describe, made)


@send_command(
    app,
    "service",
    "veen discover publish service billing --overlay 4f…a1 --method charge --on asked --on answered",
    "veen discover publish service billing --overlay 4f…a1 --on ledger --auth none",
)
def publish_service(
    options: SendOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name, for people")],
    overlay: Annotated[str, typer.Option("--overlay", metavar="HEX", help="the overlay_id of the overlay it uses")],
    on: Annotated[
        list[str],
        typer.Option("--on", metavar="STREAM", help="a stream of it; requests go to the first"),
    ],
    method: Annotated[list[str] | None, typer.Option("--method", metavar="NAME", help="a method it has")] = None,
    region: Annotated[list[str] | None, typer.Option("--region", metavar="NAME", help="a region it prefers")] = None,
    requires: Annotated[
        list[str] | None, typer.Option("--requires", metavar="CAP", help="a capability it requires, by name")
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option("--auth", metavar="MODE", help="how it authorizes clients: cap_token, mtls, none or other"),
    ] = None,
    issuer: Annotated[
        str | None, typer.Option("--issuer-service", metavar="HEX", help="the service that issues its capabilities")
    ] = None,
    org: Annotated[str | None, typer.Option("--org", metavar="TEXT", help="its operator")] = None,
    contact: Annotated[
        str | None, typer.Option("--contact", metavar="TEXT", help="how to contact its operator")
    ] = None,
    tag: TagsOption = None,
    name_id: Id = None,
    ttl: Ttl = 3600,
) -> None:
    """Advertise a service: its methods and its streams."""

    if issuer is not None and auth != "cap_token":
        raise Misuse("--issuer-service needs --auth cap_token", "give --auth cap_token, too")
    details = None if issuer is None else cbor.encode({"issuer_service": values.id_of(issuer, "the id of a service")})
    made = ServiceAdvertise(
        service_id(name) if name_id is None else values.id_of(name_id, "the id of a service"),
        name,
        values.id_of(overlay, "the id of an overlay"),
        tuple(method or ()),
        tuple(naming.stream_id(one) for one in on),
        tuple(region or ()),
        tuple(requires or ()),
        None if auth is None else AuthPolicy(auth, details),
        None if org is None and contact is None else Operator(org, contact),
        tuple(tag or ()),
        ttl,
    )

    async def describe(client: Client) -> Descriptor:
        return made

    _publish(options, KindName.SERVICE, describe, made)


def _schemas(name: str, given: list[str] | None) -> tuple[bytes, ...]:
    if given:
        return tuple(schema_of(one) for one in given)
    found = registry().of_class(name)
    if found is None:
        raise Misuse(f"there is no built-in overlay {name!r}", "name its schemas with --schema")
    return tuple(sorted(found.schemas))


def _publish(options: SendOptions, kind: KindName, describe: Describe, blind: Descriptor | None = None) -> None:
    """Send the descriptor that `describe` returns, and show its receipt. With --blind, `blind` is required."""

    if options.blind and blind is None:
        raise Misuse("this command needs to read the hub's status before it sends", "leave out --blind")
    made: list[Descriptor] = []

    async def work(client: Client, name: str) -> SentEvent:
        one = sendable(await describe(client))
        made.append(one)
        if len(one.encode()) > MAX_DESCRIPTOR_BYTES:
            raise Misuse(
                f"the descriptor has {len(one.encode())} bytes, above the limit of {MAX_DESCRIPTOR_BYTES}",
                "shorten its texts and lists",
            )
        if options.blind:
            return SentEvent(await client.send(name, one.encode(), schema=one.SCHEMA))
        async with StateView.of(client, name, DISCOVERY, cached=not options.no_cache) as view:
            return await EventSender(view).send(one)

    sent = send_event.run_at_hub(options, DISCOVERY, work, stream=stream_of(kind))
    (one,) = made
    send_event.show_sent(sent, {f"{kind}_id": one.id, "ttl": one.ttl_sec}, options)
