"""A task queue on a stream. Each task is done at least once, by one of several consumers.

async with TaskQueue.of(client, "letters") as queue:
    async for job in queue.jobs(lease_sec=60):
        ...
        await queue.ack(job)

The first claim in the log wins, and every consumer sees which one. The claim of a crashed consumer expires by the hub's
clock. So a task may be done twice but is never lost.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from veen.client.client import Client
from veen.overlays import queue as tasks
from veen.overlays.overlay import Walk
from veen.overlays.queue import QUEUE, Ack, Nack, Put, Task, TaskClaim, TaskRetry, TaskStatus
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_view import StateView
from veen.state.watch import Wake

LEASE_SEC = 60


@dataclass(frozen=True, slots=True)
class TaskJob:
    """A task that this consumer holds until `until`."""

    task_id: bytes
    claim_id: bytes
    item: bytes
    tries: int
    until: int


class TaskQueue:
    """An async context manager."""

    def __init__(self, view: StateView[Task, Walk]) -> None:
        self.view = view
        self._sender = EventSender(view)

    @classmethod
    def of(cls, client: Client, stream: str | bytes, *, cached: bool = True) -> Self:
        return cls(StateView.of(client, stream, QUEUE, cached=cached))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.view.close()

    async def add(self, item: bytes, *, max_tries: int | None = None, expires_at: int | None = None) -> SentEvent:
        """Add a task. Its id is the `msg_id` of the result."""
        return await self._sender.send_unchecked(Put(item, max_tries), expires_at=expires_at)

    async def take(self, lease_sec: int = LEASE_SEC) -> TaskJob | None:
        """Claim the first ready task, or return None. If another consumer is faster, the next task is tried."""
        while True:
            async with self.view.reading() as reading:
                found = next(tasks.ready(reading.live(), self.view.source.now()), None)
            if found is None:
                return None
            try:
                job = await self.claim(found[0], lease_sec)
            except EventRefused:
                continue  # another consumer claimed it since the reading
            if job is not None:
                return job

    async def claim(self, task_id: bytes, lease_sec: int = LEASE_SEC) -> TaskJob | None:
        """Claim one task; None if another consumer was faster. Raises `EventRefused` if the task is not ready."""
        sent = await self._sender.send(TaskClaim(task_id, lease_sec))
        if not sent.applied:
            return None
        async with self.view.reading(sent.at, fresh=False) as reading:
            task = reading.state(task_id)
        assert task.item is not None
        return TaskJob(task_id, sent.msg_id, task.item, task.tries, task.until)

    async def jobs(self, lease_sec: int = LEASE_SEC) -> AsyncGenerator[TaskJob, None]:
        """Yield claimed tasks as they become ready. Never ends by itself."""
        async with Wake(self.view) as wake:
            while True:
                wake.clear()
                job = await self.take(lease_sec)
                if job is not None:
                    yield job
                else:
                    await wake.wait(await self._idle_s())

    async def _idle_s(self) -> float | None:
        """Seconds until the next claim expires, or None if there is no claim."""
        now = self.view.source.now()
        async with self.view.reading() as reading:
            ends = [task.until for _, task in reading.live() if task.status(now) is TaskStatus.CLAIMED]
        return max(min(ends) - now, 1) if ends else None

    async def ack(self, job: TaskJob) -> SentEvent:
        """Mark the task as done. Raises `EventRefused` if this consumer no longer holds it."""
        return await self._sender.send(Ack(job.task_id, job.claim_id))

    async def fail(self, job: TaskJob, reason: str | None = None) -> SentEvent:
        """Return the task to the queue."""
        return await self._sender.send(Nack(job.task_id, job.claim_id, reason))

    async def retry(self, task_id: bytes) -> SentEvent:
        """Make a dead letter ready again."""
        return await self._sender.send(TaskRetry(task_id))

    async def tasks(self, status: TaskStatus | None = None) -> list[tuple[bytes, Task]]:
        """The tasks with a status, by default all that are not done, in the order they were added."""
        now = self.view.source.now()
        async with self.view.reading() as reading:
            found = reading.live() if status is not TaskStatus.DONE else iter(reading.states.items())
            return [(task_id, task) for task_id, task in found if status in (None, task.status(now)) and task.item]
