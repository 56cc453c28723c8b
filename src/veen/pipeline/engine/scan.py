"""Select the row groups that a query must read, and scan them. No Spark here."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from veen.core import Unavailable
from veen.pipeline.decoding.plain_json import Plain
from veen.pipeline.engine import event_query
from veen.pipeline.engine.aggregate import Partial
from veen.pipeline.engine.event_query import EventQuery
from veen.pipeline.engine.query_watch import UNWATCHED, QueryWatch
from veen.pipeline.tables.commit import FileRef

_FILTERED = ("hub_ts", "subject_id", "event_type")
_BASE = ("label", "stream_seq", "msg_id", "mmr_root", *_FILTERED)
_BATCH_ROWS = 1_024  # in memory at once, and between two calls of `watch.on`
_AFTER = "\U0010ffff" * 4  # sorts after every subject, as files sort events without a subject

Footer = Callable[[FileRef], Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Row groups of one file."""

    path: str
    stream: str
    groups: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Parts for one worker to scan, and how much it may hold."""

    query: EventQuery
    parts: tuple[Part, ...]
    max_held: int | None = None
    max_bytes: int | None = None


class _BoundsExceeded(Exception):
    """The worker holds more than its bounds allow."""


def may_hold(file: FileRef, query: EventQuery) -> bool:
    """Whether a file may contain matching events, by its bounds in the commit."""
    if query.subject_id is not None:
        within = file.least is not None and file.most is not None and file.least <= query.subject_id <= file.most
        if not within:
            return False
    late = query.time_from is not None and file.ts_max is not None and file.ts_max < query.time_from
    early = query.time_to is not None and file.ts_min is not None and file.ts_min >= query.time_to
    return not late and not early


def plan(files: Iterable[FileRef], query: EventQuery, root: str, footer: Footer) -> list[Part]:
    """The row groups that may match. A file is sorted by subject, then type, then time: see `layout`."""
    made = []
    for file in files:
        if file.stream in query.scope and may_hold(file, query):
            metadata = footer(file)
            groups = _groups(metadata, query)
            rows = sum(metadata.row_group(number).num_rows for number in groups)
            if groups:
                made.append(Part(f"{root}/{file.path}", file.stream, groups, rows))
    return made


def _groups(metadata: Any, query: EventQuery) -> tuple[int, ...]:
    numbers: Sequence[int] = range(metadata.num_row_groups)
    if query.subject_id is not None:
        subject = _column(metadata, "subject_id")
        first = bisect_left(numbers, query.subject_id, key=lambda number: _bound(metadata, number, subject, "max"))
        last = bisect_right(numbers, query.subject_id, key=lambda number: _bound(metadata, number, subject, "min"))
        numbers = range(first, last)
    if query.event_types is not None:
        kind = _column(metadata, "event_type")
        numbers = [number for number in numbers if _of_type(_statistics(metadata, number, kind), query.event_types)]
    if query.time_from is not None or query.time_to is not None:
        at = _column(metadata, "hub_ts")
        numbers = [number for number in numbers if _in_time(_statistics(metadata, number, at), query)]
    return tuple(numbers)


def _column(metadata: Any, name: str) -> int:
    return next(at for at in range(metadata.num_columns) if metadata.schema.column(at).name == name)


def _statistics(metadata: Any, number: int, column: int) -> Any:
    """The min/max statistics of a column in a row group; None if there are none."""
    found = metadata.row_group(number).column(column).statistics
    return found if found is not None and found.has_min_max else None


def _bound(metadata: Any, number: int, column: int, side: str) -> str:
    statistics = _statistics(metadata, number, column)
    return _AFTER if statistics is None else str(getattr(statistics, side))


def _of_type(statistics: Any, event_types: tuple[str, ...]) -> bool:
    return statistics is None or any(statistics.min <= one <= statistics.max for one in event_types)


def _in_time(statistics: Any, query: EventQuery) -> bool:
    if statistics is None:
        return True
    late = query.time_from is not None and statistics.max < query.time_from
    return not late and not (query.time_to is not None and statistics.min >= query.time_to)


def scan(job: Scan, footers: Mapping[str, Any] | None = None, watch: QueryWatch = UNWATCHED) -> Partial:
    """Scan some parts. `footers` are Parquet footers that were already read, by path."""
    made = Partial(job.query)
    for part in job.parts:
        _scan(part, made, (footers or {}).get(part.path), watch)
    return made


def scan_encoded(job: Scan) -> bytes:
    """Scan in a worker. If the result exceeds the bounds it is cut short, which the merge detects."""
    made, bounds = Partial(job.query), QueryWatch(max_held=job.max_held, max_bytes=job.max_bytes)

    def on(held: int, weight: int) -> None:
        if bounds.exceeded(held, weight):
            raise _BoundsExceeded

    with suppress(_BoundsExceeded):
        for part in job.parts:
            _scan(part, made, None, QueryWatch(on))
    return made.encode()


def batches(path: str, groups: Sequence[int], names: Sequence[str], footer: Any = None) -> Iterator[Any]:
    """Row groups of a file, in batches of `_BATCH_ROWS`."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, metadata=footer) as file:
            yield from file.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=list(names))
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error}") from None


def _scan(part: Part, made: Partial, footer: Any, watch: QueryWatch) -> None:
    import pyarrow as pa

    query = made.query
    lean = bool(query.metrics) and query.evidence.mode == "none"  # the events behind the groups are not needed
    shown, needed = query.fields, _FILTERED if lean else _BASE
    names = tuple(dict.fromkeys((*needed, *(one for name in shown for one in event_query.columns(name)))))
    wanted = _filter(query)
    for batch in batches(part.path, part.groups, names, footer):
        made.read += batch.num_rows
        for row in pa.Table.from_batches([batch]).filter(wanted).to_pylist():
            row["stream"] = part.stream
            found: dict[str, Plain] = event_query.values(row, shown)
            if lean:
                made.count(found)
                continue
            label, seq = row["label"].hex(), row["stream_seq"]
            source = (part.stream, label, seq, row["msg_id"].hex(), row["mmr_root"].hex())
            made.add((row["hub_ts"], part.stream, seq, label), found, source)
        watch.on(made.held, made.weight)


def _filter(query: EventQuery) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pc.scalar(True)
    if query.subject_id is not None:
        wanted &= pc.field("subject_id") == query.subject_id
    if query.event_types is not None:
        wanted &= pc.field("event_type").isin(pa.array(query.event_types, pa.string()))
    if query.time_from is not None:
        wanted &= pc.field("hub_ts") >= query.time_from
    if query.time_to is not None:
        wanted &= pc.field("hub_ts") < query.time_to
    return wanted
