"""Execute a query: run it on the tables, verify evidence as its policy says, and compute the digest. §5, §6."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from veen.client.client import Client
from veen.client.local_files import Busy
from veen.core import HubIdentity, canonical_json, naming
from veen.core.canonical_json import Plain
from veen.pipeline.engine import UNWATCHED, QueryWatch
from veen.query import digest as digests
from veen.query import spot_evidence, timestamps
from veen.query.audit_events import REQUESTS
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest
from veen.query.import_origin import NO_IMPORTS, ImportOrigins, origins_of
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_limits import RETRY_AFTER_S, Budget
from veen.query.table_query import Bounds, QueryTables, Streams
from veen.query.table_refresh import SharedRounds
from veen.state import HubSource

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
        epochs = await HubSource(self._client).epochs(naming.stream_id(REQUESTS), None)
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
        """Execute the query. `of_hub` answers as that hub's zone would; `bounds` ignores entries after these places."""
        streams, imports = await self.streams(descriptor, of_hub)
        query, seed = descriptor.query(), descriptor.query_id.encode()
        watch = UNWATCHED if budget is None else budget.watch
        found = await asyncio.to_thread(self._tables.ask, query, seed, streams, imports, bounds, watch)
        verified = await spot_evidence.verify(self._client, query, found.sources, imports, self._identities)
        texts = await asyncio.to_thread(_texts, found.rows, watch)
        summary = digests.evidence_summary(descriptor, verified)
        digest = ResultDigest(
            query_id=descriptor.query_id,
            result_id=descriptor.result_id,
            row_count=len(texts),
            evidence_policy=descriptor.evidence,
            rows_hash=digests.rows_hash(texts),
            evidence_hash=digests.evidence_hash(summary),
            executed_at=timestamps.write(int(self._clock() * _MS)),
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
