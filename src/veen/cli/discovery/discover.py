"""`veen discover`: directories of hubs, overlays and services."""

from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.discovery import publish, remote_query
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
    stream_of,
)
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Moment, Result, inside
from veen.cli.kit.state_rows import add_faults, plain_facts
from veen.cli.kit.state_session import Answer, SendSession, SentResult, send_command, sendable
from veen.core import Unavailable
from veen.overlays.discovery import DISCOVERY, RETIRE, DescriptorKind, DirectoryRecord, kind_and_id, part_of
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
app.add_typer(publish.app)

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


def _never_advertised(kind: KindName) -> Unavailable:
    return hinted(Unavailable(f"no {kind} with this id was ever advertised"), f"veen discover list {kind} lists them")


def _of_kind(state: Directory, kind: KindName) -> list[tuple[bytes, DirectoryRecord]]:
    wanted = DescriptorKind(kind)
    return [(part, record) for part, record in state.states.items() if kind_and_id(part)[0] is wanted]


def _data(part: bytes, record: DirectoryRecord, now: int) -> dict[str, Any]:
    word = "retired" if record.retired is not None else "live" if record.live(now) else "expired"
    plain = {**DISCOVERY.plain(part, record), "state": word}
    return {**plain, "expires_at": Moment(record.advertised.expires_at)} if record.advertised else plain
