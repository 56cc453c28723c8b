"""`veen schema`: which schemas there are, and which of them a stream uses."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface.command import Misuse, group
from veen.cli.overlay import faults
from veen.cli.overlay.declaring import taking
from veen.cli.overlay.realm.options import RealmReads, RealmSays, schema_id
from veen.cli.values import public_key

if TYPE_CHECKING:
    from veen.cli import output
    from veen.cli.overlay.asking import Answer, Basis
    from veen.cli.overlay.realm.realm import AdminStream, Look
    from veen.cli.overlay.realm.saying import Saying
    from veen.overlays.admin.records import Record
    from veen.overlays.admin.schemas import Descriptor
    from veen.state.source import Source

    Records: TypeAlias = tuple[Record[Descriptor], ...]
    Looked: TypeAlias = Look[Records, Records]

app = group(
    "schema",
    """Register schemas of a realm, and see which of them a stream uses.

    A schema is known by 32 bytes, which the header of each message carries. The registry gives them a name.
    """,
)


@taking(
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
    from veen.cli.overlay.realm import realm, saying
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
        return [saying.Saying(event, event.schema_id, shown, {**data, "name_fits": event.fits()}, remark)]

    saying.say(asked, realm.REGISTRY, make)


@taking(RealmReads, app, "show", "veen schema show door.report.v1", "veen schema show 3a67… --prove")
def show(
    asked: RealmReads, name: Annotated[str, typer.Argument(metavar="NAME|HEX", help="its name, or its 32 bytes")]
) -> None:
    """Show what is registered of a schema, and which overlays read it."""
    from veen.cli import output
    from veen.cli.failures import hinted
    from veen.cli.overlay import asking, telling
    from veen.cli.overlay.realm import realm, targets
    from veen.core import Unavailable, naming
    from veen.overlays import registry
    from veen.overlays.admin import schemas

    def look(here: "Looked") -> "Answer":
        states = here.reading.states
        named = targets.hex_id(name)
        competing = [] if named else list(schemas.by_name(states, name))
        part = named or (competing[0].schema_id if competing else naming.schema_id(name))
        state = states.get(part)
        readers = [overlay.CLASS for overlay in registry().of_schema(part)]
        if state is None:
            known = f"{', '.join(readers)} read it all the same" if readers else "veen schema list shows those that are"
            raise hinted(Unavailable(f"no schema {name!r} is registered"), known)
        plain = schemas.SCHEMAS.plain(part, state)
        facts = {name: telling.plain_cell(value) for name, value in plain.items()}
        facts |= {"schema_id": part, "ts": output.moment(state[0].said.ts), "hub_ts": output.moment(state[0].hub_ts)}
        return asking.Answer(
            facts={**facts, "read by": ", ".join(readers) or None},
            data={"realm_id": here.realm_id, **plain, "overlays": readers},
            parts=(part,),
            remarks=tuple(f"{one.schema_id.hex()} is called the same" for one in competing[1:]),
        )

    realm.answer(asked, realm.REGISTRY, look)


@taking(RealmReads, app, "list", "veen schema list", "veen schema list --at 12 --json")
def list_(asked: RealmReads) -> None:
    """List the schemas that are registered."""
    from veen.cli.client.showing import printable, short
    from veen.cli.overlay import asking, telling
    from veen.cli.overlay.realm import realm
    from veen.overlays.admin.schemas import SCHEMAS

    def look(here: "Looked") -> "Answer":
        states = dict(here.reading.states)
        by_name = sorted(states, key=lambda part: (states[part][0].said.name, part))
        rows, data = [], []
        for part in by_name:
            said = states[part][0].said
            where = None if said.doc_url is None else printable(said.doc_url)
            rows.append((printable(said.name), printable(said.version), short(part), said.fits(), where))
            data.append(telling.plain_json(SCHEMAS.plain(part, states[part])))
        columns = ("name", "version", "schema_id", "name fits", "doc")
        told = {"realm_id": here.realm_id, "schemas": data}
        return asking.Answer(columns=columns, rows=rows, data=told, parts=tuple(by_name))

    realm.answer(asked, realm.REGISTRY, look)


@taking(RealmReads, app, "check", "veen schema check doors", "veen schema check doors --data-dir hub --json")
def check(
    asked: RealmReads, stream: Annotated[str, typer.Argument(metavar="STREAM", help="the stream to look at")]
) -> None:
    """Tell which schemas a stream uses, and which of them are registered.

    With --at, as far as that entry of the stream, and as the registry is now.
    """
    from veen.cli.client import files
    from veen.cli.overlay import telling
    from veen.cli.overlay.realm import realm, usage

    if asked.out is not None:
        files.check_new(asked.out)

    async def work(source: "Source") -> "tuple[Answer, Basis]":
        return await usage.check(source, asked, stream)

    found, basis = realm.visiting(asked, work)
    telling.tell(found, basis, asked)


def _stream() -> "AdminStream[Records, Records]":
    from veen.cli.overlay.realm import realm

    return realm.REGISTRY


faults.add_of_realm(app, "veen schema", _stream)
