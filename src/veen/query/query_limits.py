"""What one query may take of a service, and all of them together."""

import threading
from dataclasses import dataclass

from veen.pipeline.engine import QueryWatch
from veen.query.query_errors import QueryCode, QueryFault

DEFAULT_LIMIT, MAX_LIMIT = 1_000, 10_000  # rows of a page
RETRY_AFTER_S = 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The defaults suit a service on one machine: two queries at their limits fit into its memory."""

    max_rows: int = 250_000  # of a result; also events that its evidence is of
    max_bytes: int = 128 * _MIB  # of a result, and of what it is worked out from
    max_page_bytes: int = 16 * _MIB  # of the rows of a page, unless its first alone has more
    max_run_s: float = 600.0  # from when it is begun to when its rows are there and verified
    max_waiting: int = 256  # queries of all principals that have not ended
    max_open: int = 32  # the same, of one principal
    fill_wait_s: float = 30.0  # for the tables to be brought up to the log, before whoever asks is told to come again


DEFAULTS = QueryLimits()


class Budget:
    """Of one query. Threads that work for it look in now and then; once it is over, they end."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._over = threading.Event()

    @property
    def watch(self) -> QueryWatch:
        return QueryWatch(self.look, self._limits.max_rows, self._limits.max_bytes)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._over.set()

    def look(self, rows: int, size: int) -> None:
        """Raise where it is over, or where so many rows, or rows of so many bytes, are too many."""
        limits = self._limits
        if self._over.is_set():
            raise QueryFault(QueryCode.QUERY_TIMEOUT, "it was ended")
        if rows > limits.max_rows:
            raise QueryFault(
                QueryCode.RESULT_TOO_LARGE,
                f"it comes to more than {limits.max_rows} rows, or events to be verified: "
                "ask for a shorter time, fewer streams, one subject, or for groups",
            )
        if size > limits.max_bytes:
            raise QueryFault(
                QueryCode.RESULT_TOO_LARGE,
                f"it comes to more than {limits.max_bytes} bytes: ask for a shorter time, or for fewer fields",
            )
