"""The `faults` command of a command group: lists entries that the overlay could not apply, with the reason."""

from collections.abc import Callable
from typing import Any

import typer

from veen.cli.kit import read_state, render_state
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import ReadOptions, options_command, read_command
from veen.cli.realm import realm_state
from veen.cli.realm.realm_state import AdminStream, RealmReadOptions, RealmState
from veen.overlays import AnyOverlay
from veen.state.state_view import StateAt


def add(app: typer.Typer, command: str, overlay: AnyOverlay, stream: str | None = None) -> None:
    """Add `faults` to a group. `stream` is the default stream."""

    def faults(options: ReadOptions) -> None:
        read_state.show_state(options, overlay, fault_answer(command), stream=stream)

    faults.__doc__ = summary(command)
    named = "" if stream else " --stream NAME"
    read_command(app, "faults", f"{command} faults{named}", f"{command} faults --at 100 --json")(faults)


def add_for_realm(app: typer.Typer, command: str, stream: AdminStream[Any, Any]) -> None:
    """Add `faults` to a group whose stream is derived from the realm."""

    def faults(options: RealmReadOptions) -> None:
        def look(view: RealmState[Any, Any]) -> StateAnswer:
            return fault_answer(command)(view.reading)

        realm_state.show_realm_state(options, stream, look)

    faults.__doc__ = summary(command)
    options_command(RealmReadOptions, app, "faults", f"{command} faults", f"{command} faults --at 100 --json")(faults)


def summary(command: str) -> str:
    return f"""List the entries that {command} could not apply, with the reasons.

    They stay in the log. Every command skips them.
    """


def fault_answer(command: str) -> Callable[[StateAt[Any, Any]], StateAnswer]:
    """Return the function that lists the faults of a state."""

    def look(reading: StateAt[Any, Any]) -> StateAnswer:
        found = list(reading.faults())
        rows, data = render_state.fault_rows(found), {"faults": render_state.fault_data(found)}
        remarks = () if found else (f"no faults: {command} applied every entry that it reads",)
        return read_state.StateAnswer(columns=render_state.FAULT_COLUMNS, rows=rows, data=data, remarks=remarks)

    return look
