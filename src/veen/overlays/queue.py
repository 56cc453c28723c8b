"""Queue: tasks that are done at least once, by one of several consumers. Spec §11.4.

A put creates a task; the task id is the id of its message. A consumer claims the task for some seconds: the first claim
in the log wins, and every consumer sees which one. The consumer does the work and acknowledges it, or returns the task.
A claim that expires by `hub_ts` frees the task for the next claim. After `max_tries` claims without an ack the task is
a dead letter until it is retried.

    absent --put--> ready --claim--> claimed --ack--> done
                      ^                 |  nack, or the claim expires
                      +-----------------+---- after max_tries: dead --retry--> ready
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from veen.core import cbor
from veen.core.cbor import Bool, Bstr, Bytes, Uint, Wire, text_map
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event, FoldEntry, body_text, event
from veen.overlays.overlay import FoldStep, WalkOverlay


@event("queue.put.v1")
class Put(Event):
    """`queue.put.v1`: a new task. Without `max_tries` it never becomes a dead letter."""

    item: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    max_tries: Annotated[int | None, Uint(least=1, optional=True)] = None


@event("queue.claim.v1")
class TaskClaim(Event):
    """`queue.claim.v1`: reserves a task for `lease_sec` seconds. The claim id is the id of its message."""

    task: Annotated[bytes, Bstr()]
    lease_sec: Annotated[int, Uint()]


@event("queue.ack.v1")
class Ack(Event):
    """`queue.ack.v1`: the task is done."""

    task: Annotated[bytes, Bstr()]
    claim: Annotated[bytes, Bstr()]


@event("queue.nack.v1")
class Nack(Event):
    """`queue.nack.v1`: the consumer returns the task."""

    task: Annotated[bytes, Bstr()]
    claim: Annotated[bytes, Bstr()]
    reason: Annotated[str | None, body_text(optional=True)] = None


@event("queue.retry.v1")
class TaskRetry(Event):
    """`queue.retry.v1`: makes a dead letter ready again."""

    task: Annotated[bytes, Bstr()]


class TaskStatus(StrEnum):
    """The status of a task at one time."""

    READY = "ready"
    CLAIMED = "claimed"
    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"


@text_map("task")
class Task(Wire):
    """The state of a task; `item` is None until its put."""

    tries: Annotated[int, Uint()] = 0
    until: Annotated[int, Uint()] = 0  # when `claim` expires
    done: Annotated[bool, Bool()] = False
    item: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None
    max_tries: Annotated[int | None, Uint(optional=True)] = None
    expires_at: Annotated[int | None, Uint(optional=True)] = None  # from the put's header
    claim: Annotated[bytes | None, Bstr(optional=True)] = None
    reason: Annotated[str | None, body_text(optional=True)] = None  # of the last nack

    def status(self, now: int) -> TaskStatus:
        """The status at `now`, in seconds of hub time."""
        if self.done:
            return TaskStatus.DONE
        if self.claim is not None and now < self.until:
            return TaskStatus.CLAIMED
        if self.max_tries is not None and self.tries >= self.max_tries:
            return TaskStatus.DEAD
        return TaskStatus.READY if self.expires_at is None or now <= self.expires_at else TaskStatus.EXPIRED


ABSENT = Task()


class Queue(WalkOverlay[Task]):
    """One part per task, under its id."""

    CLASS = "queue"
    EVENTS = (Put, TaskClaim, Ack, Nack, TaskRetry)
    INITIAL = ABSENT

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        if isinstance(event, Put):
            return (entry.origin,)
        assert isinstance(event, TaskClaim | Ack | Nack | TaskRetry)
        return (event.task,)

    def refusal(self, state: Task, step: FoldStep) -> str | None:
        event, status = step.event, state.status(step.entry.hub_ts)
        if isinstance(event, Put):
            return None if state.item is None else "the task already exists"
        if state.item is None:
            return "no such task"
        if status is TaskStatus.DONE:
            return "the task is done"
        match event:
            case TaskClaim():
                return None if status is TaskStatus.READY else f"the task is {status}"
            case Ack() | Nack():
                return None if event.claim == state.claim else "the task is not held by this claim"
            case _:
                return None if status is TaskStatus.DEAD else "the task is not a dead letter"

    def apply(self, state: Task, step: FoldStep) -> Task:
        event, entry = step.event, step.entry
        match event:
            case Put():
                expires_at = entry.header.expires_at if entry.header else None
                return replace(state, item=event.item, max_tries=event.max_tries, expires_at=expires_at)
            case TaskClaim():
                until = min(entry.hub_ts + event.lease_sec, U64_MAX)
                return replace(state, tries=state.tries + 1, claim=entry.origin, until=until)
            case Ack():
                return replace(state, done=True)
            case Nack():
                return replace(state, claim=None, until=0, reason=event.reason)
            case TaskRetry():
                return replace(state, tries=0, claim=None, until=0)
        raise AssertionError(event)

    def live(self, state: Task) -> bool:
        return not state.done

    def plain(self, part: bytes, state: Task) -> Mapping[str, cbor.Value]:
        shown = ("item", "tries", "max_tries", "claim", "until", "done", "expires_at", "reason")
        return {"task": part, **{name: getattr(state, name) for name in shown}}


QUEUE = Queue()


def with_status(tasks: Iterable[tuple[bytes, Task]], status: TaskStatus, now: int) -> Iterator[tuple[bytes, Task]]:
    """The tasks with a status at `now`, in the given order. Folds and caches list tasks in put order."""
    return ((task_id, task) for task_id, task in tasks if task.status(now) is status)


def ready(tasks: Iterable[tuple[bytes, Task]], now: int) -> Iterator[tuple[bytes, Task]]:
    """The tasks that can be claimed now. Pass `fold.states.items()` or `timeline.live()`."""
    return with_status(tasks, TaskStatus.READY, now)


def holds(task: Task, claim_id: bytes, now: int) -> bool:
    """Whether a claim won the task and has not expired."""
    return task.claim == claim_id and task.status(now) is TaskStatus.CLAIMED
