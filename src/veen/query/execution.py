"""A query carried out: asked of the tables, verified as its policy says, and summed up in a digest. §5, §6."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from veen.client.client import Client
from veen.client.durable import Busy
from veen.core import HubIdentity, canonical_json, naming
from veen.core.canonical_json import Plain
from veen.pipeline.engine import UNWATCHED, QueryWatch
from veen.query import digest as digests
from veen.query import spot_evidence, timestamps
from veen.query.audit_events import REQUESTS
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest
from veen.query.import_origin import NONE, ImportOrigins, origins_of
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_limits import RETRY_AFTER_S, Budget
from veen.query.table_query import Bounds, QueryTables, Streams
from veen.query.table_refresh import SharedRounds
from veen.state import HubSource

_MS = 1000

Refresh = Callable[[Sequence[int]], object]  # of these epochs


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows in their order, each as canonical JSON, and what stands for them."""

    texts: list[bytes] = field(repr=False)
    summary: dict[str, Plain] = field(repr=False)
    digest: ResultDigest
    ran: str

    def evidence(self) -> bytes:
        return canonical_json.encode(self.summary)


class QueryExecution:
    """Carries queries out for one client of one hub.

    `refresh` brings the tables up to date, and blocks; `progress` says how far it is.
    """

    def __init__(
        self,
        client: Client,
        asker: QueryTables,
        *,
        identities: Mapping[bytes, HubIdentity] | None = None,
        refresh: Refresh | None = None,
        progress: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._asker = asker
        self._identities = identities or {}
        self._refresh = refresh
        self._clock = clock
        self._progress = progress
        self._rounds = SharedRounds(self._bring_up)

    async def refresh(self, wait_s: float | None = None) -> None:
        """Bring the tables up to date, where this service does that; where another process does, that one will.

        Where it takes longer than `wait_s`, it goes on without whoever asked. Raises `QueryFault` then.
        """
        if self._refresh is not None and not await self._rounds.run(wait_s):
            done, total = self._progress()
            said = f"the tables are being filled: {done} of {total} parts" if total else "the tables are being filled"
            raise QueryFault(QueryCode.TABLES_NOT_READY, said, retry_after=RETRY_AFTER_S)

    async def stop(self) -> None:
        await self._rounds.stop()

    async def _bring_up(self) -> None:
        assert self._refresh is not None
        epochs = await HubSource(self._client).epochs(naming.stream_id(REQUESTS), None)
        with suppress(Busy):
            await asyncio.to_thread(self._refresh, epochs)

    async def streams(self, asked: QueryDescriptor, of_hub: bytes | None = None) -> tuple[Streams, ImportOrigins]:
        """What its scope means here. Raises `QueryFault` where there is no such stream."""
        known = await asyncio.to_thread(self._asker.known)
        here = of_hub is None and all(name in known for name in asked.scope)
        came = NONE if here else await origins_of(self._client)
        return await asyncio.to_thread(self._asker.streams, asked.scope, came, of_hub), came

    async def run(
        self,
        asked: QueryDescriptor,
        *,
        of_hub: bytes | None = None,
        bounds: Bounds | None = None,
        profile_id: str | None = None,
        request_receipt_id: str | None = None,
        budget: Budget | None = None,
    ) -> QueryResult:
        """The result. With `of_hub`, as that hub's zone would have it; with `bounds`, of no more than up to there."""
        streams, came = await self.streams(asked, of_hub)
        query, seed = asked.query(), asked.query_id.encode()
        watch = UNWATCHED if budget is None else budget.watch
        found = await asyncio.to_thread(self._asker.ask, query, seed, streams, came, bounds, watch)
        shown = await spot_evidence.verify(self._client, query, found.behind, came, self._identities)
        texts = await asyncio.to_thread(_texts, found.rows, watch)
        summary = digests.evidence_summary(asked, shown)
        digest = ResultDigest(
            query_id=asked.query_id,
            result_id=asked.result_id,
            row_count=len(texts),
            evidence_policy=asked.evidence,
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
