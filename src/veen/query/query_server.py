"""Run a query service: its folder, its tables and its port.

FOLDER/principals.json   principals and their permissions
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
from veen.client.local_files import check_local
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
from veen.query.table_refresh import REFRESH_EVERY_S, TableRefresher, refresh_regularly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
PRINCIPALS = "principals.json"
_GRACE_S = 5.0
_MAX_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a service. `source` is the log to load tables from; None if another process loads them."""

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
    names: tuple[str, ...] = ()  # host names accepted besides its own address
    refresh_every_s: float = REFRESH_EVERY_S

    def __post_init__(self) -> None:
        check_local(self.tables)


def refresher_of(settings: Settings, hub_id: bytes) -> TableRefresher | None:
    """The refresher of the tables, if this service loads them."""
    if settings.source is None:
        return None
    return TableRefresher(Tables(settings.tables), Selection((settings.source,), pin=hub_id), settings.keys)


def execution_of(
    client: Client, settings: Settings, clock: Callable[[], float] = time.time, refresher: TableRefresher | None = None
) -> QueryExecution:
    tables = QueryTables(settings.tables, settings.spark)
    refresher = refresher or refresher_of(settings, client.hub_id)
    refresh = None if refresher is None else refresher.refresh
    progress = (lambda: (0, 0)) if refresher is None else (lambda: refresher.progress)
    return QueryExecution(
        client, tables, identities=settings.identities, refresh=refresh, progress=progress, clock=clock
    )


@asynccontextmanager
async def serving(
    client: Client, settings: Settings, report: Report, clock: Callable[[], float] = time.time
) -> AsyncIterator[HttpServer]:
    """Serve queries. Jobs that an earlier run left are resumed."""
    with JobStore(settings.folder) as store:
        refresher = refresher_of(settings, client.hub_id)
        execution = execution_of(client, settings, clock, refresher)
        service = QueryService(
            client, store, execution, report, workers=settings.workers, limits=settings.limits, clock=clock
        )
        server = HttpServer(report)
        await service.start()
        background: list[asyncio.Task[None]] = []
        if refresher is not None:
            background.append(
                asyncio.create_task(refresh_regularly(refresher, execution.refresh, report, settings.refresh_every_s))
            )
        try:
            origin_check = OriginCheck(settings.host, settings.names)
            app = QueryApp(service, PolicyBook(settings.folder / PRINCIPALS, clock), origin_check, report)
            limits = HttpSettings(max_connections=_MAX_CONNECTIONS)
            try:
                await server.start(app, settings.host, settings.port, tls=settings.tls, settings=limits)
            except OSError as error:
                raise Unavailable(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
            yield server
        finally:
            if refresher is not None:
                refresher.stop()
            for task in background:
                task.cancel()
            await server.stop(_GRACE_S)
            await service.stop()
            await execution.stop()
            await asyncio.gather(*background, return_exceptions=True)
