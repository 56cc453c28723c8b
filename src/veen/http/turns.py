"""Whose input waits to be gone on with. One peer that says much at once must not keep the others from being heard.

A connection takes so much of what it has read and leaves the rest for a later turn of the loop. What is left is taken
up here: that of a few connections in each turn, one after the other, however many there are.
"""

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veen.http.connection import Connection

AT_ONCE = 4
# An answer that is given at once counts for its bytes, too: what is long took long to make.
UNIT_BYTES = 512


class Turns:
    """The connections that have something left, in the order in which they came."""

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}
        self._due = False

    def wait(self, connection: "Connection") -> None:
        """Have its `go_on` called in a turn to come; once, however often this is asked for."""
        self._waiting[connection] = None
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        for connection in tuple(islice(self._waiting, AT_ONCE)):
            del self._waiting[connection]
            try:
                connection.go_on()
            except Exception as error:  # noqa: BLE001  one faulty connection must not end the turns of the others
                connection.service.report("turn", error)
                connection.transport.abort()
        self._due = bool(self._waiting)
        if self._due:
            asyncio.get_running_loop().call_soon(self._take)
