"""Rows that show any state: its parts, the steps of its history, and the entries that it could not apply."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import typer

from veen.cli.kit import output
from veen.cli.kit.common_options import HubOptions, ReadOptions
from veen.cli.kit.result import Column, Moment, cell
from veen.cli.kit.sanitize import line_of, short, text_of
from veen.cli.kit.state_session import Answer, StateSession, place_data, state_command
from veen.overlays import AnyOverlay, At, EventFault, FoldStep
from veen.state.state_view import StateAt, shown


def entry_of(row: Mapping[str, Any]) -> str:
    """The place of a row's entry."""
    return shown(At(row["epoch"], row["stream_seq"]))


ENTRY: Column = ("entry", entry_of)
STEP_COLUMNS: tuple[Column, ...] = (ENTRY, "hub_ts", "client_id")
FAULT_COLUMNS: tuple[Column, ...] = (ENTRY, "kind", ("part", lambda row: part_name(row["part"])), "reason")


def step_data(step: FoldStep) -> dict[str, Any]:
    """The place, time, client and id of a step's entry. `STEP_COLUMNS` shows it."""
    entry = step.entry
    sent = {"hub_ts": Moment(entry.hub_ts), "client_id": entry.client_id, "msg_id": entry.msg_id}
    return {**place_data(entry.at), **sent}


def fault_data(faults: Iterable[EventFault]) -> list[dict[str, Any]]:
    """Faults as rows for `FAULT_COLUMNS`."""
    return [{**place_data(one.place), "kind": one.kind, "reason": one.reason, "part": one.part} for one in faults]


def add_faults(
    app: typer.Typer,
    command: str,
    open_state: Callable[[Any], Awaitable[StateAt[Any, Any]]],
    *,
    example: str = "",
    options: type[HubOptions] = ReadOptions,
) -> None:
    """Add `faults` to a command group: it lists the entries that the overlay could not apply."""

    async def faults(session: StateSession[Any]) -> Answer:
        return faults_answer(command, await open_state(session))

    faults.__doc__ = f"""List the entries that {command} could not apply, with the reasons.

    They stay in the log. Every command skips them.
    """
    examples = (f"{command} faults{example}", f"{command} faults --at 100 --json")
    state_command(StateSession, options, app, "faults", *examples)(faults)


def faults_answer(command: str, state: StateAt[Any, Any]) -> Answer:
    found = fault_data(state.faults())
    remarks = () if found else (f"no faults: {command} applied every entry that it reads",)
    return Answer({"faults": found}, rows="faults", columns=FAULT_COLUMNS, remarks=remarks)


def part_name(part: bytes | None) -> output.Value:
    """The name of a part: its text if it is text, else hex."""
    if part is None:
        return None
    return line_of(part) if text_of(part) is not None else short(part)


def key_data(key: bytes) -> dict[str, Any]:
    """A key for JSON: its bytes, and its text or None."""
    return {"key": key, "key_text": text_of(key)}


def part_data(kind: AnyOverlay, part: bytes, state: Any) -> dict[str, Any]:
    """A part of any overlay's state."""
    return {"part": part, "state": kind.plain(part, state)}


def plain_line(part: bytes, state: Mapping[str, Any]) -> str:
    """The plain state of a part as NAME=VALUE on one line."""
    words = {name: _word(plain_cell(one)) for name, one in state.items() if one is not None and one != part}
    return " ".join(f"{name}={word}" for name, word in words.items())


def plain_cell(value: Any) -> output.Value:
    """A value of a plain state as text. Bytes that are text are shown as text."""
    return part_name(value) if isinstance(value, bytes) else cell(value)


def plain_facts(names: Iterable[str]) -> list[Column]:
    """Lines for these values of a plain state."""

    def line(name: str) -> Column:
        return name, lambda data: plain_cell(data[name])

    return [line(name) for name in names]


def _word(value: output.Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
