"""What is left of its limits for a query that is being carried out."""

import threading

from veen.pipeline.engine import Watch
from veen.query.faults import Code, QueryFault
from veen.query.limits import Limits


class Budget:
    """Of one query. Threads that work for it look in now and then; once it is over, they end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._over = threading.Event()

    @property
    def watch(self) -> Watch:
        return Watch(self.look, self._limits.max_rows, self._limits.max_bytes)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._over.set()

    def look(self, rows: int, size: int) -> None:
        """Raise where it is over, or where so many rows, or rows of so many bytes, are too many."""
        limits = self._limits
        if self._over.is_set():
            raise QueryFault(Code.QUERY_TIMEOUT, "it was ended")
        if rows > limits.max_rows:
            raise QueryFault(
                Code.RESULT_TOO_LARGE,
                f"it comes to more than {limits.max_rows} rows, or events to be verified: "
                "ask for a shorter time, fewer streams, one subject, or for groups",
            )
        if size > limits.max_bytes:
            raise QueryFault(
                Code.RESULT_TOO_LARGE,
                f"it comes to more than {limits.max_bytes} bytes: ask for a shorter time, or for fewer fields",
            )
