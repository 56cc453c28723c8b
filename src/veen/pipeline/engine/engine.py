"""The query engine. It answers small queries in this process and large ones on Spark, with the same code."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.core import Unavailable
from veen.pipeline import jobs
from veen.pipeline.decoding.decoder import Plain
from veen.pipeline.engine import aggregate, event_query
from veen.pipeline.engine.aggregate import UNWATCHED, Partial, QueryWatch, Source
from veen.pipeline.engine.event_query import EventQuery
from veen.pipeline.tables.commit import FileRef, TablesView
from veen.pipeline.tables.layout import Table, need_pyarrow
from veen.pipeline.tables.store import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SMALL_ROWS = 250_000  # one or two seconds of work, less than Spark needs to start
JOB_ROWS = 50_000
_FRACTION_BYTES = 8
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


@dataclass(frozen=True, slots=True)
class RowPlace:
    """An event behind an answer: the place of its receipt, and the root in it."""

    stream: str
    label: bytes
    stream_seq: int
    msg_id: bytes
    mmr_root: bytes
    hub_id: bytes

    @property
    def receipt_id(self) -> str:
        return event_query.receipt_id(self.label, self.stream_seq)


@dataclass(frozen=True, slots=True)
class AnswerBasis:
    """The end of one label in the tables when the query ran."""

    stream: str
    label: bytes
    upto_seq: int
    mmr_root: bytes | None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Rows in canonical order, and the events whose evidence is to be verified."""

    rows: tuple[dict[str, Plain], ...]
    places: tuple[RowPlace, ...]
    basis: tuple[AnswerBasis, ...]
    ran: str  # "tables" or "spark"
    rows_read: int

    @property
    def row_count(self) -> int:
        return len(self.rows)


class Engine:
    """Queries the tables in one folder. `spark` is a session, a function that starts one on demand, or None.

    Example: `Engine(Path("tables")).run(EventQuery(("doors",), metrics=("count",))).rows`
    """

    def __init__(
        self,
        root: Path,
        spark: "SparkSession | Callable[[], SparkSession] | None" = None,
        *,
        small_rows: int = SMALL_ROWS,
    ) -> None:
        need_pyarrow()
        self._tables = Tables(root)
        self._spark = spark
        self._small_rows = small_rows
        self.footer = lru_cache(maxsize=4_096)(self._read_footer)

    def run(self, query: EventQuery, *, seed: bytes = b"", watch: QueryWatch = UNWATCHED) -> EngineAnswer:
        """Answer a query. `seed` determines, with the events themselves, the sample of evidence."""
        query.check()
        while True:
            view = self._tables.view()
            try:
                return self._run(query, view, seed, watch)
            except Unavailable:
                if self._tables.view().number == view.number:
                    raise  # otherwise files were merged meanwhile: retry with the new ones

    def _run(self, query: EventQuery, view: TablesView, seed: bytes, watch: QueryWatch) -> EngineAnswer:
        known = {span.stream for span in view.spans.values()}
        for stream in query.scope:
            if stream not in known:
                raise Unavailable(f"the tables have no stream {stream!r}; load it with veen pipeline run")
        root, footers = str(self._tables.root.resolve()), dict[str, Any]()

        def footer(file: FileRef) -> Any:
            found = footers[f"{root}/{file.path}"] = self.footer(file)
            return found

        parts = plan(view.of(Table.EVENTS, query.scope), query, root, footer)
        rows = sum(part.rows for part in parts)
        if rows <= self._small_rows or self._spark is None:
            found, ran = scan(Scan(query, tuple(parts)), footers, watch), "tables"
            found.shorten()
        else:
            found, ran = self._on_spark(query, parts, watch), "spark"
        return self._answer(query, found, view, seed, ran)

    def _on_spark(self, query: EventQuery, parts: Sequence[Part], watch: QueryWatch) -> Partial:
        spark: Any = self._spark
        if not hasattr(spark, "read"):
            spark = self._spark = spark()
        return spread(query, parts, jobs.on_spark(spark), watch)

    def _answer(self, query: EventQuery, found: Partial, view: TablesView, seed: bytes, ran: str) -> EngineAnswer:
        if query.metrics:
            rows, sources = aggregate.grouped(found), sorted(found.sources)
        else:
            rows, sources = [row for _, row, _ in found.rows], [source for _, _, source in found.rows]
        hubs = {label.hex(): span.hub_id for label, span in view.spans.items()}
        places = tuple(_place(source, hubs) for source in sampled(query, sources, seed))
        basis = tuple(
            AnswerBasis(span.stream, label, span.last, span.mmr_root)
            for label, span in sorted(view.spans.items(), key=lambda one: (one[1].stream, one[1].epoch, one[0]))
            if span.stream in query.scope
        )
        return EngineAnswer(tuple(rows), places, basis, ran, found.read)

    def _read_footer(self, file: FileRef) -> Any:
        import pyarrow.parquet as pq

        try:
            return pq.read_metadata(self._tables.root / file.path)
        except OSError as error:
            raise Unavailable(f"{file.path} cannot be read: {error}") from None


def spread(query: EventQuery, parts: Sequence[Part], run: jobs.Runner, watch: QueryWatch = UNWATCHED) -> Partial:
    """Scan parts in several jobs and merge the results."""
    work = [Scan(query, some, watch.max_held, watch.max_bytes) for some in _split_jobs(parts)]
    made = run(scan_encoded, work, jobs.no_progress if watch is UNWATCHED else lambda done, total: watch.on(0, 0))
    return aggregate.whole(query, (aggregate.decode(query, one) for one in made), watch)


def sampled(query: EventQuery, sources: Sequence[Source], seed: bytes) -> list[Source]:
    """The events whose evidence is verified: all, none, or a sample that anyone can recompute."""
    evidence = query.evidence
    if evidence.mode == "none" or not sources:
        return []
    if evidence.mode == "full":
        return list(sources)
    assert evidence.sample_rate is not None
    below = Fraction(evidence.sample_rate) * (1 << 8 * _FRACTION_BYTES)
    drawn = [int.from_bytes(sha256(seed + _name(source)).digest()[:_FRACTION_BYTES], "big") for source in sources]
    least = min(drawn)  # a sample has at least one event
    return [source for source, number in zip(sources, drawn, strict=True) if number < below or number == least]


def _name(source: Source) -> bytes:
    return f"{source[1]}:{source[2]}".encode()


def _place(source: Source, hubs: dict[str, bytes]) -> RowPlace:
    stream, label, seq, msg_id, root = source
    return RowPlace(stream, bytes.fromhex(label), seq, bytes.fromhex(msg_id), bytes.fromhex(root), hubs[label])


def _split_jobs(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Jobs of about equal size; a large file is split by row groups."""
    made: list[tuple[Part, ...]] = []
    some: list[Part] = []
    for part in parts:
        each = max(1, part.rows // len(part.groups))
        step = max(1, JOB_ROWS // each)
        for at in range(0, len(part.groups), step):
            groups = part.groups[at : at + step]
            some.append(Part(part.path, part.stream, groups, each * len(groups)))
            if sum(one.rows for one in some) >= JOB_ROWS:
                made.append(tuple(some))
                some = []
    return [*made, tuple(some)] if some else made


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
