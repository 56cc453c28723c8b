"""Stores and calls on a stream: keys and values, tasks, wallets, RPC.

Each combines a `StateView` with an `EventSender`. The blocking variants are for programs without an event loop:
they run on the loop of a `BlockingClient`.

    with BlockingClient(url, folder) as client, BlockingKvStore(client, "settings") as store:
        store.put(b"door", b"open")
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar

from veen.client.blocking_client import BlockingClient
from veen.client.client import Client
from veen.client.evidence import Evidence
from veen.core import Unavailable, cbor
from veen.overlays import AnyOverlay, Applied, At, EventFault, FoldStep, rpc, wallet_ledger
from veen.overlays import kv as maps
from veen.overlays import queue as tasks
from veen.overlays.crdt import Register
from veen.overlays.kv import KV, Change
from veen.overlays.overlay import Walk
from veen.overlays.queue import QUEUE, Ack, Nack, Put, Task, TaskClaim, TaskRetry, TaskStatus
from veen.overlays.rpc import (
    RPC,
    UNKNOWN_METHOD,
    Answered,
    Call,
    CallRequest,
    PendingReply,
    Reply,
    RpcError,
    RpcFailure,
)
from veen.overlays.wallet import WALLETS, Function, violations
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


class WalletBook(StreamStore[wallet_ledger.Wallet, Function]):
    """Every wallet of one stream. Each operation is checked against the state before it is sent.

    async with WalletBook.of(client, "ledger") as book:
        await book.deposit(wallet_id, 500)
        assert (await book.wallet(wallet_id)).balance == 500

    Amounts are in the smallest unit; times are the hub's.
    """

    OVERLAY = WALLETS

    async def wallet(self, of_wallet: bytes, at: At | None = None) -> wallet_ledger.Wallet:
        """A wallet now, or after an entry."""
        async with self.view.reading(at) as reading:
            return reading.state(of_wallet)

    async def violations(self, at: At | None = None) -> list[EventFault]:
        """Logged debits that exceeded balance or limit. They were not applied."""
        async with self.view.reading(at) as reading:
            return list(violations(reading.faults()))

    async def open(self, realm_id: bytes, ctx_id: bytes, currency: str) -> SentEvent:
        of_wallet = wallet_ledger.wallet_id(realm_id, ctx_id, currency)
        return await self.sender.send(wallet_ledger.Open(of_wallet, realm_id, ctx_id, currency, self._now()))

    async def close(self, of_wallet: bytes) -> SentEvent:
        return await self.sender.send(wallet_ledger.Close(of_wallet, self._now()))

    async def deposit(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        return await self.sender.send(wallet_ledger.Deposit(of_wallet, amount, self._now(), ref))

    async def withdraw(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        """With a `ref`, a retry is the same withdrawal and is refused as a copy."""
        return await self.sender.send(wallet_ledger.Withdraw(of_wallet, amount, self._now(), ref))

    async def transfer(
        self, of_wallet: bytes, to_wallet: bytes, amount: int, transfer: bytes | None = None
    ) -> SentEvent:
        """With the same `transfer` id, a retry is the same transfer and is refused as a copy."""
        id_ = wallet_ledger.transfer_id(os.urandom(32)) if transfer is None else transfer
        return await self.sender.send(wallet_ledger.Transfer(of_wallet, to_wallet, amount, self._now(), id_))

    async def adjust(self, of_wallet: bytes, delta: int, reason: str, ref: bytes | None = None) -> SentEvent:
        return await self.sender.send(wallet_ledger.Adjust(of_wallet, delta, self._now(), reason, ref))

    async def limit(self, of_wallet: bytes, daily_limit: int | None) -> SentEvent:
        """Set the daily limit; None removes it."""
        return await self.sender.send(wallet_ledger.Limit(of_wallet, daily_limit, self._now()))

    async def freeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self.sender.send(wallet_ledger.Freeze(of_wallet, self._now(), reason))

    async def unfreeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self.sender.send(wallet_ledger.Unfreeze(of_wallet, self._now(), reason))

    def _now(self) -> int:
        return self.view.source.now()


CallView: TypeAlias = StateView[Call, Call]
Method: TypeAlias = Callable[[cbor.Value], "cbor.Value | Awaitable[cbor.Value]"]
FAILED, REPLY_TO = "RPC.FAILED", "RPC.REPLY_TO"
TIMEOUT_S = 30.0


class NoReply(Unavailable):
    """No reply arrived in time. The call may or may not have been executed."""

    def __init__(self, call_id: bytes, timeout_s: float) -> None:
        super().__init__(f"no reply to call {call_id.hex()[:16]}… within {timeout_s:g} s")
        self.call_id = call_id


class Caller(StreamStore[Call, Call]):
    """Sends requests and waits for the replies."""

    OVERLAY = RPC

    async def call(
        self, method: str, args: cbor.Value = None, *, timeout_s: float = TIMEOUT_S, idem: int | None = None
    ) -> cbor.Value:
        """Call a method and return its result. Raises `RpcFailure` with the server's error or `NoReply` on timeout.

        Calls of this client with the same method and `idem` are one call, even across a crash.
        """
        request = CallRequest(method, cbor.encode(args), max(int(timeout_s * 1000), 1), idem=idem)
        answered = await self.ask(request, timeout_s)
        reply = answered.reply
        if reply.error is not None:
            raise RpcFailure(reply.error.code, reply.error.detail)
        return cbor.decode(reply.result or b"\xf6", "result")

    async def ask(self, request: CallRequest, timeout_s: float) -> Answered:
        """Send a request, unless one with the same idempotency key is open, and wait for the logged reply."""
        async with Wake(self.view) as wake:
            call_id = await self._call_id(request)
            deadline = asyncio.get_running_loop().time() + timeout_s
            while True:
                wake.clear()
                async with self.view.reading() as reading:
                    found = rpc.answer(reading.states, call_id)
                if found is not None:
                    return found
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    raise NoReply(call_id, timeout_s)
                await wake.wait(left)

    async def _call_id(self, request: CallRequest) -> bytes:
        if request.idem is not None:
            client_id = self.sender.client.dir.writers.current().client_id
            async with self.view.reading() as reading:
                known = reading.state(rpc.idem_part(request.method, client_id, request.idem)).first_call
                # Servers ignore a timed-out call, so send it again. The idempotency key keeps it one call.
                timed_out = known and reading.state(rpc.call_part(known)).timed_out(1000 * self.view.source.now())
            if known is not None and not timed_out:
                return known
        return (await self.sender.send_unchecked(request)).msg_id


class Server(StreamStore[Call, Call]):
    """Answers calls with functions on plain values. Functions run in a thread, so they may block."""

    OVERLAY = RPC

    def __init__(self, view: CallView, methods: Mapping[str, Method]) -> None:
        super().__init__(view)
        self._methods = dict(methods)

    @classmethod
    def of(  # type: ignore[override] # a server also needs its methods
        cls, client: Client, stream: str | bytes, methods: Mapping[str, Method], *, cached: bool = True
    ) -> Self:
        return cls(StateView.of(client, stream, RPC, cached=cached), methods)

    async def serve(self, on_reply: Callable[[PendingReply, Reply], None] | None = None) -> None:
        """Answer calls until cancelled. `on_reply` is called after each reply."""
        async with Wake(self.view) as wake:
            while True:
                wake.clear()
                if not await self.serve_waiting(on_reply):
                    await wake.wait(None)

    async def serve_waiting(self, on_reply: Callable[[PendingReply, Reply], None] | None = None) -> int:
        """Answer the calls that are open now and return their number."""
        async with self.view.reading() as reading:
            open_calls = [part for part, _ in reading.live()]
            pending = list(rpc.pending_replies(reading.states, open_calls, 1000 * self.view.source.now()))
        for one in pending:
            reply = one.known or await self._execute(one.asked.request)
            await self.sender.send_unchecked(reply, parent_id=one.call_id)
            if on_reply is not None:
                on_reply(one, reply)
        return len(pending)

    async def _execute(self, request: CallRequest) -> Reply:
        if request.reply_to not in (None, self.view.stream_id):
            return Reply(False, error=RpcError(REPLY_TO, "this server replies only to the stream of the request"))
        method = self._methods.get(request.method)
        if method is None:
            return Reply(False, error=RpcError(UNKNOWN_METHOD, request.method))
        try:
            found = await asyncio.to_thread(method, cbor.decode(request.args, "args"))
            return rpc.success(await found if isawaitable(found) else found)
        except RpcFailure as failure:
            return Reply(False, error=failure.error)
        except Exception as error:  # noqa: BLE001 - any failure becomes an error reply, and the server continues
            return Reply(False, error=RpcError(FAILED, type(error).__name__))


F = TypeVar("F", bound=KvStore | TaskQueue | Caller)


class _Blocking(Generic[F]):
    """A context manager around the asynchronous object `face`."""

    def __init__(self, client: BlockingClient, face: F) -> None:
        self.face = face
        self._run = client.run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.face.view.close()


class BlockingKvStore(_Blocking[KvStore]):
    def __init__(self, client: BlockingClient, stream: str | bytes, *, cached: bool = True) -> None:
        super().__init__(client, KvStore.of(client.client, stream, cached=cached))

    def get(self, key: bytes, at: At | None = None) -> bytes | None:
        return self._run(self.face.get(key, at))

    def keys(self, prefix: bytes = b"", at: At | None = None) -> list[bytes]:
        return self._run(self.face.keys(prefix, at))

    def history(self, key: bytes, at: At | None = None) -> list[FoldStep]:
        return self._run(self.face.history(key, at))

    def put(self, key: bytes, value: bytes) -> SentEvent:
        return self._run(self.face.put(key, value))

    def delete(self, key: bytes) -> SentEvent:
        return self._run(self.face.delete(key))


class BlockingTaskQueue(_Blocking[TaskQueue]):
    def __init__(self, client: BlockingClient, stream: str | bytes, *, cached: bool = True) -> None:
        super().__init__(client, TaskQueue.of(client.client, stream, cached=cached))

    def add(self, item: bytes, *, max_tries: int | None = None, expires_at: int | None = None) -> SentEvent:
        return self._run(self.face.add(item, max_tries=max_tries, expires_at=expires_at))

    def take(self, lease_sec: int = LEASE_SEC) -> TaskJob | None:
        return self._run(self.face.take(lease_sec))

    def jobs(self, lease_sec: int = LEASE_SEC) -> Generator[TaskJob, None, None]:
        """Yield claimed tasks as they become ready. Never ends by itself."""
        coming = self.face.jobs(lease_sec)

        async def end() -> None:
            async with aclosing(coming):
                pass

        async def following() -> TaskJob:
            return await anext(coming)

        try:
            while True:
                yield self._run(following())
        finally:
            self._run(end())

    def ack(self, job: TaskJob) -> SentEvent:
        return self._run(self.face.ack(job))

    def fail(self, job: TaskJob, reason: str | None = None) -> SentEvent:
        return self._run(self.face.fail(job, reason))

    def retry(self, task_id: bytes) -> SentEvent:
        return self._run(self.face.retry(task_id))

    def tasks(self, status: TaskStatus | None = None) -> list[tuple[bytes, Task]]:
        return self._run(self.face.tasks(status))


class BlockingCaller(_Blocking[Caller]):
    def __init__(self, client: BlockingClient, stream: str | bytes, *, cached: bool = True) -> None:
        super().__init__(client, Caller.of(client.client, stream, cached=cached))

    def call(
        self, method: str, args: cbor.Value = None, *, timeout_s: float = TIMEOUT_S, idem: int | None = None
    ) -> cbor.Value:
        return self._run(self.face.call(method, args, timeout_s=timeout_s, idem=idem))
