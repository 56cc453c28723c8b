"""The query service: takes queries, records them, carries them out, records what came of them, and keeps it. §7, §8.

The order of writes: the job (pending), the event of the query, its place in the job; running; rows and digest; the
event of the digest; completed. A crash between any two leaves what the next run brings to its end, with the same digest
if there was one, and nothing is recorded twice.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from veen.client.client import Client
from veen.core import Unavailable, Unverified, VeenError
from veen.core.canonical_json import Plain
from veen.query import descriptor as descriptors
from veen.query.audit_events import QueryRecorder
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest
from veen.query.execution import QueryExecution, QueryResult
from veen.query.policy import ALL, QueryPrincipal
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_limits import DEFAULTS, RETRY_AFTER_S, Budget, QueryLimits
from veen.query.query_store import JobStore, QueryJob, QueryStatus

_MS = 1000
_RETRY_S = 1.0
_ID_BYTES = 16
_MOST_MESSAGE = 2_000
_LIMITS_PASSED = frozenset({QueryCode.RESULT_TOO_LARGE, QueryCode.QUERY_TIMEOUT})

T = TypeVar("T")
Report = Callable[[str, BaseException], None]


@dataclass(frozen=True, slots=True)
class ResultPage:
    """Some rows of a result, as canonical JSON.

    `limit` is how many were asked for; where so many had too many bytes, it is how many they are.
    """

    rows: list[bytes]
    offset: int
    limit: int
    total: int

    @property
    def has_more(self) -> bool:
        return self.offset + len(self.rows) < self.total


class QueryService:
    """One service on one folder, on the running loop."""

    def __init__(
        self,
        client: Client,
        store: JobStore,
        execution: QueryExecution,
        report: Report,
        *,
        workers: int = 2,
        limits: QueryLimits = DEFAULTS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._execution = execution
        self._recording = QueryRecorder(client)
        self._report = report
        self._workers = workers
        self._clock = clock
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._limits = limits
        self._open: Counter[str] = Counter()  # queries of each principal that have not ended, or are being taken
        self._taken: set[str] = set()  # query_ids, of this service or in the log
        self._ended: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._submitting = asyncio.Lock()

    async def start(self) -> None:
        """Take up what an earlier run left, then be ready."""
        self._taken = await self._recording.open()
        self._taken |= {job.query_id for job in self._store}
        for job in sorted(self._store, key=lambda job: job.submitted_at):
            if not job.ended:
                self._schedule(job)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def stop(self) -> None:
        """What is under way is left as it is: the next run takes it up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Taking queries.

    async def submit(
        self, principal: QueryPrincipal, value: Plain, is_lost: Callable[[], bool] = lambda: False
    ) -> QueryJob:
        """Take a query, and record it. Raises `QueryFault`, also where whoever asked has left before that."""
        asked = descriptors.normalise(value, f"q-{secrets.token_hex(_ID_BYTES)}")
        for stream in asked.scope:
            if not principal.may_ask(stream):
                raise QueryFault(QueryCode.FORBIDDEN_SCOPE, f"{principal.name} may not ask about {stream!r}")
        self._check_new(asked)
        self._check_room(principal)
        self._open[principal.name] += 1
        try:
            await self._execution.refresh(self._limits.fill_wait_s)
            await self._execution.streams(asked)
            async with self._submitting:
                self._check_new(asked)
                if is_lost():
                    raise QueryFault(QueryCode.UNAVAILABLE, "whoever asked has left")
                job = self._job(principal, asked)
                self._store.add(job)
                self._taken.add(asked.query_id)
            return await self._accept(job)
        finally:
            self._open[principal.name] -= 1

    def _check_room(self, principal: QueryPrincipal) -> None:
        if self._open[principal.name] >= self._limits.max_open:
            said = f"{principal.name} has {self._limits.max_open} queries that have not ended"
            raise QueryFault(QueryCode.TOO_MANY_QUERIES, said, retry_after=RETRY_AFTER_S)
        if self._open.total() >= self._limits.max_waiting:
            said = "too many queries wait to be carried out"
            raise QueryFault(QueryCode.UNAVAILABLE, said, retry_after=RETRY_AFTER_S)

    def _check_new(self, asked: QueryDescriptor) -> None:
        if asked.query_id in self._taken:
            raise QueryFault(QueryCode.DUPLICATE_QUERY_ID, f"there is a query {asked.query_id} already")

    def _job(self, principal: QueryPrincipal, asked: QueryDescriptor) -> QueryJob:
        now_ms = int(self._clock() * _MS)
        return QueryJob(asked.query_id, asked.result_id, principal.name, principal.subject_id, now_ms, asked.text())

    async def _accept(self, job: QueryJob) -> QueryJob:
        try:
            job = self._store.move(job.result_id, QueryStatus.PENDING, request=await self._recording.request(job))
        except VeenError as error:
            self._report("record", error)
            with suppress(Unavailable):  # it stays as it is then, and the next run takes it up
                self._fail(job, QueryCode.INTERNAL_ERROR, "the query could not be recorded; the service's log says why")
            raise QueryFault(QueryCode.UNAVAILABLE, "the query could not be recorded") from None
        self._schedule(job)
        return job

    def _schedule(self, job: QueryJob) -> None:
        self._ended[job.result_id] = asyncio.Event()
        self._open[job.principal] += 1
        self._queue.put_nowait(job.result_id)

    # Carrying them out.

    async def _work(self) -> None:
        while True:
            result_id = await self._queue.get()
            job = self._store.job(result_id)
            assert job is not None
            try:
                await self._carry_out(job)
            except QueryFault as fault:
                code = QueryCode(fault.code)
                await self._give_up(job, code if code in _LIMITS_PASSED else QueryCode.EXECUTION_FAILED, fault.message)
            except VeenError as error:
                self._report("execution", error)
                await self._give_up(job, QueryCode.EXECUTION_FAILED, _public_text(error))
            except Exception as error:  # noqa: BLE001  whatever it is, whoever asked must hear of it
                self._report("execution", error)
                await self._give_up(job, QueryCode.INTERNAL_ERROR, "the service failed; its log says why")
            self._open[job.principal] -= 1
            self._ended.pop(result_id).set()

    async def _carry_out(self, job: QueryJob) -> None:
        if job.request is None:
            request = await self._persist(lambda: self._recording.request(job))
            job = self._store.move(job.result_id, job.status, request=request)
        job = self._store.move(job.result_id, QueryStatus.RUNNING)
        if job.digest is None:
            assert job.request is not None
            result = await self._run(job, job.request.receipt_id)
            self._store.put_rows(job.result_id, result.texts, result.evidence())
            job = self._store.move(job.result_id, QueryStatus.RUNNING, digest=result.digest.text())
        assert job.digest is not None
        digest = ResultDigest.decode(job.digest)
        await self._persist(lambda: self._complete(job.result_id, digest))

    async def _run(self, job: QueryJob, request_receipt_id: str) -> QueryResult:
        """Within its limits. Where that ends early, for whatever reason, so do the threads that work for it."""
        budget = Budget(self._limits)
        try:
            async with asyncio.timeout(self._limits.max_run_s) as time_left:
                return await self._execution.run(
                    descriptors.decode(job.descriptor),
                    profile_id=self._recording.profile_id,
                    request_receipt_id=request_receipt_id,
                    budget=budget,
                )
        except TimeoutError:
            if not time_left.expired():
                raise
            said = f"it took longer than {self._limits.max_run_s:g} seconds: ask for less, or for less evidence"
            raise QueryFault(QueryCode.QUERY_TIMEOUT, said) from None
        finally:
            budget.end()

    async def _complete(self, result_id: str, digest: ResultDigest) -> None:
        self._store.move(result_id, QueryStatus.COMPLETED, result=await self._recording.result(digest))

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """A message may be in the outbox, on its way: a hub or a disk that is away is waited for.

        A job that failed here could be one whose digest is in the log.
        """
        while True:
            try:
                return await work()
            except Unavailable as error:
                self._report("record", error)
                await asyncio.sleep(_RETRY_S)

    async def _give_up(self, job: QueryJob, code: QueryCode, message: str) -> None:
        """Where the disk takes not even the failure, wait for it; whatever happens, the next query has its worker."""

        async def fail() -> None:
            self._fail(job, code, message)

        try:
            await self._persist(fail)
        except Exception as error:  # noqa: BLE001  the job stays as it is, and the next run takes it up
            self._report("execution", error)

    def _fail(self, job: QueryJob, code: QueryCode, message: str) -> None:
        self._store.move(job.result_id, QueryStatus.FAILED, error_code=str(code), message=message[:_MOST_MESSAGE])

    # Answering.

    def seen(self, principal: QueryPrincipal, result_id: str) -> QueryJob:
        """A job that this principal may see. Whose it is not, to them it is not there."""
        return self._visible(principal, self._store.job(result_id), result_id)

    def asked(self, principal: QueryPrincipal, query_id: str) -> QueryJob:
        return self._visible(principal, self._store.of_query(query_id), query_id)

    def _visible(self, principal: QueryPrincipal, job: QueryJob | None, name: str) -> QueryJob:
        if job is None or (principal.sees != ALL and job.principal != principal.name):
            raise QueryFault(QueryCode.QUERY_NOT_FOUND, f"there is no {name[:80]!r} here")
        return job

    async def ended(self, job: QueryJob, wait_s: float) -> QueryJob:
        """The job once it has ended, or as it is after so long."""
        event = self._ended.get(job.result_id)
        if event is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), wait_s)
        found = self._store.job(job.result_id)
        assert found is not None
        return found

    def page(self, job: QueryJob, offset: int, limit: int) -> tuple[ResultDigest, ResultPage]:
        """Rows of a result. Raises `QueryFault` where there is none, or not yet."""
        digest = self.digest(job)
        rows = self._store.rows(job.result_id, digest.rows_hash, offset, limit, self._limits.max_page_bytes)
        cut = len(rows) < min(limit, digest.row_count - offset)
        return digest, ResultPage(rows, offset, len(rows) if cut else limit, digest.row_count)

    def digest(self, job: QueryJob) -> ResultDigest:
        if job.status is QueryStatus.FAILED:
            raise QueryFault(QueryCode(job.error_code or QueryCode.EXECUTION_FAILED), job.message or "it failed")
        if job.status is not QueryStatus.COMPLETED or job.digest is None:
            raise QueryFault(QueryCode.RESULT_NOT_READY, f"{job.result_id} is {job.status}")
        return ResultDigest.decode(job.digest)

    def evidence(self, job: QueryJob) -> dict[str, Plain]:
        self.digest(job)
        return self._store.evidence(job.result_id)


def _public_text(error: VeenError) -> str:
    """What whoever asked may know. Other errors may name files of the service: those are for its log."""
    if isinstance(error, Unverified) and error.what == "evidence":
        return str(error)
    said = "cannot be read now" if isinstance(error, Unavailable) else "are not what was written"
    return f"the tables or the log that the query is about {said}; the service's log says which"
