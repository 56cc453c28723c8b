"""`veen kv`: keys and values on a stream, with their full history."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import group
from veen.cli.kit import faults_command, output, read_state, render_state, sanitize, send_event, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import (
    ExpiresIn,
    FollowOptions,
    ReadOptions,
    SendOptions,
    follow_command,
    read_command,
    send_command,
)
from veen.core import Unavailable
from veen.overlays import Applied, kv
from veen.overlays.crdt import Register
from veen.overlays.kv import KV, Write
from veen.state.state_view import StateAt, shown
from veen.state.watch import WatchedEntry

KvReading: TypeAlias = StateAt[Register, Register]


app = group(
    "kv",
    """Store keys and values on a stream, and read them at any point of their history.

    A key, a value or a prefix is text, or bytes after hex:. Each value is an entry of the log, so every reader can see
    which client wrote it, when, and what it replaced.
    """,
)

Key: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="the key: text, or hex: and its bytes")]
Prefix: TypeAlias = Annotated[
    str, typer.Argument(metavar="PREFIX", help="only keys with this prefix", show_default="all keys")
]
Ts: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--ts", metavar="N", min=0, help="the time of the write; the greatest wins", show_default="the current one"
    ),
]


@read_command(app, "get", "veen kv get door --stream settings", "veen kv get door --at 12 --prove --out door.evidence")
def get(options: ReadOptions, key: Key) -> None:
    """Show the value of a key, now or after an earlier entry.

    Once the stream has been read, any key at any entry is looked up without reading the stream again.
    """

    name = values.data_of(key)

    def look(reading: KvReading) -> StateAnswer:
        found = reading.state(name)
        if found.value is None:
            hint = "veen kv history shows its earlier values" if found.stream_seq else "veen kv list lists the keys"
            raise hinted(Unavailable(f"{key!r} has no value at entry {shown(reading.at)}"), hint)
        text = sanitize.text_of(found.value)
        data = {**render_state.key_data(name), "text": text, "value": found.value, "ts": found.ts}
        written = {"epoch": found.epoch, "stream_seq": found.stream_seq}
        return read_state.StateAnswer(
            text=sanitize.line_of(found.value), data={**data, "written": written}, parts=(name,)
        )

    read_state.show_state(options, KV, look)


@read_command(app, "list", "veen kv list --stream settings", "veen kv list door/ --at 12 --json")
def list_(options: ReadOptions, prefix: Prefix = "") -> None:
    """List the keys that have a value, with their values."""

    def look(reading: KvReading) -> StateAnswer:
        states = dict(reading.states)
        found = [(key, states[key]) for key in kv.keys(states, values.data_of(prefix))]
        rows = [(render_state.part_name(key), sanitize.line_of(one.value or b""), one.stream_seq) for key, one in found]
        data = [
            {
                **render_state.key_data(key),
                "text": sanitize.text_of(one.value or b""),
                "value": one.value,
                "stream_seq": one.stream_seq,
            }
            for key, one in found
        ]
        parts = tuple(key for key, _ in found)
        return read_state.StateAnswer(columns=("key", "value", "entry"), rows=rows, data={"keys": data}, parts=parts)

    read_state.show_state(options, kv.KV, look)


@read_command(app, "history", "veen kv history door --stream settings", "veen kv history door --json")
def history(options: ReadOptions, key: Key) -> None:
    """Show every value that a key ever had, with its writer and time."""

    name = values.data_of(key)

    def look(reading: KvReading) -> StateAnswer:
        rows, data, steps = [], [], tuple(reading.history(name))
        for step in steps:
            value = step.event.value if isinstance(step.event, Write) else None
            written = shown(step.at), output.moment(step.entry.hub_ts), sanitize.short(step.entry.client_id)
            rows.append((*written, "(deleted)" if value is None else sanitize.line_of(value)))
            text = None if value is None else sanitize.text_of(value)
            data.append({**render_state.step_data(step), "value": value, "text": text, "deleted": value is None})
        columns = ("entry", "hub_ts", "client_id", "value")
        document = {**render_state.key_data(name), "history": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=document, parts=(name,), steps=steps)

    read_state.show_state(options, KV, look)


@send_command(app, "put", "veen kv put door open --stream settings", "veen kv put door @photo.jpg --cap write.cap")
def put(
    options: SendOptions,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="text, hex: and bytes, or @ and a file")],
    ts: Ts = None,
    expires_in: ExpiresIn = None,
) -> None:
    """Set the value of a key, and verify the hub's receipt.

    Without --ts the order of the log decides, so this write wins. With --blind and without --ts, its time is 0.
    """

    name, content = values.data_of(key), values.content_of(value)
    send_event.send_checked(
        options,
        kv.KV,
        lambda reading: kv.put(reading.states, name, content, ts),
        {"key": render_state.part_name(name)},
        data=render_state.key_data(name),
        expires_in=expires_in,
        blind=kv.Write(name, ts or 0, content),
    )


@send_command(app, "delete", "veen kv delete door --stream settings", "veen kv delete door --json")
def delete(options: SendOptions, key: Key, ts: Ts = None) -> None:
    """Delete the value of a key.

    Its earlier values stay in its history.
    """

    name = values.data_of(key)
    send_event.send_checked(
        options,
        kv.KV,
        lambda reading: kv.delete(reading.states, name, ts),
        {"key": render_state.part_name(name)},
        data=render_state.key_data(name),
        blind=kv.Delete(name, ts or 0),
    )


@follow_command(app, "watch", "veen kv watch --stream settings", "veen kv watch door/ --json")
def watch(options: FollowOptions, prefix: Prefix = "") -> None:
    """Show changes of keys as they arrive, until ctrl-c."""

    wanted = values.data_of(prefix)

    def changes(seen: WatchedEntry[Register]) -> list[render_state.ChangeLine]:
        lines = []
        for outcome in seen.outcomes:
            change = kv.change(outcome) if isinstance(outcome, Applied) else None
            if change is None or not change.key.startswith(wanted):
                continue
            after = "(deleted)" if change.after is None else sanitize.line_of(change.after)
            data = {**render_state.key_data(change.key), "before": change.before, "after": change.after}
            cells = (render_state.part_name(change.key), after)
            lines.append(render_state.ChangeLine(cells, {**data, **render_state.step_data(change.step)}))
        return lines

    render_state.follow(options, kv.KV, changes)


faults_command.add(app, "veen kv", KV)
