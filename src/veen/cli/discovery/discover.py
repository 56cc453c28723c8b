"""`veen discover`: directories of hubs, overlays and services."""

from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.discovery import remote_query
from veen.cli.discovery.directory_view import (
    COLUMNS,
    DirectorySession,
    KindArgument,
    KindName,
    Method,
    Region,
    Tags,
    directory_command,
    filter_of,
    open_directory,
    overlay_of,
    schema_of,
    stream_of,
)
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Moment, Result, inside
from veen.cli.kit.state_session import Answer, SendSession, SentResult, add_faults, plain_facts, send_command, sendable
from veen.core import Unavailable, cbor, naming
from veen.overlays import registry
from veen.overlays.discovery import (
    DISCOVERY,
    MAX_DESCRIPTOR_BYTES,
    RETIRE,
    AuthPolicy,
    Descriptor,
    DescriptorKind,
    DirectoryRecord,
    HubAdvertise,
    Operator,
    OverlayAdvertise,
    ServiceAdvertise,
    ServiceEndpoint,
    kind_and_id,
    overlay_id,
    part_of,
    service_id,
)
from veen.overlays.discovery_query import DirectoryQuery, evaluate
from veen.overlays.event import plain_wire
from veen.state.state_view import StateAt

Directory: TypeAlias = StateAt[DirectoryRecord, DirectoryRecord]

app = group(
    "discover",
    """Find hubs, overlays and services, and advertise your own.

    A directory is a stream: disc.hubs.v1, disc.overlays.v1, disc.services.v1, or the one that --stream names. An
    advertisement is not proof. You decide which hubs to trust: see --pin, and veen connect.
    """,
)
publish_app = group(
    "publish",
    """Advertise a hub, an overlay or a service for the time of --ttl.

    Publishing again replaces the advertisement and restarts its time.
    """,
)
app.add_typer(publish_app)

IdArgument: TypeAlias = Annotated[str, argument("ID", "its id: 64 hex digits")]


@directory_command(app, "list", "veen discover list hub", "veen discover list service --all --at 12 --json")
async def list_(
    session: DirectorySession,
    kind: KindArgument,
    every: Annotated[bool, option("--all", "also retired and expired ones")] = False,
) -> Answer:
    """List the advertisements that are neither retired nor expired.

    With --at, lists the directory after that entry, at its time. --when names another time.
    """
    state, now = await open_directory(session, overlay_of(session.options.publishers), stream_of(kind))
    found = [
        (part, record)
        for part, record in sorted(_of_kind(state, kind))
        if record.advertised is not None and (every or record.live(now))
    ]
    return Answer(
        {f"{kind}s": [_data(part, record, now) for part, record in found], "now": now},
        rows=f"{kind}s",
        columns=(*inside("descriptor", COLUMNS[kind]), "state", "expires_at"),
        parts=tuple(part for part, _ in found),
    )


@directory_command(
    app, "show", "veen discover show hub 4f…a1 --prove --out hub.evidence", "veen discover show hub 4f…a1"
)
async def show(session: DirectorySession, kind: KindArgument, name: IdArgument) -> Answer:
    """Show one hub, overlay or service, even if it is retired or expired."""
    part = part_of(DescriptorKind(kind), values.id_of(name, f"the id of a {kind}"))
    state, now = await open_directory(session, overlay_of(session.options.publishers), stream_of(kind))
    record = state.state(part)
    if record.advertised is None and record.retired is None:
        raise _never_advertised(kind)
    facts: list[Column] = []
    if record.advertised is not None:
        facts += inside("descriptor", plain_facts(plain_wire(record.advertised.descriptor)))
        facts += ["publisher", "mirrored", ("entry", "stream_seq"), "expires_at"]
    facts.append("state")
    if record.retired is not None:
        facts += [("retired by", "retired_by"), "reason"]
    return Answer({**_data(part, record, now), "now": now}, facts=facts, parts=(part,))


@directory_command(
    app,
    "query",
    "veen discover query hub --region ap-northeast-1 --tag public",
    "veen discover query service --method charge --ask disc.requests",
)
async def query(
    session: DirectorySession,
    kind: KindArgument,
    name: Annotated[str | None, option("--name TEXT", "with this start of the name")] = None,
    method: Method = None,
    overlay: Annotated[
        bytes | None,
        option("--overlay HEX", "with this overlay_id", parser=values.id_parser("the id of an overlay")),
    ] = None,
    schema: Annotated[str | None, option("--schema NAME|HEX", "overlays that use this schema")] = None,
    region: Region = None,
    tag: Tags = None,
    limit: Annotated[int | None, option("--limit N", "at most N results", min=0)] = None,
    offset: Annotated[int | None, option("--offset N", "skip the first N results", min=0)] = None,
    ask: remote_query.AskOption = None,
    timeout: remote_query.Timeout = 30,
) -> Result:
    """Find advertisements with the filters of disc.query.

    Reads and folds the directory locally. With --ask, sends the query as a call on that stream, and the server of the
    stream answers; the result is then only as trustworthy as the server.
    """
    wanted = filter_of(kind, name=name, method=method, overlay=overlay, schema=schema, region=region, tags=tag)
    made, options = DirectoryQuery.of(wanted, limit, offset), session.options
    if ask is None:
        state, now = await open_directory(session, overlay_of(options.publishers), stream_of(kind))
        found = evaluate(dict(_of_kind(state, kind)), made, now)
        return remote_query.answer(kind, found, now)
    folded = (options.data_dir, options.at, options.when, options.publishers, options.out, options.stream)
    if options.prove or any(one is not None for one in folded):
        raise Misuse(
            "--ask cannot be combined with --data-dir, --at, --when, --publisher, --out, --prove or --stream",
            "the server answers from its own current directory; leave out --ask or the others",
        )
    return await remote_query.ask(session, kind, made, ask, timeout)


@send_command(
    app,
    "retire",
    "veen discover retire hub 4f…a1 --reason moved",
    "veen discover retire service 4f…a1 --stream my.directory",
)
async def retire(
    session: SendSession,
    kind: KindArgument,
    name: IdArgument,
    reason: Annotated[str | None, option("--reason TEXT", "the reason, readable by anyone")] = None,
) -> SentResult:
    """Withdraw an advertisement until it is published again."""
    id_ = values.id_of(name, f"the id of a {kind}")
    event = sendable(RETIRE[DescriptorKind(kind)](id_, reason))
    state = await session.open_unless_blind(DISCOVERY, stream_of(kind))
    if state is not None and state.state(part_of(DescriptorKind(kind), id_)).advertised is None:
        raise _never_advertised(kind)
    return await session.send(DISCOVERY, event, {f"{kind}_id": id_}, default=stream_of(kind))


send_command(
    app,
    "serve",
    "veen discover serve --stream disc.requests",
    "veen discover serve --stream disc.requests --directory my.directory --once",
)(remote_query.serve)
add_faults(app, "veen discover", lambda session: session.open(DISCOVERY), example=" --stream NAME")


_overlay_id, _service_id = values.id_parser("the id of an overlay"), values.id_parser("the id of a service")
Ttl: TypeAlias = Annotated[int, durations.whole_option("--ttl", least=1, help="how long it is valid")]
TagsOption: TypeAlias = Annotated[list[str] | None, option("--tag NAME", "public, beta, internal or any other tag")]


@send_command(
    publish_app,
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
    publish_app,
    "overlay",
    "veen discover publish overlay rpc",
    "veen discover publish overlay example.tally --schema example.tally.v1 --tag experimental",
)
async def publish_overlay(
    session: SendSession,
    name: Annotated[str, argument("NAME", "the overlay's class, as in veen fold --overlay")],
    schema: Annotated[
        list[str] | None,
        option("--schema NAME|HEX", "a schema it uses", default="the schemas of the built-in overlay"),
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
    publish_app,
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


def _never_advertised(kind: KindName) -> Unavailable:
    return hinted(Unavailable(f"no {kind} with this id was ever advertised"), f"veen discover list {kind} lists them")


def _of_kind(state: Directory, kind: KindName) -> list[tuple[bytes, DirectoryRecord]]:
    wanted = DescriptorKind(kind)
    return [(part, record) for part, record in state.states.items() if kind_and_id(part)[0] is wanted]


def _data(part: bytes, record: DirectoryRecord, now: int) -> dict[str, Any]:
    word = "retired" if record.retired is not None else "live" if record.live(now) else "expired"
    plain = {**DISCOVERY.plain(part, record), "state": word}
    return {**plain, "expires_at": Moment(record.advertised.expires_at)} if record.advertised else plain


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
