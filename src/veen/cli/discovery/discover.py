"""`veen discover`: directories of hubs, overlays and services."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.discovery import publish, remote_query
from veen.cli.discovery.directory_view import (
    COLUMNS,
    DirectoryOptions,
    IdArgument,
    KindArgument,
    KindName,
    Region,
    Tags,
    filter_of,
    overlay_of,
    row_of,
    sendable,
    show_directory,
    stream_of,
)
from veen.cli.kit import faults_command, output, read_state, render_state, send_event, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import moment
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import SendOptions, options_command, send_command
from veen.core import Unavailable
from veen.overlays import Event
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

Every: TypeAlias = Annotated[bool, typer.Option("--all", help="also retired and expired ones")]
Name: TypeAlias = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="with this start of the name")]
Method: TypeAlias = Annotated[str | None, typer.Option("--method", metavar="NAME", help="services with this method")]
OverlayId: TypeAlias = Annotated[str | None, typer.Option("--overlay", metavar="HEX", help="with this overlay_id")]
Schema: TypeAlias = Annotated[
    str | None, typer.Option("--schema", metavar="NAME|HEX", help="overlays that use this schema")
]


@options_command(
    DirectoryOptions, app, "list", "veen discover list hub", "veen discover list service --all --at 12 --json"
)
def list_(options: DirectoryOptions, kind: KindArgument, every: Every = False) -> None:
    """List the advertisements that are neither retired nor expired.

    With --at, lists the directory after that entry, at its time. --when names another time.
    """

    def look(reading: Directory, now: int) -> StateAnswer:
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

    show_directory(options, overlay_of(options.publishers), look, stream=stream_of(kind))


@options_command(
    DirectoryOptions,
    app,
    "show",
    "veen discover show hub 4f…a1 --prove --out hub.evidence",
    "veen discover show hub 4f…a1",
)
def show(options: DirectoryOptions, kind: KindArgument, name: IdArgument) -> None:
    """Show one hub, overlay or service, even if it is retired or expired."""

    part = part_of(DescriptorKind(kind), values.id_of(name, f"the id of a {kind}"))

    def look(reading: Directory, now: int) -> StateAnswer:
        record = reading.state(part)
        known = record.advertised
        if known is None and record.retired is None:
            raise hinted(
                Unavailable(f"no {kind} with this id was ever advertised"), f"veen discover list {kind} lists them"
            )
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

    show_directory(options, overlay_of(options.publishers), look, stream=stream_of(kind))


@options_command(
    DirectoryOptions,
    app,
    "query",
    "veen discover query hub --region ap-northeast-1 --tag public",
    "veen discover query service --method charge --ask disc.requests",
)
def query(
    options: DirectoryOptions,
    kind: KindArgument,
    name: Name = None,
    method: Method = None,
    overlay: OverlayId = None,
    schema: Schema = None,
    region: Region = None,
    tag: Tags = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="at most N results")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, metavar="N", help="skip the first N results")] = None,
    ask: remote_query.AskOption = None,
    timeout: remote_query.Timeout = 30,
) -> None:
    """Find advertisements with the filters of disc.query.

    Reads and folds the directory locally. With --ask, sends the query as a call on that stream, and the server of the
    stream answers; the result is then only as trustworthy as the server.
    """

    wanted = filter_of(kind, name=name, method=method, overlay=overlay, schema=schema, region=region, tags=tag)
    made = DirectoryQuery.of(wanted, limit, offset)
    if ask is None:
        show_directory(
            options, overlay_of(options.publishers), lambda reading, now: _found(reading, kind, made, now),
            stream=stream_of(kind),
        )  # fmt: skip
        return
    folded = (
        options.data_dir,
        options.at,
        options.when,
        options.publishers,
        options.out,
        options.prove or None,
        options.stream,
    )
    if any(one is not None for one in folded):
        raise Misuse(
            "--ask cannot be combined with --data-dir, --at, --when, --publisher, --out, --prove or --stream",
            "the server answers from its own current directory; leave out --ask or the others",
        )
    remote_query.ask(options, kind, made, ask, timeout)


def _found(reading: Directory, kind: KindName, made: DirectoryQuery, now: int) -> StateAnswer:
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
    options: SendOptions,
    kind: KindArgument,
    name: IdArgument,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="the reason, readable by anyone")
    ] = None,
) -> None:
    """Withdraw an advertisement until it is published again."""

    id_ = values.id_of(name, f"the id of a {kind}")
    event = sendable(RETIRE[DescriptorKind(kind)](id_, reason))

    def make(reading: Directory) -> Event:
        if reading.state(part_of(DescriptorKind(kind), id_)).advertised is None:
            raise hinted(
                Unavailable(f"no {kind} with this id was ever advertised"), f"veen discover list {kind} lists them"
            )
        return event

    shown: dict[str, output.Value] = {f"{kind}_id": id_}
    send_event.send_checked(options, DISCOVERY, make, shown, stream=stream_of(kind), blind=event)


remote_query.add(app)


faults_command.add(app, "veen discover", DISCOVERY)


def _of_kind(reading: Directory, kind: KindName) -> list[tuple[bytes, DirectoryRecord]]:
    wanted = DescriptorKind(kind)
    return [(part, record) for part, record in reading.states.items() if kind_and_id(part)[0] is wanted]


def _state(record: DirectoryRecord, now: int) -> str:
    if record.retired is not None:
        return "retired"
    return "live" if record.live(now) else "expired"


def _plain(part: bytes, record: DirectoryRecord) -> dict[str, object]:
    shown = render_state.plain_json(DISCOVERY.plain(part, record))
    assert isinstance(shown, dict)
    return shown
