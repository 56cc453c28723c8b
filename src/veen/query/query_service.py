"""The query service: accept queries, record them, run them, record the digests, and store the results. §7, §8.

Order of writes: the job (pending), the request event, its place in the job; running; rows and digest; the result event;
completed. After a crash between any two, the next run finishes the job. If a digest exists it is reused, and nothing is
recorded twice.
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
from veen.query.execution import DEFAULTS, RETRY_AFTER_S, Budget, QueryExecution, QueryLimits, QueryResult
from veen.query.policy import ALL, QueryPrincipal
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_store import JobStore, QueryJob, QueryStatus

_MS = 1000
_RETRY_S = 1.0
_ID_BYTES = 16
_MAX_MESSAGE = 2_000
_LIMIT_CODES = frozenset({QueryCode.RESULT_TOO_LARGE, QueryCode.QUERY_TIMEOUT})

T = TypeVar("T")
Report = Callable[[str, BaseException], None]


@dataclass(frozen=True, slots=True)
class ResultPage:
    """Some rows of a result, as canonical JSON.

    `limit` is the requested number of rows, or the number returned if the page reached its byte limit first.
    """

    rows: list[bytes]
    offset: int
    limit: int
    total: int

    @property
    def has_more(self) -> bool:
        return self.offset + len(self.rows) < self.total


class QueryService:
    """One service on one folder, on the running event loop."""

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
        self._open: Counter[str] = Counter()  # unfinished queries per principal, including those being accepted
        self._query_ids: set[str] = set()  # query ids of this service and in the log
        self._ended: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._submitting = asyncio.Lock()

    async def start(self) -> None:
        """Resume the jobs of an earlier run, then start the workers."""
        self._query_ids = await self._recording.open()
        self._query_ids |= {job.query_id for job in self._store}
        for job in sorted(self._store, key=lambda job: job.submitted_at):
            if not job.ended:
                self._schedule(job)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def stop(self) -> None:
        """Cancel the workers. The next run resumes unfinished jobs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Accepting queries

    async def submit(
        self, principal: QueryPrincipal, value: Plain, is_lost: Callable[[], bool] = lambda: False
    ) -> QueryJob:
        """Accept and record a query. Raises `QueryFault`, also if the client disconnects before it is recorded."""
        descriptor = descriptors.normalise(value, f"q-{secrets.token_hex(_ID_BYTES)}")
        for stream in descriptor.scope:
            if not principal.may_ask(stream):
                raise QueryFault(QueryCode.FORBIDDEN_SCOPE, f"{principal.name} may not query {stream!r}")
        self._check_new(descriptor)
        self._check_room(principal)
        self._open[principal.name] += 1
        try:
            await self._execution.refresh(self._limits.fill_wait_s)
            await self._execution.streams(descriptor)
            async with self._submitting:
                self._check_new(descriptor)
                if is_lost():
                    raise QueryFault(QueryCode.UNAVAILABLE, "the client disconnected")
                job = self._job(principal, descriptor)
                self._store.add(job)
                self._query_ids.add(descriptor.query_id)
            return await self._accept(job)
        finally:
            self._open[principal.name] -= 1

    def _check_room(self, principal: QueryPrincipal) -> None:
        if self._open[principal.name] >= self._limits.max_open:
            message = f"{principal.name} has {self._limits.max_open} unfinished queries, the limit"
            raise QueryFault(QueryCode.TOO_MANY_QUERIES, message, retry_after=RETRY_AFTER_S)
        if self._open.total() >= self._limits.max_waiting:
            message = "the queue of this service is full"
            raise QueryFault(QueryCode.UNAVAILABLE, message, retry_after=RETRY_AFTER_S)

    def _check_new(self, descriptor: QueryDescriptor) -> None:
        if descriptor.query_id in self._query_ids:
            raise QueryFault(QueryCode.DUPLICATE_QUERY_ID, f"query id {descriptor.query_id} is already in use")

    def _job(self, principal: QueryPrincipal, descriptor: QueryDescriptor) -> QueryJob:
        now_ms = int(self._clock() * _MS)
        return QueryJob(
            descriptor.query_id, descriptor.result_id, principal.name, principal.subject_id, now_ms, descriptor.text()
        )

    async def _accept(self, job: QueryJob) -> QueryJob:
        try:
            job = self._store.move(job.result_id, QueryStatus.PENDING, request=await self._recording.request(job))
        except VeenError as error:
            self._report("record", error)
            with suppress(Unavailable):  # the job stays pending, and the next run resumes it
                self._fail(job, QueryCode.INTERNAL_ERROR, "the query could not be recorded; see the service log")
            raise QueryFault(QueryCode.UNAVAILABLE, "the query could not be recorded") from None
        self._schedule(job)
        return job

    def _schedule(self, job: QueryJob) -> None:
        self._ended[job.result_id] = asyncio.Event()
        self._open[job.principal] += 1
        self._queue.put_nowait(job.result_id)

    # Running queries

    async def _work(self) -> None:
        while True:
            result_id = await self._queue.get()
            job = self._store.job(result_id)
            assert job is not None
            try:
                await self._execute(job)
            except QueryFault as fault:
                code = QueryCode(fault.code)
                await self._fail_job(job, code if code in _LIMIT_CODES else QueryCode.EXECUTION_FAILED, fault.message)
            except VeenError as error:
                self._report("execution", error)
                await self._fail_job(job, QueryCode.EXECUTION_FAILED, _public_text(error))
            except Exception as error:  # noqa: BLE001 # the client must see that the query failed
                self._report("execution", error)
                await self._fail_job(job, QueryCode.INTERNAL_ERROR, "the service failed; see its log")
            self._open[job.principal] -= 1
            self._ended.pop(result_id).set()

    async def _execute(self, job: QueryJob) -> None:
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
        """Run within the limits. If this ends early for any reason, the threads that work on the query stop too."""
        budget = Budget(self._limits)
        try:
            async with asyncio.timeout(self._limits.max_run_s) as deadline:
                return await self._execution.run(
                    descriptors.decode(job.descriptor),
                    profile_id=self._recording.profile_id,
                    request_receipt_id=request_receipt_id,
                    budget=budget,
                )
        except TimeoutError:
            if not deadline.expired():
                raise
            message = f"the query took more than {self._limits.max_run_s:g} seconds; narrow it or ask for less evidence"
            raise QueryFault(QueryCode.QUERY_TIMEOUT, message) from None
        finally:
            budget.end()

    async def _complete(self, result_id: str, digest: ResultDigest) -> None:
        self._store.move(result_id, QueryStatus.COMPLETED, result=await self._recording.result(digest))

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat until the hub or disk is available: the message may already be in the outbox.

        Failing the job here could fail one whose digest is in the log.
        """
        while True:
            try:
                return await work()
            except Unavailable as error:
                self._report("record", error)
                await asyncio.sleep(_RETRY_S)

    async def _fail_job(self, job: QueryJob, code: QueryCode, message: str) -> None:
        """Mark the job as failed. Waits for the disk; after any other error the worker goes on with the next query."""

        async def fail() -> None:
            self._fail(job, code, message)

        try:
            await self._persist(fail)
        except Exception as error:  # noqa: BLE001 # the job stays unfinished, and the next run resumes it
            self._report("execution", error)

    def _fail(self, job: QueryJob, code: QueryCode, message: str) -> None:
        self._store.move(job.result_id, QueryStatus.FAILED, error_code=str(code), message=message[:_MAX_MESSAGE])

    # Answering

    def job_of_result(self, principal: QueryPrincipal, result_id: str) -> QueryJob:
        """A job that this principal may see. Other jobs are reported as not found."""
        return self._visible(principal, self._store.job(result_id), result_id)

    def job_of_query(self, principal: QueryPrincipal, query_id: str) -> QueryJob:
        return self._visible(principal, self._store.of_query(query_id), query_id)

    def _visible(self, principal: QueryPrincipal, job: QueryJob | None, name: str) -> QueryJob:
        if job is None or (principal.sees != ALL and job.principal != principal.name):
            raise QueryFault(QueryCode.QUERY_NOT_FOUND, f"{name[:80]!r} was not found")
        return job

    async def ended(self, job: QueryJob, wait_s: float) -> QueryJob:
        """The job when it has ended, or its state after `wait_s`."""
        event = self._ended.get(job.result_id)
        if event is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), wait_s)
        found = self._store.job(job.result_id)
        assert found is not None
        return found

    def page(self, job: QueryJob, offset: int, limit: int) -> tuple[ResultDigest, ResultPage]:
        """Rows of a result. Raises `QueryFault` if the query failed or is not finished."""
        digest = self.digest(job)
        rows = self._store.rows(job.result_id, digest.rows_hash, offset, limit, self._limits.max_page_bytes)
        cut = len(rows) < min(limit, digest.row_count - offset)
        return digest, ResultPage(rows, offset, len(rows) if cut else limit, digest.row_count)

    def digest(self, job: QueryJob) -> ResultDigest:
        if job.status is QueryStatus.FAILED:
            raise QueryFault(QueryCode(job.error_code or QueryCode.EXECUTION_FAILED), job.message or "the query failed")
        if job.status is not QueryStatus.COMPLETED or job.digest is None:
            raise QueryFault(QueryCode.RESULT_NOT_READY, f"{job.result_id} is {job.status}")
        return ResultDigest.decode(job.digest)

    def evidence(self, job: QueryJob) -> dict[str, Plain]:
        self.digest(job)
        return self._store.evidence(job.result_id)


def _public_text(error: VeenError) -> str:
    """The text for the client. Other errors may contain paths of the server and go to its log only."""
    if isinstance(error, Unverified) and error.what == "evidence":
        return str(error)
    problem = "cannot be read now" if isinstance(error, Unavailable) else "are damaged"
    return f"the tables or the log of this query {problem}; see the service log"
