"""`veen kv`: keys and values that anyone with the reader key can audit."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import group
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import (
    ExpiresIn,
    FollowOptions,
    ReadOptions,
    SendOptions,
    follow_command,
    read_command,
    send_command,
)

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays.crdt.lww import Register
    from veen.overlays.kv import Kv
    from veen.state.state_at import StateAt
    from veen.state.watch import WatchedEntry

    KvReading: TypeAlias = StateAt[Register, Register]

app = group(
    "kv",
    """Keep keys and values on a stream, at any moment of their history.

    A key, a value or a prefix is text; after hex: it is bytes. Each value is an entry of the log, so whoever has the
    reader key can say who wrote it, when, and what was there before.
    """,
)

Key: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="which key: text, or hex: and its bytes")]
Prefix: TypeAlias = Annotated[
    str, typer.Argument(metavar="PREFIX", help="only keys that start with it", show_default="all keys")
]
Ts: TypeAlias = Annotated[
    int | None,
    typer.Option("--ts", metavar="N", min=0, help="the write's time; the greatest wins", show_default="that there is"),
]


def _overlay() -> "Kv":
    from veen.overlays.kv import KV

    return KV


@read_command(app, "get", "veen kv get door --stream settings", "veen kv get door --at 12 --prove --out door.evidence")
def get(asked: ReadOptions, key: Key) -> None:
    """Show the value of a key, now or at any moment before.

    Once the stream has been read, any key at any entry is found without reading it again.
    """
    from veen.cli.kit import read_state, render_state, sanitize, values
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.kv import KV
    from veen.state.state_view import shown

    name = values.data_of(key)

    def look(reading: "KvReading") -> "StateAnswer":
        found = reading.state(name)
        if found.value is None:
            hint = "veen kv history shows what it had before" if found.stream_seq else "veen kv list shows the keys"
            raise hinted(Unavailable(f"{key!r} has no value at entry {shown(reading.at)}"), hint)
        text = sanitize.text_of(found.value)
        data = {**render_state.key_data(name), "text": text, "value": found.value, "ts": found.ts}
        written = {"epoch": found.epoch, "stream_seq": found.stream_seq}
        return read_state.StateAnswer(
            text=sanitize.line_of(found.value), data={**data, "written": written}, parts=(name,)
        )

    read_state.show_state(asked, KV, look)


@read_command(app, "list", "veen kv list --stream settings", "veen kv list door/ --at 12 --json")
def list_(asked: ReadOptions, prefix: Prefix = "") -> None:
    """List the keys that have a value, and their values."""
    from veen.cli.kit import read_state, render_state, sanitize, values
    from veen.overlays import kv

    def look(reading: "KvReading") -> "StateAnswer":
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

    read_state.show_state(asked, kv.KV, look)


@read_command(app, "history", "veen kv history door --stream settings", "veen kv history door --json")
def history(asked: ReadOptions, key: Key) -> None:
    """Show every value that a key ever had, who wrote it, and when."""
    from veen.cli.kit import output, read_state, render_state, sanitize, values
    from veen.overlays.kv import KV, Write
    from veen.state.state_view import shown

    name = values.data_of(key)

    def look(reading: "KvReading") -> "StateAnswer":
        rows, data, steps = [], [], tuple(reading.history(name))
        for step in steps:
            value = step.event.value if isinstance(step.event, Write) else None
            when, who = output.moment(step.entry.hub_ts), sanitize.short(step.entry.client_id)
            rows.append((shown(step.at), when, who, "(deleted)" if value is None else sanitize.line_of(value)))
            text = None if value is None else sanitize.text_of(value)
            data.append({**render_state.step_data(step), "value": value, "text": text, "deleted": value is None})
        columns, told = ("entry", "hub_ts", "client_id", "value"), {**render_state.key_data(name), "history": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=told, parts=(name,), steps=steps)

    read_state.show_state(asked, KV, look)


@send_command(app, "put", "veen kv put door open --stream settings", "veen kv put door @photo.jpg --cap leave.cap")
def put(
    asked: SendOptions,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="text, hex: and bytes, or @ and a file")],
    ts: Ts = None,
    expires_in: ExpiresIn = None,
) -> None:
    """Give a key a value, and verify the hub's receipt.

    Without --ts the order of the log decides, and this write comes last. With --blind and without --ts, it is written
    under the time 0.
    """
    from veen.cli.kit import render_state, send_event, values
    from veen.overlays import kv

    name, content = values.data_of(key), values.content_of(value)
    send_event.send_checked(
        asked,
        kv.KV,
        lambda reading: kv.put(reading.states, name, content, ts),
        {"key": render_state.part_name(name)},
        data=render_state.key_data(name),
        expires_in=expires_in,
        blind=kv.Write(name, ts or 0, content),
    )


@send_command(app, "delete", "veen kv delete door --stream settings", "veen kv delete door --json")
def delete(asked: SendOptions, key: Key, ts: Ts = None) -> None:
    """Take a key's value away; what it had stays in its history."""
    from veen.cli.kit import render_state, send_event, values
    from veen.overlays import kv

    name = values.data_of(key)
    send_event.send_checked(
        asked,
        kv.KV,
        lambda reading: kv.delete(reading.states, name, ts),
        {"key": render_state.part_name(name)},
        data=render_state.key_data(name),
        blind=kv.Delete(name, ts or 0),
    )


@follow_command(app, "watch", "veen kv watch --stream settings", "veen kv watch door/ --json")
def watch(asked: FollowOptions, prefix: Prefix = "") -> None:
    """Show changes of keys as they come, until ctrl-c."""
    from veen.cli.kit import render_state, sanitize, values
    from veen.overlays import Applied, kv

    wanted = values.data_of(prefix)

    def told(seen: "WatchedEntry[Register]") -> "list[render_state.ChangeLine]":
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

    render_state.follow(asked, kv.KV, told)


faults_command.add(app, "veen kv", _overlay)
