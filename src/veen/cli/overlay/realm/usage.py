"""Which schemas a stream uses, beside what is registered. Each entry is verified, and opened where that is possible."""

from dataclasses import replace

from veen.cli import output
from veen.cli.client.showing import printable, short
from veen.cli.output import Marked, Tone
from veen.cli.overlay.asking import Answer, Basis, need_reader_key, place
from veen.cli.overlay.realm import realm
from veen.cli.overlay.realm.options import RealmReads
from veen.core import Mmr, naming
from veen.overlays import At, registry
from veen.overlays.admin.schemas import Use, descriptor, uses
from veen.state.source import Source, folded
from veen.state.view import shown

_SEALED = Marked("cannot be opened", Tone.WARN)


async def check(source: Source, asked: RealmReads, stream: str) -> tuple[Answer, Basis]:
    """The schemas that a stream uses, in the order in which they came."""
    need_reader_key(source.folder, stream)
    async with realm.looking(source, replace(asked, at=None), realm.REGISTRY) as look:
        used = await _uses(source, naming.stream_id(stream), place(asked.at, look.view))
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
        found = Answer(columns=columns, rows=rows, data=told, parts=tuple(parts))
        return found, await realm.basis(asked, look.view, look.reading, found)


async def _uses(source: Source, stream_id: bytes, last: At | None) -> dict[bytes | None, Use]:
    found: dict[bytes | None, Use] = {}
    for epoch in await source.epochs(stream_id, None):
        async for page in source.read(stream_id, epoch, Mmr()):
            found = uses((entry for entry in map(folded, page) if last is None or entry.at <= last), found)
    return found


def _mark(registered: bool) -> Marked:
    return Marked("registered", Tone.GOOD) if registered else Marked("not registered", Tone.WARN)


def _places(use: Use) -> tuple[str, str]:
    return shown(use.first), shown(use.last)
