"""A query service as it is run: its folder, the tables it asks, and the port it listens on.

FOLDER/principals.json   who may ask about what
FOLDER/jobs/  rows/      queries and their results
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from plumbing.http import HttpServer, HttpSettings
from veen.client.client import Client
from veen.client.durable import check_local
from veen.core import HubIdentity, Unavailable
from veen.pipeline.decoding import Keys
from veen.pipeline.selection import Selection
from veen.pipeline.tables import Tables
from veen.query.execution import QueryExecution
from veen.query.policy import PolicyBook
from veen.query.query_app import OriginCheck, QueryApp, Report
from veen.query.query_limits import DEFAULTS, QueryLimits
from veen.query.query_service import QueryService
from veen.query.query_store import JobStore
from veen.query.table_query import QueryTables
from veen.query.table_refresh import LOOK_EVERY_S, TableRefresher, refresh_regularly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
PRINCIPALS = "principals.json"
_GRACE_S = 5.0
_MAX_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """How a service is run. `source` is what it keeps the tables up with, if anything; else another process does."""

    folder: Path
    tables: Path
    host: str = LOOPBACK
    port: int = 0
    tls: ssl.SSLContext | None = None
    source: str | None = None
    keys: Keys = field(default_factory=Keys)
    identities: Mapping[bytes, HubIdentity] = field(default_factory=dict)
    spark: "Callable[[], SparkSession] | None" = None
    workers: int = 2
    limits: QueryLimits = DEFAULTS
    names: tuple[str, ...] = ()  # that it is asked by, beside its own address
    look_every_s: float = LOOK_EVERY_S

    def __post_init__(self) -> None:
        check_local(self.tables)


def keeper_of(settings: Settings, hub_id: bytes) -> TableRefresher | None:
    """What brings the tables up to where the log is, if this service does that."""
    if settings.source is None:
        return None
    return TableRefresher(Tables(settings.tables), Selection((settings.source,), pin=hub_id), settings.keys)


def execution_of(
    client: Client, settings: Settings, clock: Callable[[], float] = time.time, keeper: TableRefresher | None = None
) -> QueryExecution:
    asker = QueryTables(settings.tables, settings.spark)
    keeper = keeper or keeper_of(settings, client.hub_id)
    refresh = None if keeper is None else keeper.refresh
    progress = (lambda: (0, 0)) if keeper is None else (lambda: keeper.progress)
    return QueryExecution(
        client, asker, identities=settings.identities, refresh=refresh, progress=progress, clock=clock
    )


@asynccontextmanager
async def serving(
    client: Client, settings: Settings, report: Report, clock: Callable[[], float] = time.time
) -> AsyncIterator[HttpServer]:
    """A service that listens; what was under way when it last stopped goes on."""
    with JobStore(settings.folder) as store:
        keeper = keeper_of(settings, client.hub_id)
        execution = execution_of(client, settings, clock, keeper)
        service = QueryService(
            client, store, execution, report, workers=settings.workers, limits=settings.limits, clock=clock
        )
        server = HttpServer(report)
        await service.start()
        keeping: list[asyncio.Task[None]] = []
        if keeper is not None:
            keeping.append(
                asyncio.create_task(refresh_regularly(keeper, execution.refresh, report, settings.look_every_s))
            )
        try:
            gate = OriginCheck(settings.host, settings.names)
            app = QueryApp(service, PolicyBook(settings.folder / PRINCIPALS, clock), gate, report)
            limits = HttpSettings(max_connections=_MAX_CONNECTIONS)
            try:
                await server.start(app, settings.host, settings.port, tls=settings.tls, settings=limits)
            except OSError as error:
                raise Unavailable(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
            yield server
        finally:
            if keeper is not None:
                keeper.stop()
            for task in keeping:
                task.cancel()
            await server.stop(_GRACE_S)
            await service.stop()
            await execution.stop()
            await asyncio.gather(*keeping, return_exceptions=True)
