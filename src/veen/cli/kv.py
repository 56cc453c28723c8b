"""`veen kv`: keys and values on a stream, with their full history."""

import json
import sys
from contextlib import aclosing
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import argument, group, option
from veen.cli.kit import output, values
from veen.cli.kit.common_options import ExpiresIn
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, fields_of, jsonable
from veen.cli.kit.sanitize import line_of, printable, text_of
from veen.cli.kit.state_session import (
    STEP_COLUMNS,
    Answer,
    FollowSession,
    ReadSession,
    SendSession,
    SentResult,
    add_faults,
    follow_command,
    key_data,
    part_name,
    read_command,
    send_command,
    step_data,
)
from veen.core import Unavailable
from veen.overlays import Applied, EventFault, kv
from veen.overlays.crdt import Write
from veen.overlays.kv import KV, Delete
from veen.state.state_view import shown
from veen.state.watch import watch as watched

app = group(
    "kv",
    """Store keys and values on a stream, and read them at any point of their history.

    A key, a value or a prefix is text, or bytes after hex:. Each value is an entry of the log, so every reader can see
    which client wrote it, when, and what it replaced.
    """,
)

Key: TypeAlias = Annotated[bytes, argument("KEY", "the key: text, or hex: and its bytes", parser=values.data_of)]
Prefix: TypeAlias = Annotated[
    bytes | None, argument("PREFIX", "only keys with this prefix", default="all keys", parser=values.data_of)
]
Ts: TypeAlias = Annotated[
    int | None,
    option("--ts N", "the time of the write; the greatest wins", default="the current one", min=0),
]
_KEY: Column = ("key", lambda row: part_name(row["key"]))


@read_command(app, "get", "veen kv get door --stream settings", "veen kv get door --at 12 --prove --out door.evidence")
async def get(session: ReadSession, key: Key) -> Answer:
    """Show the value of a key, now or after an earlier entry.

    Once the stream has been read, any key at any entry is looked up without reading the stream again.
    """
    state = await session.open(KV)
    found = state.state(key)
    if found.value is None:
        hint = "veen kv history shows its earlier values" if found.stream_seq else "veen kv list lists the keys"
        raise hinted(Unavailable(f"{line_of(key)!r} has no value at entry {shown(state.at)}"), hint)
    data = {**key_data(key), **_value_data(found.value), "ts": found.ts}
    written = fields_of(found, "epoch", "stream_seq")
    return Answer({**data, "written": written}, text=line_of(found.value), parts=(key,))


@read_command(app, "list", "veen kv list --stream settings", "veen kv list door/ --at 12 --json")
async def list_(session: ReadSession, prefix: Prefix = None) -> Answer:
    """List the keys that have a value, with their values."""
    states = dict((await session.open(KV)).states)
    keys = tuple(kv.keys(states, prefix or b""))
    data = [{**key_data(key), **_value_data(states[key].value), "stream_seq": states[key].stream_seq} for key in keys]
    columns = (_KEY, ("value", _value_text), ("entry", "stream_seq"))
    return Answer({"keys": data}, rows="keys", columns=columns, parts=keys)


@read_command(app, "history", "veen kv history door --stream settings", "veen kv history door --json")
async def history(session: ReadSession, key: Key) -> Answer:
    """Show every value that a key ever had, with its writer and time."""
    steps = tuple((await session.open(KV)).history(key))
    data = []
    for step in steps:
        value = step.event.value if isinstance(step.event, Write) else None
        data.append({**step_data(step), **_value_data(value), "deleted": value is None})
    columns = (*STEP_COLUMNS, ("value", _value_text))
    document = {**key_data(key), "history": data}
    return Answer(document, rows="history", columns=columns, parts=(key,), steps=steps)


@send_command(app, "put", "veen kv put door open --stream settings", "veen kv put door @photo.jpg --cap write.cap")
async def put(
    session: SendSession,
    key: Key,
    value: Annotated[bytes, argument("VALUE", "text, hex: and bytes, or @ and a file", parser=values.content_of)],
    ts: Ts = None,
    expires_in: ExpiresIn = None,
) -> SentResult:
    """Set the value of a key, and verify the hub's receipt.

    Without --ts the order of the log decides, so this write wins. With --blind and without --ts, its time is 0.
    """
    state = await session.open_unless_blind(KV)
    event = Write(key, ts or 0, value) if state is None else kv.put(state.states, key, value, ts)
    return await session.send(KV, event, key_data(key), facts=(_KEY,), expires_in=expires_in)


@send_command(app, "delete", "veen kv delete door --stream settings", "veen kv delete door --json")
async def delete(session: SendSession, key: Key, ts: Ts = None) -> SentResult:
    """Delete the value of a key.

    Its earlier values stay in its history.
    """
    state = await session.open_unless_blind(KV)
    event = Delete(key, ts or 0) if state is None else kv.delete(state.states, key, ts)
    return await session.send(KV, event, key_data(key), facts=(_KEY,))


@follow_command(app, "watch", "veen kv watch --stream settings", "veen kv watch door/ --json")
async def watch(session: FollowSession, prefix: Prefix = None) -> None:
    """Show changes of keys as they arrive, until ctrl-c."""
    view = await session.view(KV, session.stream())
    async with aclosing(watched(view)) as coming:
        async for seen in coming:
            for outcome in seen.outcomes:
                if isinstance(outcome, EventFault):
                    output.remark(f"entry {shown(outcome.place)} not applied: {printable(outcome.reason)}")
                    continue
                change = kv.change(outcome) if isinstance(outcome, Applied) else None
                if change is not None and change.key.startswith(prefix or b""):
                    _show_change(change, session.options.as_json)


def _show_change(change: kv.Change, as_json: bool) -> None:
    entry = change.step.entry
    if as_json:
        changed = {"before": change.before, "after": change.after}
        data = {**key_data(change.key), **changed, **step_data(change.step)}
        sys.stdout.write(json.dumps(jsonable(data)) + "\n")
    else:
        after = "(deleted)" if change.after is None else line_of(change.after)
        row = (shown(entry.at), output.moment(entry.hub_ts), part_name(change.key), after)
        output.table(("entry", "hub_ts", "", ""), [row], False)
    sys.stdout.flush()


def _value_data(value: bytes | None) -> dict[str, Any]:
    return {"text": None if value is None else text_of(value), "value": value}


def _value_text(row: dict[str, Any]) -> str:
    return "(deleted)" if row["value"] is None else line_of(row["value"])


add_faults(app, "veen kv", lambda session: session.open(KV), example=" --stream NAME")
