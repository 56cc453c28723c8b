"""`veen discover`: which hubs, overlays and services there are."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.discovery import publish, remote_query
from veen.cli.discovery.directory_view import (
    COLUMNS,
    IdArgument,
    KindArgument,
    KindName,
    Looks,
    Region,
    Tags,
    filter_of,
    look_at,
    overlay_of,
    row_of,
    sendable,
    stream_of,
)
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import SendOptions, options_command, send_command

if TYPE_CHECKING:
    from veen.cli.kit import output
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays import AnyOverlay, Event
    from veen.overlays.discovery import DirectoryQuery, DirectoryRecord
    from veen.state.state_at import StateAt

    Directory: TypeAlias = StateAt[DirectoryRecord, DirectoryRecord]

app = group(
    "discover",
    """Find hubs, overlays and services, and let others find yours.

    A directory is a stream like any other: disc.hubs.v1, disc.overlays.v1 and disc.services.v1, or the one that
    --stream names. What it says is a hint. Whom to believe is your own decision: see --pin, and veen connect.
    """,
)
app.add_typer(publish.app)

Every: TypeAlias = Annotated[bool, typer.Option("--all", help="also what is retired or has expired")]
Name: TypeAlias = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="whose name starts so")]
Method: TypeAlias = Annotated[str | None, typer.Option("--method", metavar="NAME", help="services with this method")]
OverlayId: TypeAlias = Annotated[str | None, typer.Option("--overlay", metavar="HEX", help="with this overlay_id")]
Schema: TypeAlias = Annotated[
    str | None, typer.Option("--schema", metavar="NAME|HEX", help="overlays that use this schema")
]


@options_command(Looks, app, "list", "veen discover list hub", "veen discover list service --all --at 12 --json")
def list_(asked: Looks, kind: KindArgument, every: Every = False) -> None:
    """List what is advertised, neither retired nor expired.

    With --at, as it was then: what had not expired at the time of that entry. --when asks for any other time.
    """
    from veen.cli.kit import read_state
    from veen.cli.kit.output import moment

    def look(reading: "Directory", now: int) -> "StateAnswer":
        rows: list[tuple[output.Value, ...]] = []
        parts, data = [], []
        for part, record in sorted(_of_kind(reading, kind)):
            if record.advertised is None or not (every or record.live(now)):
                continue
            ends = moment(record.advertised.expires_at)
            rows.append((*row_of(record.advertised.descriptor), _state(record, now), ends))
            data.append({**_plain(part, record), "state": _state(record, now)})
            parts.append(part)
        columns = (*COLUMNS[kind], "state", "expires_at")
        return read_state.StateAnswer(
            columns=columns, rows=rows, data={f"{kind}s": data, "now": now}, parts=tuple(parts)
        )

    look_at(asked, overlay_of(asked.publishers), look, stream=stream_of(kind))


@options_command(
    Looks, app, "show", "veen discover show hub 4f…a1 --prove --out hub.evidence", "veen discover show hub 4f…a1"
)
def show(asked: Looks, kind: KindArgument, name: IdArgument) -> None:
    """Show one hub, overlay or service, retired and expired or not."""
    from veen.cli.kit import output, read_state, render_state, values
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.discovery import DescriptorKind, part_of, plain_wire

    part = part_of(DescriptorKind(kind), values.id_of(name, f"the id of a {kind}"))

    def look(reading: "Directory", now: int) -> "StateAnswer":
        record = reading.state(part)
        known = record.advertised
        if known is None and record.retired is None:
            raise hinted(Unavailable(f"no {kind} with this id was ever advertised"), f"veen discover list {kind}")
        facts: dict[str, output.Value] = {}
        if known is not None:
            facts |= {one: render_state.plain_cell(value) for one, value in plain_wire(known.descriptor).items()}
            facts |= {"publisher": known.publisher, "mirrored": known.mirrored}
            facts |= {"entry": known.stream_seq, "expires_at": output.moment(known.expires_at)}
        facts["state"] = _state(record, now)
        if record.retired is not None:
            facts |= {"retired by": record.retired.publisher, "reason": render_state.plain_cell(record.retired.reason)}
        data = {**_plain(part, record), "state": _state(record, now), "now": now}
        return read_state.StateAnswer(facts=facts, data=data, parts=(part,))

    look_at(asked, overlay_of(asked.publishers), look, stream=stream_of(kind))


@options_command(
    Looks,
    app,
    "query",
    "veen discover query hub --region ap-northeast-1 --tag public",
    "veen discover query service --method charge --ask disc.requests",
)
def query(
    asked: Looks,
    kind: KindArgument,
    name: Name = None,
    method: Method = None,
    overlay: OverlayId = None,
    schema: Schema = None,
    region: Region = None,
    tag: Tags = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="at most so many")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, metavar="N", help="without the first so many")
    ] = None,
    ask: remote_query.AskOption = None,
    timeout: remote_query.Timeout = 30,
) -> None:
    """Find what fits, by the filters of disc.query.

    The directory is read and folded here. With --ask the query goes to a discovery hub instead, as a call on that
    stream, and whoever serves it answers; then what is found is that server's word.
    """
    from veen.overlays.discovery import DirectoryQuery

    wanted = filter_of(kind, name=name, method=method, overlay=overlay, schema=schema, region=region, tags=tag)
    made = DirectoryQuery.of(wanted, limit, offset)
    if ask is None:
        look_at(
            asked, overlay_of(asked.publishers), lambda reading, now: _found(reading, kind, made, now),
            stream=stream_of(kind),
        )  # fmt: skip
        return
    folded = (asked.data_dir, asked.at, asked.when, asked.publishers, asked.out, asked.prove or None, asked.stream)
    if any(one is not None for one in folded):
        raise Misuse("--ask asks a server, which looks at its own directory now", "leave out --ask, or the rest")
    remote_query.ask(asked, kind, made, ask, timeout)


def _found(reading: "Directory", kind: KindName, made: "DirectoryQuery", now: int) -> "StateAnswer":
    from veen.overlays.discovery import evaluate, part_of

    states = dict(_of_kind(reading, kind))
    result = evaluate(states, made, now)
    parts = tuple(part_of(one.KIND, one.id) for one in result.results)
    return remote_query.answer_of(kind, result, now, parts)


@send_command(
    app,
    "retire",
    "veen discover retire hub 4f…a1 --reason moved",
    "veen discover retire service 4f…a1 --stream my.directory",
)
def retire(
    asked: SendOptions,
    kind: KindArgument,
    name: IdArgument,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for whoever asks")] = None,
) -> None:
    """Take an advertisement back.

    Nobody finds it any more, until it is published again.
    """
    from veen.cli.kit import send_event, values
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.discovery import DISCOVERY, RETIRE, DescriptorKind, part_of

    id_ = values.id_of(name, f"the id of a {kind}")
    event = sendable(RETIRE[DescriptorKind(kind)](id_, reason))

    def make(reading: "Directory") -> "Event":
        if reading.state(part_of(DescriptorKind(kind), id_)).advertised is None:
            raise hinted(Unavailable(f"no {kind} with this id was ever advertised"), f"veen discover list {kind}")
        return event

    shown: dict[str, output.Value] = {f"{kind}_id": id_}
    send_event.send_checked(asked, DISCOVERY, make, shown, stream=stream_of(kind), blind=event)


remote_query.add(app)


def _overlay() -> "AnyOverlay":
    from veen.overlays.discovery import DISCOVERY

    return DISCOVERY


faults_command.add(app, "veen discover", _overlay)


def _of_kind(reading: "Directory", kind: KindName) -> "list[tuple[bytes, DirectoryRecord]]":
    from veen.overlays.discovery import DescriptorKind, kind_and_id

    wanted = DescriptorKind(kind)
    return [(part, record) for part, record in reading.states.items() if kind_and_id(part)[0] is wanted]


def _state(record: "DirectoryRecord", now: int) -> str:
    if record.retired is not None:
        return "retired"
    return "live" if record.live(now) else "expired"


def _plain(part: bytes, record: "DirectoryRecord") -> dict[str, object]:
    from veen.cli.kit import render_state
    from veen.overlays.discovery import DISCOVERY

    shown = render_state.plain_json(DISCOVERY.plain(part, record))
    assert isinstance(shown, dict)
    return shown
