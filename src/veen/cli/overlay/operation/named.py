"""Operations as people name them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface.command import Misuse

if TYPE_CHECKING:
    from veen.overlays import Entry
    from veen.overlays.operations import Logged
    from veen.state.reading import Reading

    OpReading: TypeAlias = Reading[Entry | None, Entry | None]

OperationId: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="which operation: its id, or so much of it that it is the only one")
]
LEAST_DIGITS = 6
ID_DIGITS = 64


def found(reading: "OpReading", text: str) -> "Logged":
    """The operation that a word names: by its whole id, or by the start of it."""
    from veen.cli.failures import hinted
    from veen.core import Unavailable
    from veen.overlays.operations.index import logged

    wanted = text.rstrip("…").lower()
    if not LEAST_DIGITS <= len(wanted) <= ID_DIGITS or set(wanted) - set("0123456789abcdef"):
        raise Misuse(f"{text!r} is no operation id", f"give {LEAST_DIGITS} to {ID_DIGITS} hex digits of it")
    whole = len(wanted) == ID_DIGITS
    ids: Iterable[bytes] = [bytes.fromhex(wanted)] if whole else reading.states
    named = [one for one in ids if one.hex().startswith(wanted) and one in reading.states]
    if len(named) > 1:
        raise Misuse(f"{len(named)} operations start with {wanted}", "give more digits; --json shows whole ids")
    entry = reading.states[named[0]] if named else None
    one = None if entry is None else logged(entry)
    if one is None:
        raise hinted(Unavailable(f"there is no operation {wanted} in this stream"), "veen op list shows what there is")
    return one
