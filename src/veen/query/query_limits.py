"""Limits of one query and of all queries of a service."""

import threading
from dataclasses import dataclass

from veen.pipeline.engine import QueryWatch
from veen.query.query_errors import QueryCode, QueryFault

DEFAULT_LIMIT, MAX_LIMIT = 1_000, 10_000  # rows per page
RETRY_AFTER_S = 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The defaults suit a service on one machine: two queries at their limits fit into its memory."""

    max_rows: int = 250_000  # of a result, or events in its evidence
    max_bytes: int = 128 * _MIB  # of a result, and of the data it is computed from
    max_page_bytes: int = 16 * _MIB  # per page, unless its first row is larger
    max_run_s: float = 600.0  # execution including verification
    max_waiting: int = 256  # unfinished queries of all principals
    max_open: int = 32  # unfinished queries of one principal
    fill_wait_s: float = 30.0  # how long a submission waits for the tables before tables_not_ready


DEFAULTS = QueryLimits()


class Budget:
    """The limits of one running query. Its threads call `look` regularly and stop once the query is over."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._over = threading.Event()

    @property
    def watch(self) -> QueryWatch:
        return QueryWatch(self.check, self._limits.max_rows, self._limits.max_bytes)

    def end(self) -> None:
        """Stop the work: no client waits for it any more."""
        self._over.set()

    def check(self, rows: int, size: int) -> None:
        """Raise `QueryFault` if the query is over or holds too many rows or bytes."""
        limits = self._limits
        if self._over.is_set():
            raise QueryFault(QueryCode.QUERY_TIMEOUT, "the query was stopped")
        if rows > limits.max_rows:
            raise QueryFault(
                QueryCode.RESULT_TOO_LARGE,
                f"the query has more than {limits.max_rows} rows or events to verify: "
                "use a shorter time, fewer streams, one subject, or aggregation",
            )
        if size > limits.max_bytes:
            raise QueryFault(
                QueryCode.RESULT_TOO_LARGE,
                f"the query has more than {limits.max_bytes} bytes of rows: use a shorter time or fewer fields",
            )
