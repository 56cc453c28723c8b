"""A queue in which owners take turns: who has much waiting does not hold up who has little."""

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


class Rota(Generic[T]):
    """Things that wait, each for its owner; those of one owner keep their order."""

    __slots__ = ("_queues", "waiting")

    def __init__(self) -> None:
        self._queues: dict[object, deque[T]] = {}  # none is empty; the first is next
        self.waiting = 0

    def count(self, owner: object) -> int:
        return len(self._queues.get(owner, ()))

    def put(self, owner: object, thing: T) -> None:
        queue = self._queues.get(owner)
        if queue is None:
            self._queues[owner] = deque((thing,))
        else:
            queue.append(thing)
        self.waiting += 1

    def take(self) -> T | None:
        """The first thing of the owner whose turn it is, who then stands behind the others."""
        if not self._queues:
            return None
        owner = next(iter(self._queues))
        queue = self._queues.pop(owner)
        thing = queue.popleft()
        self.waiting -= 1
        if queue:
            self._queues[owner] = queue
        return thing

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Let go of all others."""
        kept = {owner: deque(thing for thing in queue if wanted(thing)) for owner, queue in self._queues.items()}
        self._queues = {owner: queue for owner, queue in kept.items() if queue}
        self.waiting = sum(map(len, self._queues.values()))


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """Something to do on the executor."""

    run: Callable[[], None]
    owner: object = None  # a connection
    is_lost: Callable[[], bool] = lambda: False


class BoundedQueue:
    """Work of one kind. On the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        at_once: int,
        most: int | None = None,
        share: int | None = None,
        on_relieved: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` jobs wait, of which `share` are one owner's; None is no bound.

        `on_relieved` is called once after refusals, when at most half of `share` wait.
        """
        self._loop = loop
        self._executor = executor
        self._free = at_once
        self._most = most
        self._share = share
        self._on_relieved = on_relieved
        self._is_refusing = False
        self._rota: Rota[QueuedJob] = Rota()

    @property
    def waiting(self) -> int:
        return self._rota.waiting

    def put(self, job: QueuedJob) -> bool:
        """False where it can neither be begun nor wait."""
        if self._free:
            self._begin(job)
            return True
        if not self._has_room(job.owner):
            self._is_refusing = True
            return False
        self._rota.put(job.owner, job)
        return True

    def _has_room(self, owner: object) -> bool:
        if self._share is not None and self._rota.count(owner) >= self._share:
            return False
        if self._most is not None and self.waiting >= self._most:
            self._rota.keep(lambda waiting: not waiting.is_lost())
            return self.waiting < self._most
        return True

    def _begin(self, job: QueuedJob) -> None:
        self._free -= 1
        try:
            self._executor.submit(self._do, job)
        except RuntimeError:  # it has closed: the hub stops, and nobody waits
            self._free += 1

    def _do(self, job: QueuedJob) -> None:
        """On the executor."""
        try:
            job.run()
        finally:
            self._loop.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self._free += 1
        while self._free and (job := self._rota.take()) is not None:
            if not job.is_lost():
                self._begin(job)
        if self._is_refusing and self.waiting <= (self._share or 0) // 2:
            self._is_refusing = False
            self._on_relieved()


Failed = Callable[[Exception], None]

# Of the executor's four threads. Pages and subscribers, which have a lane of one, leave one to what is short.
_SHORT_AT_ONCE = 4
_LONG_AT_ONCE = 2
_WRITES_AT_ONCE = 2
# What waits beyond them: in all, and of one connection.
MOST_SHORT, SHORT_SHARE = 4096, 128
MOST_LONG, LONG_SHARE = 256, 16
_RETRY_AFTER_S = 1
_DAMAGED = "its log says where, and veen fsck DIR finds what can be repaired"


class Later:
    """Does things on the executor and answers on the loop. `report` hears of our own mistakes.

    A client learns that a file of the hub failed, never which one: the log has the path.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, conditions: Conditions, report: Report
    ) -> None:
        self.loop = loop
        self._executor = executor
        self._conditions = conditions
        self._report = report
        self.short = BoundedQueue(loop, executor, _SHORT_AT_ONCE, MOST_SHORT, SHORT_SHARE, self._relieved("short"))
        self.long = BoundedQueue(loop, executor, _LONG_AT_ONCE, MOST_LONG, LONG_SHARE, self._relieved("long"))
        self._writes = BoundedQueue(loop, executor, _WRITES_AT_ONCE)

    def __call__(
        self, work: Callable[[], T], done: Callable[[T | Response], None], failed: Failed, *, as_json: bool
    ) -> None:
        """Write attachments. `done` gets what `work` returns, or the answer that says why it failed.

        `failed` gets the error where the disk refused, before `done`. Each upload has one job at a time.
        """
        reason = Reason.ATTACHMENT_WRITE
        self._writes.put(QueuedJob(lambda: self._run(work, done, failed, reason, as_json)))

    def answer(self, request: Request, work: Callable[[], Response], respond: Respond, *, long: bool = False) -> None:
        """As above, for a request: it may be told to come again, and is dropped once nobody waits. Pages are `long`."""
        as_json = responses.wants_json(request)
        endpoint = "/".join(request.path.split("/", 3)[:3])

        def done(response: Response) -> None:
            if response.status < HTTPStatus.BAD_REQUEST:
                self._conditions.leave(Reason.STORAGE, endpoint)
            respond(response)

        def failed(error: Exception) -> None:
            self.note(error, endpoint)

        lane, name = (self.long, "long") if long else (self.short, "short")
        job = QueuedJob(
            lambda: self._run(work, done, failed, Reason.STORAGE, as_json), request.connection, request.is_lost
        )
        if not lane.put(job):
            text = self._conditions.enter(Reason.READ_OVERLOAD, source=name, lane=name)
            refused = Refused("E.UNAVAILABLE", text, retry_after=_RETRY_AFTER_S)
            respond(responses.refusal(refused, as_json=as_json))

    def quietly(self, work: Callable[[], None]) -> None:
        """Do it without an answer; at once where the executor has closed."""
        try:
            self._executor.submit(self._try, work)
        except RuntimeError:
            self._try(work)

    def note(self, error: Exception, where: str) -> None:
        """On the loop: reading or writing what the hub keeps failed at `where`, or a mistake of ours did."""
        if isinstance(error, Malformed):  # which only a repair ends
            self._conditions.enter(Reason.DAMAGE, error, source=str(error))
        elif isinstance(error, (Unavailable, OSError)):
            found = system_error(error)
            path = None if found is None else found.filename
            if path is None:
                self._conditions.enter(Reason.STORAGE, error, source=where)
            else:
                self._conditions.enter(Reason.STORAGE, error, source=path, recheck=lambda: not _opens(path))
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
        except Malformed as error:  # requests are judged before: this is what the hub keeps
            self.loop.call_soon_threadsafe(failed, error)
            refused = Refused("E.UNAVAILABLE", f"{public_text(Reason.DAMAGE)}: {_DAMAGED}")
            outcome = responses.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        except Exception as error:  # noqa: BLE001  whatever it is, someone waits for an answer
            self.loop.call_soon_threadsafe(self._report, "executor", error)
            refused = Refused("E.UNAVAILABLE", "the hub failed to answer; its log says why")
            outcome = responses.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self.loop.call_soon_threadsafe(done, outcome)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.loop.call_soon_threadsafe(self.note, error, "executor")

    def _relieved(self, name: str) -> Callable[[], None]:
        return lambda: self._conditions.leave(Reason.READ_OVERLOAD, name)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | SAFE_FLAGS))
    except OSError:
        return False
    return True
