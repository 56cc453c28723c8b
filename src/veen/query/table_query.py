"""Run a query on the tables: the answer, and the events behind it.

The engine answers queries over events of this hub. Queries over imported events, or up to given places only, are
answered here, with the order, times and places of the zone that the events came from.

An event that crossed the air gap has its own place here. A query presents the stream, place, time and writer of the
original, as the other hub signed them, so both zones give the same answer. 001, query-api-spec §9.1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.client.client import Client
from veen.client.local_files import named
from veen.core import HubIdentity, PayloadHdr, Receipt, Unavailable, Unverified, naming
from veen.core.canonical_json import Plain
from veen.overlays.bridge_logs import IMPORTS, OFFLINE_LOG, ORIGINS, Traced
from veen.pipeline.engine import UNWATCHED, AnswerBasis, Engine, EventQuery, QueryWatch, aggregate, event_query
from veen.pipeline.engine.engine import batches, plan, sampled
from veen.pipeline.tables import FileRef, Table, Tables, TablesView
from veen.query import digest
from veen.query.digest import Position, VerifiedEvent
from veen.query.query_errors import invalid
from veen.state import HubSource
from veen.state.state_view import read_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ImportedEvent:
    """A stream of another hub, and the local stream that holds its events."""

    hub_id: bytes
    stream: str
    here: str


@dataclass(frozen=True, slots=True)
class ImportOrigins:
    """All imports into this zone."""

    streams: tuple[ImportedEvent, ...] = ()
    hubs: Mapping[bytes, bytes] = field(default_factory=dict)  # by bundle_id
    traced: Mapping[bytes, Traced | None] = field(default_factory=dict)  # by the original's msg_id

    def of_stream(self, name: str, hub_id: bytes | None) -> tuple[ImportedEvent, ...]:
        """The local streams with the events of an imported one. Raises if several hubs have a stream of that name."""
        found = [one for one in self.streams if one.stream == name and hub_id in (None, one.hub_id)]
        if len({one.hub_id for one in found}) > 1:
            raise invalid(f"stream {name!r} was imported from several hubs; name the import stream instead")
        return tuple(found)

    def receipt(self, header: PayloadHdr | None) -> tuple[Traced, bytes] | None:
        """The original of a copy, by its header, and the hub it came from."""
        traced = None if header is None or header.parent_id is None else self.traced.get(header.parent_id)
        return None if traced is None else (traced, self.hubs[traced.bundle_id])


NO_IMPORTS = ImportOrigins()


async def origins_of(client: Client) -> ImportOrigins:
    """The imports according to the bridge's log, verified; empty if this client cannot read it."""
    if client.dir.stream_keys.secret(naming.stream_id(OFFLINE_LOG)) is None:
        return NO_IMPORTS
    source = HubSource(client)
    hubs, named = {}, set()
    for bundle_id, one in (await read_states(source, OFFLINE_LOG, IMPORTS)).items():
        if one.source_hub_id is not None:
            hubs[bundle_id] = one.source_hub_id
            named.add(ImportedEvent(one.source_hub_id, one.export_stream, one.import_stream))
    traced = await read_states(source, OFFLINE_LOG, ORIGINS)
    return ImportOrigins(tuple(sorted(named, key=lambda one: (one.stream, one.hub_id, one.here))), hubs, traced)


def as_original(row: dict[str, Any], stream: str, traced: Traced) -> dict[str, Any]:
    """A row of events as in the zone that it came from."""
    origin, receipt = traced.origin, traced.origin.receipt
    return {
        **row,
        "stream": stream,
        "label": receipt.label,
        "stream_seq": receipt.stream_seq,
        "hub_ts": receipt.hub_ts,
        "msg_id": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "client_id": origin.client_id,
    }


def check_receipt(receipt: Receipt, hub_id: bytes, known: Mapping[bytes, HubIdentity]) -> None:
    """Raise `Unverified` unless the other hub signed the receipt, according to a known identity record."""
    identity = known.get(hub_id)
    if identity is None:
        what = f"no identity record of hub {hub_id.hex()}, the source of imported events; add it with --trust"
        raise Unverified("evidence", what)
    identity.verify_receipt(receipt)


_RECEIPT = "receipt_id"
_NEEDED = ("label", "epoch", "stream_seq", "hub_ts", "msg_id", "mmr_root", "client_id", "subject_id", "event_type")

Bounds = Mapping[str, int]  # last entry to consider, by label in hex


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """An event to verify: its place here, its values in the tables, and the stream name to present it under."""

    stream: str
    epoch: int
    seq: int
    shown_as: str  # the stream name in answers; for an imported event, the original one
    shown: VerifiedEvent
    values: dict[str, Plain]


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """An answer before verification of its evidence."""

    rows: list[dict[str, Plain]]
    sources: list[SourceEvent]
    basis: tuple[Position, ...]
    ran: str


@dataclass(frozen=True, slots=True)
class Streams:
    """The local streams of a scope. Each maps to the presented stream name and, if imported, to its hub."""

    here: Mapping[str, tuple[str, bytes | None]]

    @property
    def imported(self) -> bool:
        return any(hub_id is not None for _, hub_id in self.here.values())


class QueryTables:
    """The tables of one folder, for queries."""

    def __init__(
        self, root: Path, spark: "SparkSession | Callable[[], SparkSession] | None" = None, **settings: int
    ) -> None:
        self._tables = Tables(root)
        self._engine = Engine(root, spark, **settings)
        self._footer = lru_cache(maxsize=1_024)(self._read_footer)

    def known(self) -> frozenset[str]:
        """The streams in the tables."""
        if not self._tables.exist:
            return frozenset()
        return frozenset(span.stream for span in self._tables.view().spans.values())

    def streams(self, scope: Sequence[str], imports: ImportOrigins, of_hub: bytes | None = None) -> Streams:
        """Resolve a scope to local streams. With `of_hub`, to the imported streams of that hub."""
        known = self.known()
        here: dict[str, tuple[str, bytes | None]] = {}
        for name in scope:
            if of_hub is None and name in known:
                here[name] = (name, None)
                continue
            found = imports.of_stream(name, of_hub)
            if not found or not all(one.here in known for one in found):
                raise invalid(f"unknown stream {name!r}")
            here |= {one.here: (name, one.hub_id) for one in found}
        return Streams(here)

    def ask(
        self,
        query: EventQuery,
        seed: bytes,
        streams: Streams,
        imports: ImportOrigins,
        bounds: Bounds | None = None,
        watch: QueryWatch = UNWATCHED,
    ) -> TableAnswer:
        """Answer a query. Blocks while reading files, and stops if `watch` raises."""
        if streams.imported or bounds is not None:
            return self._on_one_view(
                lambda view: self._answer_locally(view, query, seed, streams, imports, bounds, watch)
            )
        if query.evidence.mode == "none":
            answer = self._engine.run(query, seed=seed, watch=watch)
            return TableAnswer(_exact_rows(answer.rows), [], _positions(answer.basis), answer.ran)
        return self._with_sources(query, seed, watch)

    def _with_sources(self, query: EventQuery, seed: bytes, watch: QueryWatch) -> TableAnswer:
        """Fetch single rows with their receipts, and aggregate them afterwards."""
        named = tuple(dict.fromkeys((*query.fields, _RECEIPT)))
        answer = self._engine.run(replace(query, projection=named, group_by=(), metrics=()), seed=seed, watch=watch)
        epochs = {label: span.epoch for label, span in self._tables.view().spans.items()}
        by_receipt = {str(row[_RECEIPT]): row for row in answer.rows}
        sources = [
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
        return TableAnswer(rows, sources, _positions(answer.basis), answer.ran)

    def _on_one_view(self, work: Callable[[TablesView], TableAnswer]) -> TableAnswer:
        """Use one consistent view of the tables. Retries if files were merged meanwhile."""
        while True:
            view = self._tables.view()
            try:
                return work(view)
            except Unavailable:
                if self._tables.view().number == view.number:
                    raise

    def _answer_locally(
        self,
        view: TablesView,
        query: EventQuery,
        seed: bytes,
        streams: Streams,
        imports: ImportOrigins,
        bounds: Bounds | None,
        watch: QueryWatch,
    ) -> TableAnswer:
        named = tuple(dict.fromkeys((*query.fields, _RECEIPT)))
        known = {label: span.hub_id for label, span in view.spans.items()}
        found: list[tuple[aggregate.Order, dict[str, Plain], aggregate.Source, SourceEvent]] = []
        upto: dict[tuple[str, str], int] = {}
        size = 0
        for here, row, hub_id in self._rows(view, query, named, streams, imports):
            watch.on(len(found), size)
            label, seq, shown_as = row["label"].hex(), row["stream_seq"], row["stream"]
            if bounds is not None and seq > bounds.get(label, 0):
                continue
            upto[shown_as, label] = max(seq, upto.get((shown_as, label), 0))
            if not wanted(query, row):
                continue
            values = event_query.values(row, named)
            hub = hub_id or known[row["label"]]
            shown = VerifiedEvent(event_query.receipt_id(row["label"], seq), row["mmr_root"].hex(), hub.hex())
            source = (shown_as, label, seq, row["msg_id"].hex(), row["mmr_root"].hex())
            sources = SourceEvent(here[0], here[1], here[2], shown_as, shown, values)
            found.append(((row["hub_ts"], shown_as, seq, label), values, source, sources))
            size += aggregate.weigh(values)
        watch.on(len(found), size)
        found.sort(key=lambda one: one[0])
        chosen = set(sampled(query, [source for _, _, source, _ in found], seed))
        basis = tuple(Position(stream, label, seq) for (stream, label), seq in sorted(upto.items()))
        rows = _shaped(query, [dict(values) for _, values, _, _ in found])
        return TableAnswer(rows, [sources for _, _, source, sources in found if source in chosen], basis, "here")

    def _rows(
        self, view: TablesView, query: EventQuery, named: Sequence[str], streams: Streams, imports: ImportOrigins
    ) -> Iterator[tuple[tuple[str, int, int], dict[str, Any], bytes | None]]:
        """Events of these streams: the local place, and the row as presented."""
        # The filter uses the original times, so files cannot be skipped by their own.
        loose = replace(query, scope=tuple(streams.here), time_from=None, time_to=None)
        columns = tuple(
            dict.fromkeys((*_NEEDED, "header", *(one for name in named for one in event_query.columns(name))))
        )
        files = view.of(Table.EVENTS, streams.here)
        for part in plan(files, loose, str(self._tables.root.resolve()), self._footer):
            shown_as, hub_id = streams.here[part.stream]
            for row in (row for batch in batches(part.path, part.groups, columns) for row in batch.to_pylist()):
                here = part.stream, row["epoch"], row["stream_seq"]
                if hub_id is None:
                    yield here, {**row, "stream": shown_as}, None
                    continue
                original = imports.receipt(PayloadHdr.decode(row["header"]))
                if original is not None and original[1] == hub_id:  # otherwise the header only claims an import
                    yield here, as_original(row, shown_as, original[0]), hub_id

    def _read_footer(self, file: FileRef) -> Any:
        import pyarrow.parquet as pq

        with named(Path(file.path)):
            return pq.read_metadata(self._tables.root / file.path)


def wanted(query: EventQuery, row: Mapping[str, Any]) -> bool:
    """Whether an event passes the filter."""
    return (
        (query.subject_id is None or row["subject_id"] == query.subject_id)
        and (query.event_types is None or row["event_type"] in query.event_types)
        and (query.time_from is None or row["hub_ts"] >= query.time_from)
        and (query.time_to is None or row["hub_ts"] < query.time_to)
    )


def _shaped(query: EventQuery, rows: list[dict[str, Plain]]) -> list[dict[str, Plain]]:
    """Project the rows to the requested fields, or aggregate them."""
    if not query.metrics:
        return _exact_rows([{name: row[name] for name in query.shown} for row in rows])
    made = aggregate.Partial(replace(query, evidence=type(query.evidence)()))
    for row in rows:
        made.add((0, "", 0, ""), row, ("", "", 0, "", ""))
    return _exact_rows(aggregate.grouped(made))


def _exact_rows(rows: Sequence[dict[str, Plain]]) -> list[dict[str, Plain]]:
    return [{name: digest.exact_json(value) for name, value in row.items()} for row in rows]


def _positions(basis: Sequence[AnswerBasis]) -> tuple[Position, ...]:
    return tuple(Position(one.stream, one.label.hex(), one.upto_seq) for one in basis)
