"""What one query may take of a service, and all of them together."""

from dataclasses import dataclass

DEFAULT_LIMIT, MAX_LIMIT = 1_000, 10_000  # rows of a page
RETRY_AFTER_S = 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults suit a service on one machine: two queries at their limits fit into its memory."""

    max_rows: int = 250_000  # of a result; also events that its evidence is of
    max_bytes: int = 128 * _MIB  # of a result, and of what it is worked out from
    max_page_bytes: int = 16 * _MIB  # of the rows of a page, unless its first alone has more
    max_run_s: float = 600.0  # from when it is begun to when its rows are there and verified
    max_waiting: int = 256  # queries of all principals that have not ended
    max_open: int = 32  # the same, of one principal
    fill_wait_s: float = 30.0  # for the tables to be brought up to the log, before whoever asks is told to come again


DEFAULTS = Limits()
