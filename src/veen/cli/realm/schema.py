"""`veen schema`: the schema registry of a realm, and the schemas that a stream uses."""

from typing import Annotated, Any

from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Moment, Result, fields_of, listed
from veen.cli.kit.state_session import Answer, SendSession, need_reader_key, parse_place, place_data
from veen.cli.kit.values import hex_id, key_parser, public_key
from veen.cli.realm.realm_state import (
    REGISTRY,
    PreparedEvent,
    RealmSession,
    add_realm_faults,
    realm_read_command,
    realm_send_command,
    send_events,
)
from veen.core import Mmr, Unavailable, naming
from veen.overlays import At, registry, stream_catalog
from veen.overlays.stream_catalog import SCHEMAS, SchemaUse, descriptor, uses
from veen.state.entry_source import EntrySource, folded
from veen.state.state_view import shown

app = group(
    "schema",
    """Register schemas of a realm, and show which of them a stream uses.

    A schema is identified by 32 bytes in the header of each message. The registry gives them a name.
    """,
)


@realm_send_command(
    app,
    "register",
    "veen schema register door.report.v1 --version v1 --doc https://example.org/door-report",
    "veen schema register access.grant.v1 --version v1 --id 3a67…",
)
async def register(
    session: SendSession,
    name: Annotated[str, argument("NAME", "its name")],
    version: Annotated[str, option("--version TEXT", "its version, in its owner's numbering")],
    id_: Annotated[
        bytes | None,
        option("--id HEX", "the 32 bytes", default="the hash of the name", parser=key_parser("the id of a schema")),
    ] = None,
    doc: Annotated[str | None, option("--doc URL", "the address of its description")] = None,
    owner: Annotated[bytes | None, option("--owner HEX", "the public key of its owner", parser=public_key)] = None,
) -> Result:
    """Register a schema, or replace its description."""
    if not name:
        raise Misuse("the schema name is empty", "give NAME, like door.report.v1")
    state = await REGISTRY.open(session)
    states = state.reading.states
    event = stream_catalog.describe(states, name, version, ts=state.now, schema_id=id_, doc_url=doc, owner=owner)
    others = [one for one in stream_catalog.by_name(states, name) if one.schema_id != event.schema_id]
    remark = None
    if not event.fits():
        remark = "the id is not the hash of the name, so it cannot be derived from the name"
    elif others:
        remark = f"another schema has the same name: {others[0].schema_id.hex()}"
    data = fields_of(event, "schema_id", "name", "version", "doc_url", "owner", "ts")
    data |= {"realm_id": state.realm_id, "name_fits": event.fits()}
    prepared = PreparedEvent(event, event.schema_id, data, ("schema_id", "name", "version"), remark)
    return await send_events(session, state, [prepared])


@realm_read_command(app, "show", "veen schema show door.report.v1", "veen schema show 3a67… --prove")
async def show(
    session: RealmSession, name: Annotated[str, argument("NAME|HEX", "its name, or its 32 bytes")]
) -> Answer:
    """Show the registered description of a schema, and the overlays that read it."""
    state = await REGISTRY.open(session)
    states, named = state.reading.states, hex_id(name)
    competing = [] if named else list(stream_catalog.by_name(states, name))
    part = named or (competing[0].schema_id if competing else naming.schema_id(name))
    records = states.get(part)
    readers = [overlay.CLASS for overlay in registry().of_schema(part)]
    if records is None:
        known = f"these overlays read it: {', '.join(readers)}" if readers else "veen schema list lists all schemas"
        raise hinted(Unavailable(f"no schema {name!r} is registered"), known)
    plain = dict(SCHEMAS.plain(part, records))
    times = {"ts": Moment(records[0].event.ts), "hub_ts": Moment(records[0].hub_ts)}
    return Answer(
        {"realm_id": state.realm_id, **plain, **times, "overlays": readers},
        facts=(*plain, ("read by", listed("overlays"))),
        parts=(part,),
        remarks=tuple(f"{one.schema_id.hex()} has the same name" for one in competing[1:]),
    )


@realm_read_command(app, "list", "veen schema list", "veen schema list --at 12 --json")
async def list_(session: RealmSession) -> Answer:
    """List the registered schemas."""
    state = await REGISTRY.open(session)
    states = dict(state.reading.states)
    by_name = sorted(states, key=lambda part: (states[part][0].event.name, part))
    return Answer(
        {"realm_id": state.realm_id, "schemas": [SCHEMAS.plain(part, states[part]) for part in by_name]},
        rows="schemas",
        columns=("name", "version", "schema_id", ("name fits", "name_fits"), ("doc", "doc_url")),
        parts=tuple(by_name),
    )


@realm_read_command(app, "check", "veen schema check doors", "veen schema check doors --data-dir hub --json")
async def check(session: RealmSession, stream: Annotated[str, argument("STREAM", "the stream to check")]) -> Answer:
    """List the schemas that a stream uses, and whether they are registered.

    With --at, reads the stream up to that entry; the registry is always the current one.
    """
    need_reader_key(session.folder, stream)
    state = await REGISTRY.open(session, current=True)
    last = parse_place(session.options.at, session.view_of(state.reading))
    used = await _uses(state.source, naming.stream_id(stream), last)
    data = [_use_data(schema, use, state.reading.states) for schema, use in used.items()]
    return Answer(
        {"realm_id": state.realm_id, "checked": stream, "schemas": data},
        rows="schemas",
        columns=(
            "schema_id",
            ("name", lambda row: row["name"] or ", ".join(row["overlays"]) or None),
            ("registry", _mark),
            ("entries", "count"),
            ("first", lambda row: shown(At(**row["first"]))),
            ("last", lambda row: shown(At(**row["last"]))),
        ),
        parts=tuple(row["schema_id"] for row in data if row["registered"]),
    )


async def _uses(source: EntrySource, stream_id: bytes, last: At | None) -> dict[bytes | None, SchemaUse]:
    """The schemas of a stream in order of first use. Every entry is verified, and opened if possible."""
    found: dict[bytes | None, SchemaUse] = {}
    for epoch in await source.epochs(stream_id, None):
        async for page in source.read(stream_id, epoch, Mmr()):
            found = uses((entry for entry in map(folded, page) if last is None or entry.at <= last), found)
    return found


def _use_data(schema: bytes | None, use: SchemaUse, states: Any) -> dict[str, Any]:
    registered = None if schema is None else descriptor(states, schema)
    return {
        "schema_id": schema,
        "name": registered.name if registered else None,
        "version": registered.version if registered else None,
        "registered": registered is not None,
        "overlays": [] if schema is None else [overlay.CLASS for overlay in registry().of_schema(schema)],
        "count": use.count,
        "first": place_data(use.first),
        "last": place_data(use.last),
    }


def _mark(row: dict[str, Any]) -> Marked:
    if row["schema_id"] is None:
        return Marked("cannot be opened", Tone.WARN)
    return Marked("registered", Tone.GOOD) if row["registered"] else Marked("not registered", Tone.WARN)


add_realm_faults(app, "veen schema", REGISTRY)
