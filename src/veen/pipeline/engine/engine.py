"""The query engine. It answers small queries in this process and large ones on Spark, with the same code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.core import Unavailable
from veen.pipeline import jobs
from veen.pipeline.decoding.plain_json import Plain
from veen.pipeline.engine import aggregate, event_query
from veen.pipeline.engine.aggregate import Partial, Source
from veen.pipeline.engine.event_query import EventQuery
from veen.pipeline.engine.query_watch import UNWATCHED, QueryWatch
from veen.pipeline.engine.scan import Part, Scan, plan, scan, scan_encoded
from veen.pipeline.tables.commit import FileRef, TablesView
from veen.pipeline.tables.layout import Table, need_pyarrow
from veen.pipeline.tables.store import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_ROWS = 250_000  # one or two seconds of work, less than Spark needs to start
JOB_ROWS = 50_000
_FRACTION_BYTES = 8


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
