"""`veen discover publish`: advertise a hub, an overlay or a service."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.discovery.directory_view import KindName, sendable, stream_of
from veen.cli.kit.state_options import SendOptions, send_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from veen.client.client import Client
    from veen.overlays.discovery import Descriptor

    Describe: TypeAlias = Callable[[Client], Awaitable[Descriptor]]

app = group(
    "publish",
    """Advertise a hub, an overlay or a service, for as long as its --ttl says.

    Publishing again replaces what was there, and starts its time anew.
    """,
)

Ttl: TypeAlias = Annotated[int, durations.whole_option("--ttl", least=1, help="how long it holds")]
TagsOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", metavar="NAME", help="public, beta, internal or what you like")
]
Id: TypeAlias = Annotated[
    str | None, typer.Option("--id", metavar="HEX", help="its id", show_default="one that follows from its name")
]


@send_command(
    app,
    "hub",
    "veen discover publish hub --region ap-northeast-1 --tag public",
    "veen discover publish hub --url https://hub.example --ttl 86400",
)
def publish_hub(
    asked: SendOptions,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="a way to reach it", show_default="the one it was reached by"),
    ] = None,
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="where it is")] = "",
    tag: TagsOption = None,
    overlay: Annotated[
        list[str] | None, typer.Option("--overlay", metavar="HEX", help="an overlay_id it takes part in")
    ] = None,
    ttl: Ttl = 3600,
) -> None:
    """Advertise the hub that is asked, by what it says and signs of itself.

    Its id, key and profile are taken from the hub that answers, once it is verified: nobody advertises another's by
    mistake.
    """
    from veen.cli.kit import values
    from veen.overlays.discovery import HubAdvertise, ServiceEndpoint

    overlays = tuple(values.id_of(one, "the id of an overlay") for one in overlay or ())

    async def describe(client: "Client") -> "Descriptor":
        status = await client.status()
        urls = url or [client.url]
        endpoints = tuple(ServiceEndpoint(one.partition(":")[0], one) for one in urls)
        fixed = (client.hub_id, status.hub_pk, status.profile.profile_id(), region, tuple(tag or ()), endpoints)
        return HubAdvertise(*fixed, overlays, ttl, status.server_version)

    _publish(asked, KindName.HUB, describe)


@send_command(
    app,
    "overlay",
    "veen discover publish overlay rpc",
    "veen discover publish overlay example.tally --schema example.tally.v1 --tag experimental",
)
def publish_overlay(
    asked: SendOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="the overlay's class, as in veen fold --overlay")],
    schema: Annotated[
        list[str] | None,
        typer.Option("--schema", metavar="NAME|HEX", help="a schema it uses", show_default="those of the overlay here"),
    ] = None,
    version: Annotated[str, typer.Option("--overlay-version", metavar="TEXT", help="its version")] = "1",
    docs: Annotated[str | None, typer.Option("--docs", metavar="URL", help="where it is documented")] = None,
    tag: TagsOption = None,
    name_id: Id = None,
    ttl: Ttl = 3600,
) -> None:
    """Advertise an overlay.

    Clients compare the schemas it uses with those they read, and take it only where they are the same.
    """
    from veen.cli.kit import values
    from veen.overlays.discovery import OverlayAdvertise, overlay_id

    id_ = overlay_id(name, version) if name_id is None else values.id_of(name_id, "the id of an overlay")
    made = OverlayAdvertise(id_, name, version, _schemas(name, schema), docs, tuple(tag or ()), ttl)

    async def describe(client: "Client") -> "Descriptor":
        return made

    _publish(asked, KindName.OVERLAY, describe, made)


@send_command(
    app,
    "service",
    "veen discover publish service billing --overlay 4f…a1 --method charge --on asked --on answered",
    "veen discover publish service billing --overlay 4f…a1 --on ledger --auth none",
)
def publish_service(
    asked: SendOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name, for people")],
    overlay: Annotated[str, typer.Option("--overlay", metavar="HEX", help="the overlay_id of the overlay it uses")],
    on: Annotated[
        list[str],
        typer.Option("--on", metavar="STREAM", help="a stream of it; where it is called, the first takes requests"),
    ],
    method: Annotated[list[str] | None, typer.Option("--method", metavar="NAME", help="a method it has")] = None,
    region: Annotated[list[str] | None, typer.Option("--region", metavar="NAME", help="a region it prefers")] = None,
    requires: Annotated[
        list[str] | None, typer.Option("--requires", metavar="CAP", help="a capability it requires, by name")
    ] = None,
    auth: Annotated[
        str | None, typer.Option("--auth", metavar="MODE", help="how it lets people in: cap_token, mtls, none or other")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option("--issuer-service", metavar="HEX", help="the service that issues its capabilities")
    ] = None,
    org: Annotated[str | None, typer.Option("--org", metavar="TEXT", help="who runs it")] = None,
    contact: Annotated[str | None, typer.Option("--contact", metavar="TEXT", help="whom to ask about it")] = None,
    tag: TagsOption = None,
    name_id: Id = None,
    ttl: Ttl = 3600,
) -> None:
    """Advertise a service: what it can do, and on which streams."""
    from veen.cli.kit import values
    from veen.core import cbor, naming
    from veen.overlays.discovery import AuthPolicy, Operator, ServiceAdvertise, service_id

    if issuer is not None and auth != "cap_token":
        raise Misuse("--issuer-service is for services that take tokens", "give --auth cap_token, too")
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

    async def describe(client: "Client") -> "Descriptor":
        return made

    _publish(asked, KindName.SERVICE, describe, made)


def _schemas(name: str, given: list[str] | None) -> tuple[bytes, ...]:
    from veen.cli.discovery.directory_view import schema_of
    from veen.overlays import registry

    if given:
        return tuple(schema_of(one) for one in given)
    found = registry().of_class(name)
    if found is None:
        raise Misuse(f"there is no overlay {name!r} here", "name its schemas with --schema")
    return tuple(sorted(found.schemas))


def _publish(asked: SendOptions, kind: KindName, describe: "Describe", blind: "Descriptor | None" = None) -> None:
    """Send what `describe` says of the hub that was met, and show its receipt."""
    from veen.cli.kit import send_event
    from veen.overlays.discovery import DISCOVERY, MAX_DESCRIPTOR_BYTES
    from veen.state.event_sender import EventSender, SentEvent
    from veen.state.state_view import StateView

    if asked.blind and blind is None:
        raise Misuse("this cannot be said without a look at the hub", "leave out --blind")
    made: list[Descriptor] = []

    async def speak(client: "Client", name: str) -> SentEvent:
        one = sendable(await describe(client))
        made.append(one)
        if len(one.encode()) > MAX_DESCRIPTOR_BYTES:
            raise Misuse(f"a descriptor has at most {MAX_DESCRIPTOR_BYTES} bytes", "say less in it")
        if asked.blind:
            return SentEvent(await client.send(name, one.encode(), schema=one.SCHEMA))
        async with StateView.of(client, name, DISCOVERY, cached=not asked.no_cache) as view:
            return await EventSender(view).send(one)

    said = send_event.run_at_hub(asked, DISCOVERY, speak, stream=stream_of(kind))
    (one,) = made
    send_event.show_sent(said, {f"{kind}_id": one.id, "ttl": one.ttl_sec}, asked)
