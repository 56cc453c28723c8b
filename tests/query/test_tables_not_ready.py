"""While tables are being filled, clients get tables_not_ready; queries of disconnected clients are dropped."""

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from plumbing.http import HttpServer
from tests.query.query_fixture import PATIENCE_S, QuerySetup, asking
from veen.client.client import Client
from veen.core import Unavailable, canonical_json
from veen.query.audit_events import REQUESTS, requests
from veen.query.execution import QueryExecution, QueryLimits, SharedRounds
from veen.query.query_app import OriginCheck, QueryApp
from veen.query.query_service import QueryService
from veen.query.query_store import JobStore
from veen.query.table_query import QueryTables


@dataclass
class Filling:
    """A service whose tables are being filled until `ready` is set."""

    own: QuerySetup
    client: Client
    server: HttpServer
    app: QueryApp
    store: JobStore
    begun: threading.Event
    ready: threading.Event

    async def submit(self) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.own.tokens['alice']}", "prefer": "wait=30"}
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            url = f"http://127.0.0.1:{self.server.port}/api/query/submit"
            return await http.post(url, json=asking(), headers=headers)


@asynccontextmanager
async def filling(own: QuerySetup, limits: QueryLimits) -> AsyncIterator[Filling]:
    begun, ready = threading.Event(), threading.Event()

    def fill(epochs: object) -> None:
        begun.set()
        ready.wait()

    async with own.client() as client:
        with JobStore(own.folder) as store:
            execution = QueryExecution(client, QueryTables(own.tables), refresh=fill, progress=lambda: (3, 40))
            service = QueryService(client, store, execution, lambda *_: None, limits=limits)
            app, server = (
                QueryApp(service, own.book, OriginCheck("127.0.0.1"), lambda *_: None),
                HttpServer(lambda *_: None),
            )
            await service.start()
            await server.start(app, "127.0.0.1", 0)
            try:
                yield Filling(own, client, server, app, store, begun, ready)
            finally:
                ready.set()
                await server.stop(0)
                await service.stop()
                await execution.stop()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_a_query_while_tables_are_filled_gets_the_progress(own: QuerySetup) -> None:
    async def run() -> None:
        async with filling(own, QueryLimits(fill_wait_s=0)) as at:
            answer = await at.submit()
            assert (answer.status_code, answer.json()["error_code"]) == (503, "tables_not_ready")
            assert answer.json()["message"] == "the tables are being filled: 3 of 40 parts"
            assert int(answer.headers["retry-after"]) > 0
            assert not list(at.store)
            assert await requests(at.client, REQUESTS) == []

    asyncio.run(run())


def test_a_waiting_query_is_answered_once_tables_are_filled(own: QuerySetup) -> None:
    async def run() -> None:
        async with filling(own, QueryLimits(fill_wait_s=PATIENCE_S)) as at:
            asked = asyncio.create_task(at.submit())
            await asyncio.to_thread(at.begun.wait)
            assert not asked.done()
            at.ready.set()
            assert (await asked).status_code == 200

    asyncio.run(run())


def test_the_query_of_a_disconnected_client_is_not_recorded(own: QuerySetup) -> None:
    async def run() -> None:
        async with filling(own, QueryLimits(fill_wait_s=PATIENCE_S)) as at:
            body = canonical_json.encode(asking())
            head = (
                f"POST /api/query/submit HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {own.tokens['alice']}\r\n"
            )
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            _, writer = await asyncio.open_connection("127.0.0.1", at.server.port)
            writer.write(head.encode() + body)
            await asyncio.to_thread(at.begun.wait)
            # Reset, not closed: a client that closed its sending side may still read.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            await until(lambda: at.server.connections == 0)
            at.ready.set()
            await until(lambda: not at.app._tasks)
            assert not list(at.store)
            assert await requests(at.client, REQUESTS) == []

    asyncio.run(run())


class Work:
    """The work of a round: waits until it is released, and fails on request."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self) -> None:
        self.begun += 1
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure


async def started(rounds: SharedRounds, count: int) -> list["asyncio.Task[bool]"]:
    tasks = [asyncio.create_task(rounds.run()) for _ in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_all_callers_during_a_round_share_the_next() -> None:
    async def run() -> None:
        work = Work()
        rounds = SharedRounds(work)
        first = await started(rounds, 1)
        later = await started(rounds, 5)
        assert work.begun == 1
        work.go_on.set()
        assert all(await asyncio.gather(*first, *later))
        assert work.begun == 2
        assert await rounds.run()
        assert work.begun == 3

    asyncio.run(run())


def test_an_error_of_a_round_is_raised_to_all_its_callers_only() -> None:
    async def run() -> None:
        work = Work()
        rounds = SharedRounds(work)
        tasks = await started(rounds, 1) + await started(rounds, 2)
        work.failure = Unavailable("the hub is away")
        work.go_on.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(one) for one in found] == ["the hub is away"] * 3
        work.failure = None
        assert await rounds.run()

    asyncio.run(run())


def test_a_round_continues_after_its_callers_time_out() -> None:
    async def run() -> None:
        work = Work()
        rounds = SharedRounds(work)
        assert await rounds.run(0) is False
        (task,) = await started(rounds, 1)
        task.cancel()
        await asyncio.wait((task,))
        work.failure = Unavailable("no caller is waiting")
        work.go_on.set()
        with pytest.raises(Unavailable):
            await rounds.run()
        await rounds.stop()

    asyncio.run(run())


def test_stopped_rounds_leave_no_tasks() -> None:
    async def run() -> None:
        rounds = SharedRounds(Work())
        tasks = await started(rounds, 1) + await started(rounds, 1)
        await rounds.stop()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in found)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
