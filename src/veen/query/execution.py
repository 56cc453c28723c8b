"""Execute a query within its limits: run it on the tables, verify evidence by its policy, compute the digest. §5, §6.

To verify evidence, the events behind an answer are read from the log again and compared with the tables. Reading
verifies the client's signature, the hub's receipt, and that the tree continues the one this client knows of the hub. A
changed table therefore makes the query fail.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from veen.client.client import Client
from veen.client.local_files import Busy
from veen.client.reader import Entry
from veen.client.stream_epochs import lifetime
from veen.core import HubIdentity, Refused, Unverified, canonical_json
from veen.core.canonical_json import Plain
from veen.pipeline.decoding import Decoder, Keys
from veen.pipeline.decoding.decoder import EventRow, to_json
from veen.pipeline.engine import UNWATCHED, EventQuery, QueryWatch, event_query
from veen.query import digest as digests
from veen.query import table_query
from veen.query.descriptor import QueryDescriptor, time_text
from veen.query.digest import ResultDigest, VerifiedEvent
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.table_query import (
    NO_IMPORTS,
    Bounds,
    ImportOrigins,
    QueryTables,
    SourceEvent,
    Streams,
    origins_of,
    wanted,
)
from veen.state.entry_source import folded

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


_GAP = 64  # unneeded entries to read rather than start a new request

Identities = Mapping[bytes, HubIdentity]


async def verify_evidence(
    client: Client, query: EventQuery, sources: Sequence[SourceEvent], imports: ImportOrigins, identities: Identities
) -> tuple[VerifiedEvent, ...]:
    """The evidence of each event, in order. Raises `Unverified` at the first mismatch."""
    checker = _Checker(query, imports, identities)
    of_stream = sorted(sources, key=lambda one: (one.stream, one.epoch, one.seq))
    for (stream, epoch), group in groupby(of_stream, lambda one: (one.stream, one.epoch)):
        for run in _runs(list(group)):
            missing = {one.seq: one for one in run}
            async for entry in _entries(client, stream, epoch, run):
                expected = missing.pop(entry.stream_seq, None)
                if expected is not None:
                    checker.check(entry, expected)
            if missing:
                raise Unverified("evidence", f"{stream}: the tables have entry {min(missing)}, but the log does not")
    return tuple(one.shown for one in sources)


async def _entries(client: Client, stream: str, epoch: int, run: Sequence[SourceEvent]) -> AsyncGenerator[Entry, None]:
    try:
        async with aclosing(client.read(stream, run[0].seq, run[-1].seq, epoch=epoch)) as entries:
            async for entry in entries:
                yield entry
    except Refused as refused:
        if refused.code != "E.NOT_FOUND":
            raise


class _Checker:
    """Compares events with their values in the tables."""

    def __init__(self, query: EventQuery, imports: ImportOrigins, identities: Identities) -> None:
        self._query = query
        self._came = imports
        self._identities = identities
        self._decoder = Decoder({}, Keys())

    def check(self, entry: Entry, expected: SourceEvent) -> None:
        where = f"{expected.stream}, entry {entry.stream_seq}"
        row = self._decoder.read(folded(entry), entry.receipt.mmr_root, entry.fault)
        if not isinstance(row, EventRow):
            raise Unverified("evidence", f"{where}: the tables have an event, but the log has none: {row.reason}")
        found: dict[str, Any] = {**row._asdict(), "stream": expected.shown_as}
        hub_id = None
        if expected.shown_as != expected.stream:
            original = self._came.receipt(entry.header)
            if original is None:
                raise Unverified("evidence", f"{where}: it does not refer to an imported original")
            traced, hub_id = original
            table_query.check_receipt(traced.origin.receipt, hub_id, self._identities)
            found = table_query.as_original(found, expected.shown_as, traced)
        shown = (event_query.receipt_id(found["label"], found["stream_seq"]), found["mmr_root"].hex())
        if shown != (expected.shown.receipt_id, expected.shown.mmr_root) or (
            hub_id and hub_id.hex() != expected.shown.hub_id
        ):
            raise Unverified("evidence", f"{where}: the receipt in the tables differs from the log's")
        if to_json(event_query.values(found, tuple(expected.values))) != to_json(expected.values):
            raise Unverified("evidence", f"{where}: the event in the tables differs from the log's")
        if not wanted(self._query, found):
            raise Unverified("evidence", f"{where}: it does not match the query")


def _runs(group: list[SourceEvent]) -> Iterator[list[SourceEvent]]:
    """Groups that are close enough for one read."""
    run: list[SourceEvent] = []
    for one in group:
        if run and one.seq - run[-1].seq > _GAP:
            yield run
            run = []
        run.append(one)
    yield run


_MS = 1000

Refresh = Callable[[Sequence[int]], object]  # loads these epochs


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows in order, each as canonical JSON, with evidence summary and digest."""

    texts: list[bytes] = field(repr=False)
    summary: dict[str, Plain] = field(repr=False)
    digest: ResultDigest
    ran: str

    def evidence(self) -> bytes:
        return canonical_json.encode(self.summary)


class QueryExecution:
    """Executes queries for one client of one hub.

    `refresh` brings the tables up to date and blocks; `progress` returns parts done and total.
    """

    def __init__(
        self,
        client: Client,
        tables: QueryTables,
        *,
        identities: Mapping[bytes, HubIdentity] | None = None,
        refresh: Refresh | None = None,
        progress: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._tables = tables
        self._identities = identities or {}
        self._refresh = refresh
        self._clock = clock
        self._progress = progress
        self._rounds = SharedRounds(self._refresh_tables)

    async def refresh(self, wait_s: float | None = None) -> None:
        """Bring the tables up to date if this service does so; otherwise another process does.

        If that takes longer than `wait_s`, it continues in the background and `QueryFault` is raised.
        """
        if self._refresh is not None and not await self._rounds.run(wait_s):
            done, total = self._progress()
            message = "the tables are being filled" + (f": {done} of {total} parts" if total else "")
            raise QueryFault(QueryCode.TABLES_NOT_READY, message, retry_after=RETRY_AFTER_S)

    async def stop(self) -> None:
        await self._rounds.stop()

    async def _refresh_tables(self) -> None:
        assert self._refresh is not None
        epochs = lifetime(self._client.session)
        with suppress(Busy):
            await asyncio.to_thread(self._refresh, epochs)

    async def streams(self, descriptor: QueryDescriptor, of_hub: bytes | None = None) -> tuple[Streams, ImportOrigins]:
        """The streams that the scope refers to. Raises `QueryFault` if one does not exist."""
        known = await asyncio.to_thread(self._tables.known)
        local = of_hub is None and all(name in known for name in descriptor.scope)
        imports = NO_IMPORTS if local else await origins_of(self._client)
        return await asyncio.to_thread(self._tables.streams, descriptor.scope, imports, of_hub), imports

    async def run(
        self,
        descriptor: QueryDescriptor,
        *,
        of_hub: bytes | None = None,
        bounds: Bounds | None = None,
        profile_id: str | None = None,
        request_receipt_id: str | None = None,
        budget: Budget | None = None,
    ) -> QueryResult:
        """Execute the query. `of_hub` answers for the zone of that hub; `bounds` ignores entries after these places."""
        streams, imports = await self.streams(descriptor, of_hub)
        query, seed = descriptor.query(), descriptor.query_id.encode()
        watch = UNWATCHED if budget is None else budget.watch
        found = await asyncio.to_thread(self._tables.ask, query, seed, streams, imports, bounds, watch)
        verified = await verify_evidence(self._client, query, found.sources, imports, self._identities)
        texts = await asyncio.to_thread(_texts, found.rows, watch)
        summary = digests.evidence_summary(descriptor, verified)
        digest = ResultDigest(
            query_id=descriptor.query_id,
            result_id=descriptor.result_id,
            row_count=len(texts),
            evidence_policy=descriptor.evidence,
            rows_hash=digests.rows_hash(texts),
            evidence_hash=digests.evidence_hash(summary),
            executed_at=time_text(int(self._clock() * _MS)),
            hub_id=self._client.hub_id.hex(),
            basis=found.basis,
            profile_id=profile_id,
            request_receipt_id=request_receipt_id,
        )
        return QueryResult(texts, summary, digest, found.ran)


def _texts(rows: Sequence[dict[str, Plain]], watch: QueryWatch) -> list[bytes]:
    made, size = list[bytes](), 0
    for row in rows:
        made.append(digests.row_text(row))
        size += len(made[-1])
        watch.on(len(made), size)
    return made


class SharedRounds:
    """Work in consecutive rounds. Each caller gets a round that starts after its call, shared with other callers."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def run(self, wait_s: float | None = None) -> bool:
        """Whether a round finished in time; otherwise it continues. Raises the error of the round."""
        if self._next is None:
            self._next = asyncio.create_task(self._round(self._current))
            self._next.add_done_callback(_retrieve_exception)
        round_task = self._next
        done, _ = await asyncio.wait((round_task,), timeout=wait_s)
        if done:
            round_task.result()
        return bool(done)

    async def stop(self) -> None:
        pending = [task for task in (self._current, self._next) if task is not None]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _round(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        self._current, self._next = self._next, None
        await self._work()


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception, so that asyncio does not log it. The next round reports a lasting problem."""
    if not task.cancelled():
        task.exception()
