"""Which schemas a stream uses, beside what is registered. Each entry is verified, and opened where that is possible."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command, output
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.read_state import StateAnswer, StateBasis, need_reader_key, parse_place
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import public_key
from veen.cli.realm import realm_state
from veen.cli.realm.realm_state import RealmReads, RealmSays, schema_id
from veen.core import Mmr, naming
from veen.overlays import At, registry
from veen.overlays.admin.schemas import SchemaUse, descriptor, uses
from veen.state.entry_source import EntrySource, folded
from veen.state.state_view import shown

if TYPE_CHECKING:
    from veen.cli.kit import output
    from veen.cli.kit.read_state import StateAnswer, StateBasis
    from veen.cli.realm.admin_event import Saying
    from veen.cli.realm.realm_state import AdminStream, Look
    from veen.overlays.admin.admin_records import AdminRecord
    from veen.overlays.admin.schemas import SchemaDescriptor
    from veen.state.entry_source import EntrySource

    Records: TypeAlias = tuple[AdminRecord[SchemaDescriptor], ...]
    Looked: TypeAlias = Look[Records, Records]


_SEALED = Marked("cannot be opened", Tone.WARN)


async def check_usage(source: EntrySource, asked: RealmReads, stream: str) -> tuple[StateAnswer, StateBasis]:
    """The schemas that a stream uses, in the order in which they came."""
    need_reader_key(source.folder, stream)
    async with realm_state.looking(source, replace(asked, at=None), realm_state.REGISTRY) as look:
        used = await _uses(source, naming.stream_id(stream), parse_place(asked.at, look.view))
        states, readers = look.reading.states, registry()
        rows: list[tuple[output.Value, ...]] = []
        data: list[dict[str, object]] = []
        parts: list[bytes] = []
        for schema, use in used.items():
            said = None if schema is None else descriptor(states, schema)
            overlays = [] if schema is None else [overlay.CLASS for overlay in readers.of_schema(schema)]
            if schema is not None and said is not None:
                parts.append(schema)
            mark = _SEALED if schema is None else _mark(said is not None)
            name = printable(said.name) if said else ", ".join(overlays) or None
            rows.append((None if schema is None else short(schema), name, mark, use.count, *_places(use)))
            data.append(
                {
                    "schema_id": schema,
                    "name": said.name if said else None,
                    "version": said.version if said else None,
                    "registered": said is not None,
                    "overlays": overlays,
                    "count": use.count,
                    "first": {"epoch": use.first.epoch, "stream_seq": use.first.stream_seq},
                    "last": {"epoch": use.last.epoch, "stream_seq": use.last.stream_seq},
                }
            )
        columns = ("schema_id", "name", "registry", "entries", "first", "last")
        told = {"realm_id": look.realm_id, "checked": stream, "schemas": data}
        found = StateAnswer(columns=columns, rows=rows, data=told, parts=tuple(parts))
        return found, await realm_state.basis(asked, look.view, look.reading, found)


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
    """Register schemas of a realm, and see which of them a stream uses.

    A schema is known by 32 bytes, which the header of each message carries. The registry gives them a name.
    """,
)


@options_command(
    RealmSays,
    app,
    "register",
    "veen schema register door.report.v1 --version v1 --doc https://example.org/door-report",
    "veen schema register access.grant.v1 --version v1 --id 3a67…",
)
def register(
    asked: RealmSays,
    name: Annotated[str, typer.Argument(metavar="NAME", help="what it is called")],
    version: Annotated[str, typer.Option("--version", metavar="TEXT", help="its version, as its owner counts")],
    id_: Annotated[
        bytes | None,
        typer.Option("--id", metavar="HEX", help="the 32 bytes", show_default="the hash of the name", parser=schema_id),
    ] = None,
    doc: Annotated[str | None, typer.Option("--doc", metavar="URL", help="where it is described")] = None,
    owner: Annotated[
        bytes | None, typer.Option("--owner", metavar="HEX", help="the key of whose it is", parser=public_key)
    ] = None,
) -> None:
    """Register a schema, or say something else of one that is registered."""
    from veen.cli.realm import admin_event, realm_state
    from veen.overlays.admin import schemas

    if not name:
        raise Misuse("a schema has a name", "give NAME, like door.report.v1")

    def make(look: "Looked") -> "list[Saying]":
        states = look.reading.states
        event = schemas.describe(states, name, version, ts=look.now, schema_id=id_, doc_url=doc, owner=owner)
        others = [one for one in schemas.by_name(states, name) if one.schema_id != event.schema_id]
        remark = None
        if not event.fits():
            remark = "the id does not follow from the name: nobody can tell from the name which schema is meant"
        elif others:
            remark = f"another schema has that name: {others[0].schema_id.hex()}"
        shown: dict[str, output.Value] = {"schema_id": event.schema_id, "name": name, "version": version}
        data = {"realm_id": look.realm_id, **shown, "doc_url": doc, "owner": owner, "ts": event.ts}
        return [admin_event.Saying(event, event.schema_id, shown, {**data, "name_fits": event.fits()}, remark)]

    admin_event.say(asked, realm_state.REGISTRY, make)


@options_command(RealmReads, app, "show", "veen schema show door.report.v1", "veen schema show 3a67… --prove")
def show(
    asked: RealmReads, name: Annotated[str, typer.Argument(metavar="NAME|HEX", help="its name, or its 32 bytes")]
) -> None:
    """Show what is registered of a schema, and which overlays read it."""
    from veen.cli.kit import output, read_state, render_state
    from veen.cli.kit.exit_status import hinted
    from veen.cli.realm import admin_event, realm_state
    from veen.core import Unavailable, naming
    from veen.overlays import registry
    from veen.overlays.admin import schemas

    def look(here: "Looked") -> "StateAnswer":
        states = here.reading.states
        named = admin_event.hex_id(name)
        competing = [] if named else list(schemas.by_name(states, name))
        part = named or (competing[0].schema_id if competing else naming.schema_id(name))
        state = states.get(part)
        readers = [overlay.CLASS for overlay in registry().of_schema(part)]
        if state is None:
            known = f"{', '.join(readers)} read it all the same" if readers else "veen schema list shows those that are"
            raise hinted(Unavailable(f"no schema {name!r} is registered"), known)
        plain = schemas.SCHEMAS.plain(part, state)
        facts = {name: render_state.plain_cell(value) for name, value in plain.items()}
        facts |= {"schema_id": part, "ts": output.moment(state[0].event.ts), "hub_ts": output.moment(state[0].hub_ts)}
        return read_state.StateAnswer(
            facts={**facts, "read by": ", ".join(readers) or None},
            data={"realm_id": here.realm_id, **plain, "overlays": readers},
            parts=(part,),
            remarks=tuple(f"{one.schema_id.hex()} is called the same" for one in competing[1:]),
        )

    realm_state.answer(asked, realm_state.REGISTRY, look)


@options_command(RealmReads, app, "list", "veen schema list", "veen schema list --at 12 --json")
def list_(asked: RealmReads) -> None:
    """List the schemas that are registered."""
    from veen.cli.kit import read_state, render_state
    from veen.cli.kit.sanitize import printable, short
    from veen.cli.realm import realm_state
    from veen.overlays.admin.schemas import SCHEMAS

    def look(here: "Looked") -> "StateAnswer":
        states = dict(here.reading.states)
        by_name = sorted(states, key=lambda part: (states[part][0].event.name, part))
        rows, data = [], []
        for part in by_name:
            said = states[part][0].event
            where = None if said.doc_url is None else printable(said.doc_url)
            rows.append((printable(said.name), printable(said.version), short(part), said.fits(), where))
            data.append(render_state.plain_json(SCHEMAS.plain(part, states[part])))
        columns = ("name", "version", "schema_id", "name fits", "doc")
        told = {"realm_id": here.realm_id, "schemas": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=told, parts=tuple(by_name))

    realm_state.answer(asked, realm_state.REGISTRY, look)


@options_command(RealmReads, app, "check", "veen schema check doors", "veen schema check doors --data-dir hub --json")
def check(
    asked: RealmReads, stream: Annotated[str, typer.Argument(metavar="STREAM", help="the stream to look at")]
) -> None:
    """Tell which schemas a stream uses, and which of them are registered.

    With --at, as far as that entry of the stream, and as the registry is now.
    """
    from veen.cli.kit import output_files, render_state
    from veen.cli.realm import realm_state

    if asked.out is not None:
        output_files.check_new(asked.out)

    async def work(source: "EntrySource") -> "tuple[StateAnswer, StateBasis]":
        return await check_usage(source, asked, stream)

    found, basis = realm_state.visiting(asked, work)
    render_state.show_answer(found, basis, asked)


def _stream() -> "AdminStream[Records, Records]":
    from veen.cli.realm import realm_state

    return realm_state.REGISTRY


faults_command.add_for_realm(app, "veen schema", _stream)
