"""`veen schema`: the schema registry of a realm, and the schemas that a stream uses."""

from dataclasses import replace
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command, output, output_files, read_state, render_state
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.read_state import StateAnswer, StateBasis, need_reader_key, parse_place
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import public_key
from veen.cli.realm import admin_event, realm_state
from veen.cli.realm.admin_event import PreparedEvent
from veen.cli.realm.realm_state import RealmReadOptions, RealmSendOptions, RealmState, schema_id
from veen.core import Mmr, Unavailable, naming
from veen.overlays import At, registry, stream_catalog
from veen.overlays.admin_records import AdminRecord
from veen.overlays.stream_catalog import SCHEMAS, SchemaDescriptor, SchemaUse, descriptor, uses
from veen.state.entry_source import EntrySource, folded
from veen.state.state_view import shown

Records: TypeAlias = tuple[AdminRecord[SchemaDescriptor], ...]
SchemaState: TypeAlias = RealmState[Records, Records]


_UNOPENED = Marked("cannot be opened", Tone.WARN)


async def check_usage(source: EntrySource, options: RealmReadOptions, stream: str) -> tuple[StateAnswer, StateBasis]:
    """List the schemas of a stream in order of first use. Every entry is verified, and opened if possible."""
    need_reader_key(source.folder, stream)
    async with realm_state.open_state(source, replace(options, at=None), realm_state.REGISTRY) as look:
        used = await _uses(source, naming.stream_id(stream), parse_place(options.at, look.view))
        states, readers = look.reading.states, registry()
        rows: list[tuple[output.Value, ...]] = []
        data: list[dict[str, object]] = []
        parts: list[bytes] = []
        for schema, use in used.items():
            registered = None if schema is None else descriptor(states, schema)
            overlays = [] if schema is None else [overlay.CLASS for overlay in readers.of_schema(schema)]
            if schema is not None and registered is not None:
                parts.append(schema)
            mark = _UNOPENED if schema is None else _mark(registered is not None)
            name = printable(registered.name) if registered else ", ".join(overlays) or None
            rows.append((None if schema is None else short(schema), name, mark, use.count, *_places(use)))
            data.append(
                {
                    "schema_id": schema,
                    "name": registered.name if registered else None,
                    "version": registered.version if registered else None,
                    "registered": registered is not None,
                    "overlays": overlays,
                    "count": use.count,
                    "first": {"epoch": use.first.epoch, "stream_seq": use.first.stream_seq},
                    "last": {"epoch": use.last.epoch, "stream_seq": use.last.stream_seq},
                }
            )
        columns = ("schema_id", "name", "registry", "entries", "first", "last")
        document = {"realm_id": look.realm_id, "checked": stream, "schemas": data}
        found = StateAnswer(columns=columns, rows=rows, data=document, parts=tuple(parts))
        return found, await realm_state.basis(options, look.view, look.reading, found)


async def _uses(source: EntrySource, stream_id: bytes, last: At | None) -> dict[bytes | None, SchemaUse]:
    found: dict[bytes | None, SchemaUse] = {}
    for epoch in await source.epochs(stream_id, None):
        async for page in source.read(stream_id, epoch, Mmr()):
            found = uses((entry for entry in map(folded, page) if last is None or entry.at <= last), found)
    return found


def _mark(registered: bool) -> Marked:
    return Marked("registered", Tone.GOOD) if registered else Marked("not registered", Tone.WARN)


def _places(use: SchemaUse) -> tuple[str, str]:
    return shown(use.first), shown(use.last)


app = group(
    "schema",
    """Register schemas of a realm, and show which of them a stream uses.

    A schema is identified by 32 bytes in the header of each message. The registry gives them a name.
    """,
)


@options_command(
    RealmSendOptions,
    app,
    "register",
    "veen schema register door.report.v1 --version v1 --doc https://example.org/door-report",
    "veen schema register access.grant.v1 --version v1 --id 3a67…",
)
def register(
    options: RealmSendOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name")],
    version: Annotated[str, typer.Option("--version", metavar="TEXT", help="its version, in its owner's numbering")],
    id_: Annotated[
        bytes | None,
        typer.Option("--id", metavar="HEX", help="the 32 bytes", show_default="the hash of the name", parser=schema_id),
    ] = None,
    doc: Annotated[str | None, typer.Option("--doc", metavar="URL", help="the address of its description")] = None,
    owner: Annotated[
        bytes | None, typer.Option("--owner", metavar="HEX", help="the public key of its owner", parser=public_key)
    ] = None,
) -> None:
    """Register a schema, or replace its description."""

    if not name:
        raise Misuse("the schema name is empty", "give NAME, like door.report.v1")

    def make(look: SchemaState) -> list[PreparedEvent]:
        states = look.reading.states
        event = stream_catalog.describe(states, name, version, ts=look.now, schema_id=id_, doc_url=doc, owner=owner)
        others = [one for one in stream_catalog.by_name(states, name) if one.schema_id != event.schema_id]
        remark = None
        if not event.fits():
            remark = "the id is not the hash of the name, so it cannot be derived from the name"
        elif others:
            remark = f"another schema has the same name: {others[0].schema_id.hex()}"
        shown: dict[str, output.Value] = {"schema_id": event.schema_id, "name": name, "version": version}
        data = {"realm_id": look.realm_id, **shown, "doc_url": doc, "owner": owner, "ts": event.ts}
        return [admin_event.PreparedEvent(event, event.schema_id, shown, {**data, "name_fits": event.fits()}, remark)]

    admin_event.send_events(options, realm_state.REGISTRY, make)


@options_command(RealmReadOptions, app, "show", "veen schema show door.report.v1", "veen schema show 3a67… --prove")
def show(
    options: RealmReadOptions,
    name: Annotated[str, typer.Argument(metavar="NAME|HEX", help="its name, or its 32 bytes")],
) -> None:
    """Show the registered description of a schema, and the overlays that read it."""

    def look(state: SchemaState) -> StateAnswer:
        states = state.reading.states
        named = admin_event.hex_id(name)
        competing = [] if named else list(stream_catalog.by_name(states, name))
        part = named or (competing[0].schema_id if competing else naming.schema_id(name))
        records = states.get(part)
        readers = [overlay.CLASS for overlay in registry().of_schema(part)]
        if records is None:
            known = f"these overlays read it: {', '.join(readers)}" if readers else "veen schema list lists all schemas"
            raise hinted(Unavailable(f"no schema {name!r} is registered"), known)
        plain = stream_catalog.SCHEMAS.plain(part, records)
        facts = {name: render_state.plain_cell(value) for name, value in plain.items()}
        facts |= {
            "schema_id": part,
            "ts": output.moment(records[0].event.ts),
            "hub_ts": output.moment(records[0].hub_ts),
        }
        return read_state.StateAnswer(
            facts={**facts, "read by": ", ".join(readers) or None},
            data={"realm_id": state.realm_id, **plain, "overlays": readers},
            parts=(part,),
            remarks=tuple(f"{one.schema_id.hex()} has the same name" for one in competing[1:]),
        )

    realm_state.show_realm_state(options, realm_state.REGISTRY, look)


@options_command(RealmReadOptions, app, "list", "veen schema list", "veen schema list --at 12 --json")
def list_(options: RealmReadOptions) -> None:
    """List the registered schemas."""

    def look(state: SchemaState) -> StateAnswer:
        states = dict(state.reading.states)
        by_name = sorted(states, key=lambda part: (states[part][0].event.name, part))
        rows, data = [], []
        for part in by_name:
            schema = states[part][0].event
            doc = None if schema.doc_url is None else printable(schema.doc_url)
            rows.append((printable(schema.name), printable(schema.version), short(part), schema.fits(), doc))
            data.append(render_state.plain_json(SCHEMAS.plain(part, states[part])))
        columns = ("name", "version", "schema_id", "name fits", "doc")
        document = {"realm_id": state.realm_id, "schemas": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=document, parts=tuple(by_name))

    realm_state.show_realm_state(options, realm_state.REGISTRY, look)


@options_command(
    RealmReadOptions, app, "check", "veen schema check doors", "veen schema check doors --data-dir hub --json"
)
def check(
    options: RealmReadOptions, stream: Annotated[str, typer.Argument(metavar="STREAM", help="the stream to check")]
) -> None:
    """List the schemas that a stream uses, and whether they are registered.

    With --at, reads the stream up to that entry; the registry is always the current one.
    """

    if options.out is not None:
        output_files.check_new(options.out)

    async def work(source: EntrySource) -> tuple[StateAnswer, StateBasis]:
        return await check_usage(source, options, stream)

    found, basis = realm_state.with_source(options, work)
    render_state.show_answer(found, basis, options)


faults_command.add_for_realm(app, "veen schema", realm_state.REGISTRY)
