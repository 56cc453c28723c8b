"""The `faults` command of a group: entries of the log that changed nothing, and why."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from veen.cli.kit.state_options import ReadOptions, options_command, read_command
from veen.cli.realm.realm_state import RealmReads

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer
    from veen.cli.realm.realm_state import AdminStream, Look
    from veen.overlays import AnyOverlay
    from veen.state.state_at import StateAt


def add(app: typer.Typer, command: str, overlay: "Callable[[], AnyOverlay]", stream: str | None = None) -> None:
    """Declare it in a group. The overlay is asked for when it runs; `stream` is the one where none is named."""

    def faults(asked: ReadOptions) -> None:
        from veen.cli.kit import read_state

        read_state.show_state(asked, overlay(), fault_answer(command), stream=stream)

    faults.__doc__ = summary(command)
    named = "" if stream else " --stream NAME"
    read_command(app, "faults", f"{command} faults{named}", f"{command} faults --at 100 --json")(faults)


def add_for_realm(app: typer.Typer, command: str, stream: "Callable[[], AdminStream[Any, Any]]") -> None:
    """The same in a group whose stream follows from the realm."""

    def faults(asked: RealmReads) -> None:
        from veen.cli.realm import realm_state

        def look(taken: "Look[Any, Any]") -> "StateAnswer":
            return fault_answer(command)(taken.reading)

        realm_state.answer(asked, stream(), look)

    faults.__doc__ = summary(command)
    options_command(RealmReads, app, "faults", f"{command} faults", f"{command} faults --at 100 --json")(faults)


def summary(command: str) -> str:
    return f"""List the entries that changed nothing for {command.removeprefix("veen ")}, with their reasons.

    They stay in the log, and no command stops at them.
    """


def fault_answer(command: str) -> "Callable[[StateAt[Any, Any]], StateAnswer]":
    """What the command shows of a state."""

    def look(reading: "StateAt[Any, Any]") -> "StateAnswer":
        from veen.cli.kit import read_state, render_state

        found = list(reading.faults())
        rows, data = render_state.fault_rows(found), {"faults": render_state.fault_data(found)}
        remarks = () if found else (f"every entry that {command} reads was taken",)
        return read_state.StateAnswer(columns=render_state.FAULT_COLUMNS, rows=rows, data=data, remarks=remarks)

    return look
