"""Run a query service: its folder, its tables and its port.

FOLDER/principals.json   principals and their permissions
FOLDER/jobs/  rows/      queries and their results
"""

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from plumbing.http import HttpServer, HttpSettings
from veen.client.client import Client
from veen.client.local_files import Busy, check_local
from veen.core import HubIdentity, Unavailable, VeenError
from veen.pipeline.decoding import Keys
from veen.pipeline.jobs import Progress, in_processes, no_progress, run_inline
from veen.pipeline.selection import Selection
from veen.pipeline.tables import Loaded, Tables, load
from veen.pipeline.tables.compaction import Compacted, tidy
from veen.query.execution import DEFAULTS, QueryExecution, QueryLimits
from veen.query.policy import PolicyBook
from veen.query.query_app import OriginCheck, QueryApp, Report
from veen.query.query_service import QueryService
from veen.query.query_store import JobStore
from veen.query.table_query import QueryTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
PRINCIPALS = "principals.json"
_GRACE_S = 5.0
REFRESH_EVERY_S = 5.0
_POOL_MIN_JOBS = 4  # a few thousand entries; processes take a second to start but keep this one responsive
_MAX_CONNECTIONS = 256

J = TypeVar("J")


class Stopped(Unavailable):
    """The service is stopping. The next run continues the work."""


class TableRefresher:
    """Keeps the tables of one service up to date with the log, and in few files. Its methods block and are thread-safe.

    Each query loads the entries since the last one. To keep that small, a background task also loads regularly, and
    then merges files that became too many, without delaying queries.
    """

    def __init__(self, tables: Tables, selection: Selection, keys: Keys) -> None:
        self._tables = tables
        self._selection = selection
        self._keys = keys
        self._stopping = threading.Event()
        self.progress = 0, 0  # parts of the log done and in total

    def refresh(self, epochs: Sequence[int]) -> Loaded:
        """Load the tables up to the end of the log. Raises `Busy` if another process does so."""
        self.progress = 0, 0
        selection = replace(self._selection, epochs=tuple(epochs))
        return load(self._tables, selection, self._keys, run_jobs, progress=self._on)

    def tidy(self) -> Compacted:
        """Merge files that became too many. Raises `Busy` if another process changes the tables."""
        return tidy(self._tables, progress=self._check)

    def stop(self) -> None:
        """Start no further jobs. Committed work stays; the next run does the rest."""
        self._stopping.set()

    def _on(self, done: int, total: int) -> None:
        self.progress = done, total
        self._check(done, total)

    def _check(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise Stopped("the service is stopping")


def run_jobs(work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
    """Run few jobs in this process, many in processes."""
    return in_processes()(work, jobs, progress) if len(jobs) >= _POOL_MIN_JOBS else run_inline(work, jobs, progress)


async def refresh_regularly(
    keeper: TableRefresher, refresh: Callable[[], Awaitable[None]], report: Report, every_s: float = REFRESH_EVERY_S
) -> None:
    """Refresh and merge regularly until cancelled. A repeated error is reported once."""
    last_error = ""
    while True:
        try:
            await refresh()
            with suppress(Busy):
                await asyncio.to_thread(keeper.tidy)
            last_error = ""
        except VeenError as error:
            if str(error) != last_error:
                report("tables", error)
            last_error = str(error)
        await asyncio.sleep(every_s)


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
