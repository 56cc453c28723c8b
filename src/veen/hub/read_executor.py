"""Runs blocking work of requests on a thread pool: queues with limits, fair to each connection."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, TypeVar

from plumbing.http.message import Report, Request, Respond, Response
from veen.core import Malformed, Refused, Unavailable, Unverified
from veen.hub import responses
from veen.hub.conditions import Conditions, Reason, public_text, system_error
from veen.storage.safe_open import SAFE_FLAGS

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue in which owners take turns. Items of one owner keep their order."""

    __slots__ = ("_queues", "waiting")

    def __init__(self) -> None:
        self._queues: dict[object, deque[T]] = {}  # none is empty; the first is next
        self.waiting = 0

    def count(self, owner: object) -> int:
        return len(self._queues.get(owner, ()))

    def put(self, owner: object, item: T) -> None:
        queue = self._queues.get(owner)
        if queue is None:
            self._queues[owner] = deque((item,))
        else:
            queue.append(item)
        self.waiting += 1

    def take(self) -> T | None:
        """The first item of the owner whose turn it is. The owner then moves to the end."""
        if not self._queues:
            return None
        owner = next(iter(self._queues))
        queue = self._queues.pop(owner)
        item = queue.popleft()
        self.waiting -= 1
        if queue:
            self._queues[owner] = queue
        return item

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Drop all other items."""
        kept = {owner: deque(item for item in queue if wanted(item)) for owner, queue in self._queues.items()}
        self._queues = {owner: queue for owner, queue in kept.items() if queue}
        self.waiting = sum(map(len, self._queues.values()))


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """Work for the thread pool."""

    run: Callable[[], None]
    owner: object = None  # a connection
    is_lost: Callable[[], bool] = lambda: False


class BoundedQueue:
    """Queued work of one kind. Used on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        threads: int,
        max_queued: int | None = None,
        max_per_owner: int | None = None,
        on_relieved: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_queued` jobs may wait, `max_per_owner` of them per owner; None is no limit.

        `on_relieved` is called once after rejections, when at most half of `max_per_owner` wait.
        """
        self._loop = loop
        self._executor = executor
        self._free = threads
        self._max_queued = max_queued
        self._max_per_owner = max_per_owner
        self._on_relieved = on_relieved
        self._is_refusing = False
        self._queue: FairQueue[QueuedJob] = FairQueue()

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def put(self, job: QueuedJob) -> bool:
        """Start or queue a job. Returns False if the queue is full."""
        if self._free:
            self._begin(job)
            return True
        if not self._has_room(job.owner):
            self._is_refusing = True
            return False
        self._queue.put(job.owner, job)
        return True

    def _has_room(self, owner: object) -> bool:
        if self._max_per_owner is not None and self._queue.count(owner) >= self._max_per_owner:
            return False
        if self._max_queued is not None and self.waiting >= self._max_queued:
            self._queue.keep(lambda waiting: not waiting.is_lost())
            return self.waiting < self._max_queued
        return True

    def _begin(self, job: QueuedJob) -> None:
        self._free -= 1
        try:
            self._executor.submit(self._do, job)
        except RuntimeError:  # the pool is closed: the hub is stopping
            self._free += 1

    def _do(self, job: QueuedJob) -> None:
        """Runs on the thread pool."""
        try:
            job.run()
        finally:
            self._loop.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self._free += 1
        while self._free and (job := self._queue.take()) is not None:
            if not job.is_lost():
                self._begin(job)
        if self._is_refusing and self.waiting <= (self._max_per_owner or 0) // 2:
            self._is_refusing = False
            self._on_relieved()


Failed = Callable[[Exception], None]

# Limits on the pool's four threads. Pages and subscribers (one thread) always leave one for short requests.
_SHORT_AT_ONCE = 4
_LONG_AT_ONCE = 2
_WRITES_AT_ONCE = 2
# Queue limits: in total, and per connection.
MAX_SHORT_QUEUED, MAX_SHORT_PER_CONNECTION = 4096, 128
MAX_LONG_QUEUED, MAX_LONG_PER_CONNECTION = 256, 16
_RETRY_AFTER_S = 1
_DAMAGED = "see the hub's log for the place, and run `veen fsck DIR` to find what can be repaired"


class ReadExecutor:
    """Runs work on the thread pool and answers on the loop. `report` receives our own bugs.

    A client learns that a file of the hub failed, never which one. The log has the path.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, conditions: Conditions, report: Report
    ) -> None:
        self.loop = loop
        self._executor = executor
        self._conditions = conditions
        self._report = report
        self.short = BoundedQueue(
            loop, executor, _SHORT_AT_ONCE, MAX_SHORT_QUEUED, MAX_SHORT_PER_CONNECTION, self._relieved("short")
        )
        self.long = BoundedQueue(
            loop, executor, _LONG_AT_ONCE, MAX_LONG_QUEUED, MAX_LONG_PER_CONNECTION, self._relieved("long")
        )
        self._writes = BoundedQueue(loop, executor, _WRITES_AT_ONCE)

    def write(
        self, work: Callable[[], T], done: Callable[[T | Response], None], failed: Failed, *, as_json: bool
    ) -> None:
        """Write part of an attachment. `done` gets the result of `work`, or the error response.

        On a disk error `failed` is called before `done`. Each upload has one job at a time.
        """
        reason = Reason.ATTACHMENT_WRITE
        self._writes.put(QueuedJob(lambda: self._run(work, done, failed, reason, as_json)))

    def answer(self, request: Request, work: Callable[[], Response], respond: Respond, *, long: bool = False) -> None:
        """Answer a request. Rejects it if the queue is full, and drops it once the client is gone. Pages are `long`."""
        as_json = responses.wants_json(request)
        endpoint = "/".join(request.path.split("/", 3)[:3])

        def done(response: Response) -> None:
            if response.status < HTTPStatus.BAD_REQUEST:
                self._conditions.leave(Reason.STORAGE, endpoint)
            respond(response)

        def failed(error: Exception) -> None:
            self.record_error(error, endpoint)

        queue, name = (self.long, "long") if long else (self.short, "short")
        job = QueuedJob(
            lambda: self._run(work, done, failed, Reason.STORAGE, as_json), request.connection, request.is_lost
        )
        if not queue.put(job):
            text = self._conditions.enter(Reason.READ_OVERLOAD, source=name, lane=name)
            refused = Refused("E.UNAVAILABLE", text, retry_after=_RETRY_AFTER_S)
            respond(responses.refusal(refused, as_json=as_json))

    def answer_on(self, pool: Executor, work: Callable[[], Response], request: Request, respond: Respond) -> None:
        """Answer a request whose work takes long, on a pool of its own."""
        as_json = responses.wants_json(request)

        def failed(error: Exception) -> None:
            self.record_error(error, request.path)

        pool.submit(self._run, work, respond, failed, Reason.STORAGE, as_json)

    def run_unanswered(self, work: Callable[[], None]) -> None:
        """Run work without an answer; on this thread if the pool is closed."""
        try:
            self._executor.submit(self._try, work)
        except RuntimeError:
            self._try(work)

    def record_error(self, error: Exception, where: str) -> None:
        """On the loop: record an error of stored data, or report a bug."""
        if isinstance(error, Malformed):  # only a repair ends this state, or a missing file that is put back
            missing = error.__cause__.filename if isinstance(error.__cause__, FileNotFoundError) else None
            recheck = None if missing is None else lambda: not _can_open(str(missing))
            self._conditions.enter(Reason.DAMAGE, error, source=str(error), recheck=recheck)
        elif isinstance(error, (Unavailable, OSError)):
            found = system_error(error)
            path = None if found is None else found.filename
            if path is None:
                self._conditions.enter(Reason.STORAGE, error, source=where)
            else:
                self._conditions.enter(Reason.STORAGE, error, source=path, recheck=lambda: not _can_open(path))
        else:
            self._report(where, error)

    def _run(
        self,
        work: Callable[[], T],
        done: Callable[[T | Response], None],
        failed: Failed,
        reason: Reason,
        as_json: bool,
    ) -> None:
        outcome: T | Response
        try:
            outcome = work()
        except (Unverified, Refused) as error:
            outcome = responses.refusal(responses.as_refused(error), as_json=as_json)
        except (Unavailable, OSError) as error:
            self.loop.call_soon_threadsafe(failed, error)
            text = public_text(reason, error)
            refused = Refused("E.UNAVAILABLE", text, retry_after=_RETRY_AFTER_S)
            outcome = responses.refusal(refused, as_json=as_json)
        except Malformed as error:  # requests were decoded before: this is stored data
            self.loop.call_soon_threadsafe(failed, error)
            refused = Refused("E.UNAVAILABLE", f"{public_text(Reason.DAMAGE)}: {_DAMAGED}")
            outcome = responses.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        except Exception as error:  # noqa: BLE001  the client needs an answer in any case
            self.loop.call_soon_threadsafe(self._report, "executor", error)
            refused = Refused("E.UNAVAILABLE", "the hub failed to answer; see its log")
            outcome = responses.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self.loop.call_soon_threadsafe(done, outcome)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.loop.call_soon_threadsafe(self.record_error, error, "executor")

    def _relieved(self, name: str) -> Callable[[], None]:
        return lambda: self._conditions.leave(Reason.READ_OVERLOAD, name)


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | SAFE_FLAGS))
    except OSError:
        return False
    return True
