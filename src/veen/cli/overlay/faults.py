"""The `faults` command of a group: entries of the log that changed nothing, and why."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from veen.cli.overlay.declaring import Reads, reads, taking
from veen.cli.overlay.realm.options import RealmReads

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer
    from veen.cli.overlay.realm.realm import AdminStream, Look
    from veen.overlays import AnyOverlay
    from veen.state.reading import Reading


def add(app: typer.Typer, command: str, overlay: "Callable[[], AnyOverlay]", stream: str | None = None) -> None:
    """Declare it in a group. The overlay is asked for when it runs; `stream` is the one where none is named."""

    def faults(asked: Reads) -> None:
        from veen.cli.overlay import asking

        asking.answer(asked, overlay(), listed(command), stream=stream)

    faults.__doc__ = summary(command)
    named = "" if stream else " --stream NAME"
    reads(app, "faults", f"{command} faults{named}", f"{command} faults --at 100 --json")(faults)


def add_of_realm(app: typer.Typer, command: str, stream: "Callable[[], AdminStream[Any, Any]]") -> None:
    """The same in a group whose stream follows from the realm."""

    def faults(asked: RealmReads) -> None:
        from veen.cli.overlay.realm import realm

        def look(taken: "Look[Any, Any]") -> "Answer":
            return listed(command)(taken.reading)

        realm.answer(asked, stream(), look)

    faults.__doc__ = summary(command)
    taking(RealmReads, app, "faults", f"{command} faults", f"{command} faults --at 100 --json")(faults)


def summary(command: str) -> str:
    return f"""List the entries that changed nothing for {command.removeprefix("veen ")}, with their reasons.

    They stay in the log, and no command stops at them.
    """


def listed(command: str) -> "Callable[[Reading[Any, Any]], Answer]":
    """What the command shows of a state."""

    def look(reading: "Reading[Any, Any]") -> "Answer":
        from veen.cli.overlay import asking, telling

        found = list(reading.faults())
        rows, data = telling.fault_rows(found), {"faults": telling.fault_data(found)}
        remarks = () if found else (f"every entry that {command} reads was taken",)
        return asking.Answer(columns=telling.FAULT_COLUMNS, rows=rows, data=data, remarks=remarks)

    return look
