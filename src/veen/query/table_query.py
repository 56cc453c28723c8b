"""A query put to the tables: what the answer is, and which events are behind it.

What this hub recorded is for the engine, as it is. Where events were imported, or only those up to a place count, they
are gone through here: their order, their times and their places are those of the zone they are from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.core import PayloadHdr, Unavailable
from veen.core.canonical_json import Plain
from veen.pipeline.engine import UNWATCHED, AnswerBasis, Engine, EventQuery, QueryWatch, aggregate, event_query
from veen.pipeline.engine.engine import sampled
from veen.pipeline.engine.scan import batches, plan
from veen.pipeline.tables import FileRef, Table, Tables, TablesView
from veen.query import digest, import_origin
from veen.query.digest import Position, VerifiedEvent
from veen.query.import_origin import ImportOrigins
from veen.query.query_errors import invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECEIPT = "receipt_id"
_NEEDED = ("label", "epoch", "stream_seq", "hub_ts", "msg_id", "mmr_root", "client_id", "subject_id", "event_type")

Bounds = Mapping[str, int]  # by label in hex: the last entry that counts


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """An event that is to be verified: where it is here, what the tables say of it, and how it is told of."""

    stream: str
    epoch: int
    seq: int
    told_as: str  # the stream that it is told of under
    shown: VerifiedEvent
    values: dict[str, Plain]


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """An answer, before anything of it was verified."""

    rows: list[dict[str, Plain]]
    behind: list[SourceEvent]
    basis: tuple[Position, ...]
    ran: str


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams here a scope means, each with the name and the hub it is told of under."""

    here: Mapping[str, tuple[str, bytes | None]]

    @property
    def imported(self) -> bool:
        return any(hub_id is not None for _, hub_id in self.here.values())


class QueryTables:
    """Asks the tables of one folder."""

    def __init__(
        self, root: Path, spark: "SparkSession | Callable[[], SparkSession] | None" = None, **settings: int
    ) -> None:
        self._tables = Tables(root)
        self._engine = Engine(root, spark, **settings)
        self._footer = lru_cache(maxsize=1_024)(self._read_footer)

    def known(self) -> frozenset[str]:
        """The streams that the tables have."""
        if not self._tables.exist:
            return frozenset()
        return frozenset(span.stream for span in self._tables.view().spans.values())

    def streams(self, scope: Sequence[str], came: ImportOrigins, of_hub: bytes | None = None) -> Streams:
        """What a scope means here. With `of_hub`, the streams of that hub, as they were imported."""
        known = self.known()
        here: dict[str, tuple[str, bytes | None]] = {}
        for name in scope:
            if of_hub is None and name in known:
                here[name] = (name, None)
                continue
            found = came.of_stream(name, of_hub)
            if not found or not all(one.here in known for one in found):
                raise invalid(f"there is no stream {name!r} here")
            here |= {one.here: (name, one.hub_id) for one in found}
        return Streams(here)

    def ask(
        self,
        query: EventQuery,
        seed: bytes,
        streams: Streams,
        came: ImportOrigins,
        bounds: Bounds | None = None,
        watch: QueryWatch = UNWATCHED,
    ) -> TableAnswer:
        """The answer. Blocks while files are read, and ends where `watch` raises."""
        if streams.imported or bounds is not None:
            return self._steadily(lambda view: self._here(view, query, seed, streams, came, bounds, watch))
        if query.evidence.mode == "none":
            answer = self._engine.run(query, seed=seed, watch=watch)
            return TableAnswer(_settled(answer.rows), [], _positions(answer.basis), answer.ran)
        return self._with_sources(query, seed, watch)

    def _with_sources(self, query: EventQuery, seed: bytes, watch: QueryWatch) -> TableAnswer:
        """Row by row, each with its receipt; groups are made of them afterwards."""
        named = tuple(dict.fromkeys((*query.fields, _RECEIPT)))
        answer = self._engine.run(replace(query, projection=named, group_by=(), metrics=()), seed=seed, watch=watch)
        epochs = {label: span.epoch for label, span in self._tables.view().spans.items()}
        by_receipt = {str(row[_RECEIPT]): row for row in answer.rows}
        behind = [
            SourceEvent(
                place.stream,
                epochs[place.label],
                place.stream_seq,
                place.stream,
                VerifiedEvent(place.receipt_id, place.mmr_root.hex(), place.hub_id.hex()),
                by_receipt[place.receipt_id],
            )
            for place in answer.places
        ]
        rows = _shaped(query, [dict(row) for row in answer.rows])
        return TableAnswer(rows, behind, _positions(answer.basis), answer.ran)

    def _steadily(self, work: Callable[[TablesView], TableAnswer]) -> TableAnswer:
        """Of one state of the tables; again where its files were merged meanwhile, and are others now."""
        while True:
            view = self._tables.view()
            try:
                return work(view)
            except Unavailable:
                if self._tables.view().number == view.number:
                    raise

    def _here(
        self,
        view: TablesView,
        query: EventQuery,
        seed: bytes,
        streams: Streams,
        came: ImportOrigins,
        bounds: Bounds | None,
        watch: QueryWatch,
    ) -> TableAnswer:
        named = tuple(dict.fromkeys((*query.fields, _RECEIPT)))
        known = {label: span.hub_id for label, span in view.spans.items()}
        found: list[tuple[aggregate.Order, dict[str, Plain], aggregate.Source, SourceEvent]] = []
        upto: dict[tuple[str, str], int] = {}
        size = 0
        for here, row, hub_id in self._rows(view, query, named, streams, came):
            watch.on(len(found), size)
            label, seq, told_as = row["label"].hex(), row["stream_seq"], row["stream"]
            if bounds is not None and seq > bounds.get(label, 0):
                continue
            upto[told_as, label] = max(seq, upto.get((told_as, label), 0))
            if not wanted(query, row):
                continue
            values = event_query.values(row, named)
            hub = hub_id or known[row["label"]]
            shown = VerifiedEvent(event_query.receipt_id(row["label"], seq), row["mmr_root"].hex(), hub.hex())
            source = (told_as, label, seq, row["msg_id"].hex(), row["mmr_root"].hex())
            behind = SourceEvent(here[0], here[1], here[2], told_as, shown, values)
            found.append(((row["hub_ts"], told_as, seq, label), values, source, behind))
            size += aggregate.weigh(values)
        watch.on(len(found), size)
        found.sort(key=lambda one: one[0])
        chosen = set(sampled(query, [source for _, _, source, _ in found], seed))
        basis = tuple(Position(stream, label, seq) for (stream, label), seq in sorted(upto.items()))
        rows = _shaped(query, [dict(values) for _, values, _, _ in found])
        return TableAnswer(rows, [behind for _, _, source, behind in found if source in chosen], basis, "here")

    def _rows(
        self, view: TablesView, query: EventQuery, named: Sequence[str], streams: Streams, came: ImportOrigins
    ) -> Iterator[tuple[tuple[str, int, int], dict[str, Any], bytes | None]]:
        """Events of these streams: where each is here, and what it is told of as."""
        # Times are those of the originals, so no file can be passed by for its own.
        loose = replace(query, scope=tuple(streams.here), time_from=None, time_to=None)
        columns = tuple(
            dict.fromkeys((*_NEEDED, "header", *(one for name in named for one in event_query.columns(name))))
        )
        files = view.of(Table.EVENTS, streams.here)
        for part in plan(files, loose, str(self._tables.root.resolve()), self._footer):
            told_as, hub_id = streams.here[part.stream]
            for row in (row for batch in batches(part.path, part.groups, columns) for row in batch.to_pylist()):
                here = part.stream, row["epoch"], row["stream_seq"]
                if hub_id is None:
                    yield here, {**row, "stream": told_as}, None
                    continue
                original = came.receipt(PayloadHdr.decode(row["header"]))
                if original is not None and original[1] == hub_id:  # else it was not imported, whatever it says
                    yield here, import_origin.as_original(row, told_as, original[0]), hub_id

    def _read_footer(self, file: FileRef) -> Any:
        import pyarrow.parquet as pq

        with _readable(file.path):
            return pq.read_metadata(self._tables.root / file.path)


class _readable:  # noqa: N801  reads as a verb
    """What the system says no to, as an error that names the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if isinstance(error, OSError):
            raise Unavailable(f"{self._path} cannot be read: {error}") from None


def wanted(query: EventQuery, row: Mapping[str, Any]) -> bool:
    """Whether the filter lets an event through."""
    return (
        (query.subject_id is None or row["subject_id"] == query.subject_id)
        and (query.event_types is None or row["event_type"] in query.event_types)
        and (query.time_from is None or row["hub_ts"] >= query.time_from)
        and (query.time_to is None or row["hub_ts"] < query.time_to)
    )


def _shaped(query: EventQuery, rows: list[dict[str, Plain]]) -> list[dict[str, Plain]]:
    """Rows as they were asked for: some fields of each, or groups of them."""
    if not query.metrics:
        return _settled([{name: row[name] for name in query.shown} for row in rows])
    made = aggregate.Partial(replace(query, evidence=type(query.evidence)()))
    for row in rows:
        made.add((0, "", 0, ""), row, ("", "", 0, "", ""))
    return _settled(aggregate.grouped(made))


def _settled(rows: Sequence[dict[str, Plain]]) -> list[dict[str, Plain]]:
    return [{name: digest.settled(value) for name, value in row.items()} for row in rows]


def _positions(basis: Sequence[AnswerBasis]) -> tuple[Position, ...]:
    return tuple(Position(one.stream, one.label.hex(), one.upto_seq) for one in basis)
