"""The `faults` command of a group: entries of the log that changed nothing, and why."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from veen.cli.overlay.declaring import Reads, reads

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer
    from veen.overlays import AnyOverlay
    from veen.state.reading import Reading


def add(app: typer.Typer, command: str, overlay: "Callable[[], AnyOverlay]") -> None:
    """Declare it in a group. The overlay is asked for when it runs."""

    def faults(asked: Reads) -> None:
        from veen.cli.overlay import asking, telling

        def look(reading: "Reading[Any, Any]") -> "Answer":
            found = list(reading.faults())
            rows, data = telling.fault_rows(found), {"faults": telling.fault_data(found)}
            remarks = () if found else ("every entry of this stream was taken",)
            return asking.Answer(columns=telling.FAULT_COLUMNS, rows=rows, data=data, remarks=remarks)

        asking.answer(asked, overlay(), look)

    what = command.removeprefix("veen ")
    faults.__doc__ = f"""List the entries that changed nothing for {what}, with their reasons.

    They stay in the log, and no command stops at them.
    """
    reads(app, "faults", f"{command} faults --stream NAME", f"{command} faults --at 100 --json")(faults)
