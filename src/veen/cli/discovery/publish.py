"""`veen discover publish`: advertise a hub, an overlay or a service."""

from typing import Annotated, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.discovery.directory_view import KindName, schema_of, stream_of
from veen.cli.kit import values
from veen.cli.kit.state_session import SendSession, SentResult, send_command, sendable
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

app = group(
    "publish",
    """Advertise a hub, an overlay or a service for the time of --ttl.

    Publishing again replaces the advertisement and restarts its time.
    """,
)

_overlay_id, _service_id = values.id_parser("the id of an overlay"), values.id_parser("the id of a service")
Ttl: TypeAlias = Annotated[int, durations.whole_option("--ttl", least=1, help="how long it is valid")]
TagsOption: TypeAlias = Annotated[list[str] | None, option("--tag NAME", "public, beta, internal or any other tag")]


@send_command(
    app,
    "hub",
    "veen discover publish hub --region ap-northeast-1 --tag public",
    "veen discover publish hub --url https://hub.example --ttl 86400",
)
async def publish_hub(
    session: SendSession,
    url: Annotated[list[str] | None, option("--url URL", "its address", default="the address of --hub")] = None,
    region: Annotated[str, option("--region NAME", "its region")] = "",
    tag: TagsOption = None,
    overlay: Annotated[
        list[bytes] | None, option("--overlay HEX", "the overlay_id of an overlay it hosts", parser=_overlay_id)
    ] = None,
    ttl: Ttl = 3600,
) -> SentResult:
    """Advertise the hub of --hub.

    The id, key and profile come from the hub itself, after verification, so they cannot be mistyped.
    """
    session.reject_blind("the hub's status before it sends")
    client, _ = await session.at_hub(DISCOVERY, stream_of(KindName.HUB))
    status = await client.status()
    endpoints = tuple(ServiceEndpoint(one.partition(":")[0], one) for one in url or [client.url])
    fixed = (client.hub_id, status.hub_pk, status.profile.profile_id(), region, tuple(tag or ()), endpoints)
    return await _publish(session, HubAdvertise(*fixed, tuple(overlay or ()), ttl, status.server_version))


@send_command(
    app,
    "overlay",
    "veen discover publish overlay rpc",
    "veen discover publish overlay example.tally --schema example.tally.v1 --tag experimental",
)
async def publish_overlay(
    session: SendSession,
    name: Annotated[str, argument("NAME", "the overlay's class, as in veen fold --overlay")],
    schema: Annotated[
        list[str] | None,
        option("--schema NAME|HEX", "a schema it uses", default="those of the built-in overlay"),
    ] = None,
    version: Annotated[str, option("--overlay-version TEXT", "its version")] = "1",
    docs: Annotated[str | None, option("--docs URL", "the address of its documentation")] = None,
    tag: TagsOption = None,
    name_id: Annotated[
        bytes | None, option("--id HEX", "its id", default="derived from its name", parser=_overlay_id)
    ] = None,
    ttl: Ttl = 3600,
) -> SentResult:
    """Advertise an overlay.

    Clients accept it only if its schemas are exactly the ones they expect.
    """
    id_ = name_id or overlay_id(name, version)
    made = OverlayAdvertise(id_, name, version, _schemas(name, schema), docs, tuple(tag or ()), ttl)
    return await _publish(session, made)


@send_command(
    app,
    "service",
    "veen discover publish service billing --overlay 4f…a1 --method charge --on asked --on answered",
    "veen discover publish service billing --overlay 4f…a1 --on ledger --auth none",
)
async def publish_service(
    session: SendSession,
    name: Annotated[str, argument("NAME", "its name, for people")],
    overlay: Annotated[bytes, option("--overlay HEX", "the overlay_id of the overlay it uses", parser=_overlay_id)],
    on: Annotated[list[str], option("--on STREAM", "a stream of it; requests go to the first")],
    method: Annotated[list[str] | None, option("--method NAME", "a method it has")] = None,
    region: Annotated[list[str] | None, option("--region NAME", "a region it prefers")] = None,
    requires: Annotated[list[str] | None, option("--requires CAP", "a capability it requires, by name")] = None,
    auth: Annotated[
        str | None, option("--auth MODE", "how it authorizes clients: cap_token, mtls, none or other")
    ] = None,
    issuer: Annotated[
        bytes | None,
        option("--issuer-service HEX", "the service that issues its capabilities", parser=_service_id),
    ] = None,
    org: Annotated[str | None, option("--org TEXT", "its operator")] = None,
    contact: Annotated[str | None, option("--contact TEXT", "how to contact its operator")] = None,
    tag: TagsOption = None,
    name_id: Annotated[
        bytes | None, option("--id HEX", "its id", default="derived from its name", parser=_service_id)
    ] = None,
    ttl: Ttl = 3600,
) -> SentResult:
    """Advertise a service: its methods and its streams."""
    if issuer is not None and auth != "cap_token":
        raise Misuse("--issuer-service needs --auth cap_token", "give --auth cap_token, too")
    details = None if issuer is None else cbor.encode({"issuer_service": issuer})
    made = ServiceAdvertise(
        name_id or service_id(name),
        name,
        overlay,
        tuple(method or ()),
        tuple(naming.stream_id(one) for one in on),
        tuple(region or ()),
        tuple(requires or ()),
        None if auth is None else AuthPolicy(auth, details),
        None if org is None and contact is None else Operator(org, contact),
        tuple(tag or ()),
        ttl,
    )
    return await _publish(session, made)


def _schemas(name: str, given: list[str] | None) -> tuple[bytes, ...]:
    if given:
        return tuple(schema_of(one) for one in given)
    found = registry().of_class(name)
    if found is None:
        raise Misuse(f"there is no built-in overlay {name!r}", "name its schemas with --schema")
    return tuple(sorted(found.schemas))


async def _publish(session: SendSession, descriptor: Descriptor) -> SentResult:
    size = len(sendable(descriptor).encode())
    if size > MAX_DESCRIPTOR_BYTES:
        raise Misuse(
            f"the descriptor has {size} bytes, above the limit of {MAX_DESCRIPTOR_BYTES}", "shorten its texts and lists"
        )
    kind = descriptor.KIND
    shown = {f"{kind}_id": descriptor.id, "ttl": descriptor.ttl_sec}
    return await session.send(DISCOVERY, descriptor, shown, default=stream_of(kind))
