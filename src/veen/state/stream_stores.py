"""Stores on a stream: keys and values, tasks, wallets. Each combines a `StateView` with an `EventSender`."""

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from veen.client.client import Client
from veen.client.evidence import Evidence
from veen.overlays import AnyOverlay, Applied, At, EventFault, FoldStep
from veen.overlays import kv as maps
from veen.overlays import queue as tasks
from veen.overlays.crdt import Register
from veen.overlays.kv import KV, Change
from veen.overlays.overlay import Walk
from veen.overlays.queue import QUEUE, Ack, Nack, Put, Task, TaskClaim, TaskRetry, TaskStatus
from veen.overlays.wallet import WALLETS, Function, violations
from veen.overlays.wallet_ledger import (
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Wallet,
    Withdraw,
    transfer_id,
    wallet_id,
)
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_proof import prove
from veen.state.state_view import StateView
from veen.state.watch import Wake, watch

S = TypeVar("S")
M = TypeVar("M")


class StreamStore(Generic[S, M]):
    """A stream under one overlay. An async context manager. A data directory is read-only; a hub can be written to."""

    OVERLAY: ClassVar[AnyOverlay]

    def __init__(self, view: StateView[S, M]) -> None:
        self.view = view

    @classmethod
    def of(cls, client: Client, stream: str | bytes, *, cached: bool = True) -> Self:
        return cls(StateView.of(client, stream, cls.OVERLAY, cached=cached))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.view.close()

    @property
    def sender(self) -> EventSender[S, M]:
        """Raises `ValueError` if the source is not a hub."""
        return EventSender(self.view)


class KvStore(StreamStore[Register, Register]):
    """A key-value store on a stream, which anyone with the reader key can audit.

    async with KvStore.of(client, "settings") as store:
        await store.put(b"door", b"open")
        assert await store.get(b"door") == b"open"
    """

    OVERLAY = KV

    async def get(self, key: bytes, at: At | None = None) -> bytes | None:
        """The value of a key, now or after an entry, or None."""
        async with self.view.reading(at) as reading:
            return reading.state(key).value

    async def keys(self, prefix: bytes = b"", at: At | None = None) -> list[bytes]:
        """The keys that have a value, ascending."""
        async with self.view.reading(at) as reading:
            return list(maps.keys(dict(reading.states), prefix))

    async def history(self, key: bytes, at: At | None = None) -> list[FoldStep]:
        """Every write and deletion of a key, in order."""
        async with self.view.reading(at) as reading:
            return list(reading.history(key))

    async def put(self, key: bytes, value: bytes) -> SentEvent:
        """Set a key. The write is always logged, but another client may overwrite it at any time."""
        async with self.view.reading() as reading:
            event = maps.put(reading.states, key, value)
        return await self.sender.send_unchecked(event)

    async def delete(self, key: bytes) -> SentEvent:
        async with self.view.reading() as reading:
            event = maps.delete(reading.states, key)
        return await self.sender.send_unchecked(event)

    async def watch(self, prefix: bytes = b"") -> AsyncGenerator[Change, None]:
        """Yield changes from now on."""
        async with aclosing(watch(self.view)) as coming:
            async for seen in coming:
                for outcome in seen.outcomes:
                    change = maps.change(outcome) if isinstance(outcome, Applied) else None
                    if change is not None and change.key.startswith(prefix):
                        yield change

    async def prove(self, key: bytes, at: At | None = None) -> Evidence:
        """Evidence for the value of a key."""
        async with self.view.reading(at) as reading:
            return await prove(self.view, reading, key)


LEASE_SEC = 60


@dataclass(frozen=True, slots=True)
class TaskJob:
    """A task that this consumer holds until `until`."""

    task_id: bytes
    claim_id: bytes
    item: bytes
    tries: int
    until: int


class TaskQueue(StreamStore[Task, Walk]):
    """A task queue on a stream. Each task is done at least once, by one of several consumers.

    async with TaskQueue.of(client, "letters") as queue:
        async for job in queue.jobs(lease_sec=60):
            ...
            await queue.ack(job)

    The first claim in the log wins, and every consumer sees which one. The claim of a crashed consumer expires by the
    hub's clock. So a task may be done twice but is never lost.
    """

    OVERLAY = QUEUE

    async def add(self, item: bytes, *, max_tries: int | None = None, expires_at: int | None = None) -> SentEvent:
        """Add a task. Its id is the `msg_id` of the result."""
        return await self.sender.send_unchecked(Put(item, max_tries), expires_at=expires_at)

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
        sent = await self.sender.send(TaskClaim(task_id, lease_sec))
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
        return await self.sender.send(Ack(job.task_id, job.claim_id))

    async def fail(self, job: TaskJob, reason: str | None = None) -> SentEvent:
        """Return the task to the queue."""
        return await self.sender.send(Nack(job.task_id, job.claim_id, reason))

    async def retry(self, task_id: bytes) -> SentEvent:
        """Make a dead letter ready again."""
        return await self.sender.send(TaskRetry(task_id))

    async def tasks(self, status: TaskStatus | None = None) -> list[tuple[bytes, Task]]:
        """The tasks with a status, by default all that are not done, in the order they were added."""
        now = self.view.source.now()
        async with self.view.reading() as reading:
            found = reading.live() if status is not TaskStatus.DONE else iter(reading.states.items())
            return [(task_id, task) for task_id, task in found if status in (None, task.status(now)) and task.item]


class WalletBook(StreamStore[Wallet, Function]):
    """Every wallet of one stream. Each operation is checked against the state before it is sent.

    async with WalletBook.of(client, "ledger") as book:
        await book.deposit(wallet_id, 500)
        assert (await book.wallet(wallet_id)).balance == 500

    Amounts are in the smallest unit; times are the hub's.
    """

    OVERLAY = WALLETS

    async def wallet(self, of_wallet: bytes, at: At | None = None) -> Wallet:
        """A wallet now, or after an entry."""
        async with self.view.reading(at) as reading:
            return reading.state(of_wallet)

    async def violations(self, at: At | None = None) -> list[EventFault]:
        """Logged debits that exceeded balance or limit. They were not applied."""
        async with self.view.reading(at) as reading:
            return list(violations(reading.faults()))

    async def open(self, realm_id: bytes, ctx_id: bytes, currency: str) -> SentEvent:
        of_wallet = wallet_id(realm_id, ctx_id, currency)
        return await self.sender.send(Open(of_wallet, realm_id, ctx_id, currency, self._now()))

    async def close(self, of_wallet: bytes) -> SentEvent:
        return await self.sender.send(Close(of_wallet, self._now()))

    async def deposit(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        return await self.sender.send(Deposit(of_wallet, amount, self._now(), ref))

    async def withdraw(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        """With a `ref`, a retry is the same withdrawal and is refused as a copy."""
        return await self.sender.send(Withdraw(of_wallet, amount, self._now(), ref))

    async def transfer(
        self, of_wallet: bytes, to_wallet: bytes, amount: int, transfer: bytes | None = None
    ) -> SentEvent:
        """With the same `transfer` id, a retry is the same transfer and is refused as a copy."""
        id_ = transfer_id(os.urandom(32)) if transfer is None else transfer
        return await self.sender.send(Transfer(of_wallet, to_wallet, amount, self._now(), id_))

    async def adjust(self, of_wallet: bytes, delta: int, reason: str, ref: bytes | None = None) -> SentEvent:
        return await self.sender.send(Adjust(of_wallet, delta, self._now(), reason, ref))

    async def limit(self, of_wallet: bytes, daily_limit: int | None) -> SentEvent:
        """Set the daily limit; None removes it."""
        return await self.sender.send(Limit(of_wallet, daily_limit, self._now()))

    async def freeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self.sender.send(Freeze(of_wallet, self._now(), reason))

    async def unfreeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self.sender.send(Unfreeze(of_wallet, self._now(), reason))

    def _now(self) -> int:
        return self.view.source.now()
