"""`veen op`: send, list and trace operations of the nine profiles, and check their rules."""

from typing import Annotated

import typer

from plumbing.cli.command import command, group
from veen.cli.kit import faults_command, output, read_state, render_state
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import short
from veen.cli.kit.state_options import ReadOptions, read_command
from veen.cli.op import field_parser, op_capability, op_check, op_send
from veen.cli.op.op_check import OperationId, OpReading
from veen.overlays.event import plain_wire
from veen.overlays.operations.operation_index import BY_NAME, OPERATIONS, LoggedOperation, operations, plain
from veen.overlays.operations.operation_index import trace as traced
from veen.state.state_view import shown

app = group(
    "op",
    """Send operations, trace what they refer to, and check the rules of their profiles.

    Payments, access, delegated executions, agreements, publications, state checkpoints, recoveries, query audits and
    mirrors: each is an entry of a stream, with an operation id that other operations can name. veen fold --overlay
    paid.operation shows the state of a stream's payments, and likewise for every profile.
    """,
)
op_send.add(app)


@read_command(app, "list", "veen op list --stream ops", "veen op list --kind paid.operation --at 100 --json")
def list_(
    options: ReadOptions,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="only this kind", show_default="all kinds"),
    ] = None,
) -> None:
    """List the operations of a stream, in log order."""

    wanted = {field_parser.kind_of(kind) for kind in kinds or ()}

    def look(reading: OpReading) -> StateAnswer:
        found = [one for one in operations(reading.states.values()) if not wanted or type(one.event) in wanted]
        return read_state.StateAnswer(
            columns=("entry", "operation", "kind", "hub_ts", "parent", "body"),
            rows=[_row(one) for one in found],
            data={"operations": [_data(one) for one in found]},
            parts=tuple(one.operation_id for one in found),
        )

    read_state.show_state(options, OPERATIONS, look)


@read_command(app, "show", "veen op show 3f7a0c… --stream ops", "veen op show 3f7a0c… --prove --out paid.evidence")
def show(options: ReadOptions, operation: OperationId) -> None:
    """Show one operation: its fields, its sender and its place."""

    def look(reading: OpReading) -> StateAnswer:
        one = op_check.found(reading, operation)
        entry = one.entry
        facts: dict[str, output.Value] = {
            "operation_id": one.operation_id,
            "kind": one.kind,
            "entry": shown(one.at),
            "hub_ts": output.moment(entry.hub_ts),
            "client_id": entry.client_id,
            "auth_ref": entry.auth_ref,
            "msg_id": entry.msg_id,
        }
        for name, value in plain_wire(one.event).items():
            facts[name] = value if isinstance(value, bytes) else render_state.plain_cell(value)
        return read_state.StateAnswer(facts=facts, data=_data(one), parts=(one.operation_id,))

    read_state.show_state(options, OPERATIONS, look)


@read_command(app, "trace", "veen op trace 3f7a0c… --stream ops", "veen op trace 3f7a0c… --json")
def trace(options: ReadOptions, operation: OperationId) -> None:
    """Show the operations that an operation refers to, and those that refer to it.

    The operations it names, directly or indirectly, are listed above it with a negative step; those that name it below.
    """

    def look(reading: OpReading) -> StateAnswer:
        start = op_check.found(reading, operation).operation_id
        links = traced(operations(reading.states.values()), start)
        rows: list[tuple[output.Value, ...]] = [
            (f"{link.distance:+d}" if link.distance else "0", *_line(link.operation_id, link.found)) for link in links
        ]
        data = [
            {"distance": link.distance, "operation_id": link.operation_id}
            | ({"found": False} if link.found is None else {"found": True, **_data(link.found)})
            for link in links
        ]
        held = tuple(link.operation_id for link in links if link.found is not None)
        columns = ("step", "entry", "operation", "kind", "body")
        return read_state.StateAnswer(columns=columns, rows=rows, data={"trace": data}, parts=held)

    read_state.show_state(options, OPERATIONS, look)


op_check.add(app)
op_capability.add(app)
faults_command.add(app, "veen op", OPERATIONS)


@command(app, "kinds", "veen op kinds", "veen op kinds paid.operation")
def kinds(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="only this one, with its fields")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the kinds of operation, or the fields of one."""

    if kind is None:
        rows = [(name, op_send.overlay_of(event).CLASS, event.SCHEMA) for name, event in BY_NAME.items()]
        output.table(("kind", "overlay", "schema"), rows, as_json)
        return
    listed = [
        (one.name, type(one).__name__, "optional" if one.optional else "required")
        for one in field_parser.kind_of(kind).LAYOUT.kinds
    ]
    words = {"Bstr": "64 hex digits, or name: and a name", "Uint": "number", "Text": "text", "ListOf": "list"}
    output.table(("field", "value", "when"), [(a, words.get(b, "any JSON"), c) for a, b, c in listed], as_json)


def _id(operation_id: bytes) -> output.Value:
    return short(operation_id)


def _body(one: LoggedOperation) -> output.Value:
    return render_state.plain_cell(plain_wire(one.event))


def _row(one: LoggedOperation) -> tuple[output.Value, ...]:
    parent = None if one.event.parent is None else _id(one.event.parent)
    return shown(one.at), _id(one.operation_id), one.kind, output.moment(one.entry.hub_ts), parent, _body(one)


def _line(operation_id: bytes, found: LoggedOperation | None) -> tuple[output.Value, ...]:
    if found is None:
        return None, _id(operation_id), output.Marked("not in this stream", output.Tone.WARN), None
    return shown(found.at), _id(operation_id), found.kind, _body(found)


def _data(one: LoggedOperation) -> dict[str, object]:
    shown = render_state.plain_json(plain(one))
    assert isinstance(shown, dict)
    return {**shown, "epoch": one.entry.epoch, "msg_id": one.entry.msg_id, "parent": one.event.parent}
