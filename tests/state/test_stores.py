"""A queue with several consumers, calls with servers, wallets, and the same without a loop."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.hub_fixture import hostile_hub
from tests.client.hostile import HostileHub
from tests.client.pair import QUICK, STREAM, Pair, pair
from tests.hub.client import Clock, Hub
from tests.state.hubs import at_a_hub, at_a_liar
from tests.state.test_event_sender import few
from veen.client.blocking_client import BlockingClient
from veen.client.trust import Pin
from veen.core import cbor
from veen.overlays.queue import TaskStatus
from veen.overlays.rpc import UNKNOWN_METHOD, CallRequest, RpcFailure
from veen.overlays.wallet_ledger import wallet_id
from veen.state import (
    BlockingCaller,
    BlockingKvStore,
    BlockingTaskQueue,
    Caller,
    EventRefused,
    EventSender,
    NoReply,
    Server,
    TaskQueue,
    WalletBook,
)
from veen.state.stream_stores import FAILED, REPLY_TO, Method

REALM, OWNER, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))


# Queue.


def test_a_task_is_taken_by_one_consumer_and_done_once_without_failures(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        done: list[bytes] = []

        async def consume(queue: TaskQueue) -> None:
            while (job := await queue.take()) is not None:
                done.append(job.task_id)
                assert (await queue.ack(job)).applied

        async with (
            people.writer() as one,
            people.reader() as other,
            TaskQueue.of(one, STREAM) as mine,
            TaskQueue.of(other, STREAM) as theirs,
        ):
            tasks = [(await mine.add(b"task %d" % number)).msg_id for number in range(6)]
            await asyncio.gather(consume(mine), consume(theirs))
            assert sorted(done) == sorted(tasks)
            assert await mine.tasks() == []
            assert len(await mine.tasks(TaskStatus.DONE)) == 6

    at_a_liar(place, work)


def test_a_task_of_a_dead_consumer_is_claimed_by_another_after_the_lease(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as one, TaskQueue.of(one, STREAM) as queue:
            await queue.add(b"x")
            lost = await queue.take(lease_sec=30)
            assert lost is not None
            assert await queue.take() is None
            hub.hub_ts += 31
            await one.status()
            again = await queue.take()
            assert again is not None
            assert (again.task_id, again.tries) == (lost.task_id, 2)
            with pytest.raises(EventRefused, match="not held by this claim"):
                await queue.ack(lost)
            assert (await queue.ack(again)).applied

    at_a_liar(place, work)


def test_a_task_that_fails_often_enough_is_a_dead_letter_until_it_is_retried(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as one, TaskQueue.of(one, STREAM) as queue:
            task = (await queue.add(b"x", max_tries=2)).msg_id
            with pytest.raises(EventRefused, match="not a dead letter"):
                await queue.retry(task)
            for _ in range(2):
                job = await queue.take()
                assert job is not None
                await queue.fail(job, "no address")
            assert await queue.take() is None
            ((dead, found),) = await queue.tasks(TaskStatus.DEAD)
            assert (dead, found.reason) == (task, "no address")
            await queue.retry(task)
            assert await queue.take() is not None

    at_a_liar(place, work)


def test_jobs_waits_for_new_tasks(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with (
            people.writer() as one,
            people.reader() as other,
            TaskQueue.of(one, STREAM) as producer,
            TaskQueue.of(other, STREAM) as consumer,
        ):
            coming = asyncio.create_task(few(consumer.jobs(), 2))
            await producer.add(b"1")
            await producer.add(b"2")
            assert sorted(job.item for job in await coming) == [b"1", b"2"]

    at_a_liar(place, work)


# Calls.


def _divided(args: cbor.Value) -> cbor.Value:
    match args:
        case [int() as a, int() as b] | (int() as a, int() as b):
            if b == 0:
                raise RpcFailure("DIV.ZERO", "by nothing")
            return a // b
    raise ValueError("two numbers")


async def _async_echo(args: cbor.Value) -> cbor.Value:
    return args


METHODS: dict[str, Method] = {"divide": _divided, "echo": _async_echo}


FAILURES = [("divide", [1, 0], "DIV.ZERO"), ("divide", "no", FAILED), ("nothing", None, UNKNOWN_METHOD)]


def test_a_call_is_answered_with_a_result_or_with_the_servers_error(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with (
            people.writer() as asking,
            people.reader() as answering,
            Caller.of(asking, STREAM) as caller,
            Server.of(answering, STREAM, METHODS) as server,
        ):
            serving = asyncio.create_task(server.serve())
            assert await caller.call("divide", [7, 2]) == 3
            assert await caller.call("echo", {"a": [b"\x01", None, -1]}) == {"a": (b"\x01", None, -1)}
            for method, args, code in FAILURES:
                with pytest.raises(RpcFailure) as failed:
                    await caller.call(method, args)  # type: ignore[arg-type]
                assert failed.value.error.code == code
            serving.cancel()
            await asyncio.wait([serving])

    at_a_liar(place, work)


def test_an_unanswered_call_times_out(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as asking, Caller.of(asking, STREAM) as caller:
            with pytest.raises(NoReply, match=r"within 0\.05 s"):
                await caller.call("divide", [1, 2], timeout_s=0.05)

    at_a_liar(place, work)


async def give_up(caller: Caller) -> None:
    """Wait for an answer, and not for long: at the hub the call has a minute, which does not end amid a test."""
    with pytest.raises(NoReply):
        await caller.ask(CallRequest("pay", cbor.encode(5), 60_000, idem=9), 0.05)


def test_calls_with_one_idempotency_key_are_one_call(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        carried_out: list[cbor.Value] = []

        def pay(args: cbor.Value) -> cbor.Value:
            carried_out.append(args)
            return len(carried_out)

        async with (
            people.writer() as asking,
            people.reader() as answering,
            Caller.of(asking, STREAM) as caller,
            Server.of(answering, STREAM, {"pay": pay}) as server,
        ):
            await give_up(caller)
            assert await server.serve_waiting() == 1  # at the hub, no time has gone by
            assert await caller.call("pay", 5, timeout_s=5, idem=9) == 1
            assert await server.serve_waiting() == 0
        assert carried_out == [5]

    at_a_liar(place, work)


def test_a_timed_out_call_is_answered_when_it_is_repeated_with_its_key(place: Path) -> None:
    carried_out: list[cbor.Value] = []
    clock = Clock()

    async def work(hub: Hub, people: Pair) -> None:
        async with (
            people.writer() as asking,
            people.reader() as answering,
            Caller.of(asking, STREAM) as caller,
            Server.of(answering, STREAM, {"pay": carried_out.append}) as server,
        ):
            await give_up(caller)
            clock.now += 120
            for client in (asking, answering):
                await client.status()
            assert await server.serve_waiting() == 0  # nobody asks any more
            await give_up(caller)
            assert await server.serve_waiting() == 1
            assert await caller.call("pay", 5, timeout_s=5, idem=9) is None
        assert carried_out == [5]

    at_a_hub(place, work, clock=clock)


def test_a_request_with_another_reply_stream_gets_an_error(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as asking, Server.of(asking, STREAM, METHODS) as server:
            said = await EventSender(server.view).send_unchecked(CallRequest("echo", b"\xf6", reply_to=bytes(32)))
            heard: list[str] = []
            await server.serve_waiting(lambda owed, reply: heard.append(reply.error.code if reply.error else ""))
            assert heard == [REPLY_TO]
            assert said.applied

    at_a_liar(place, work)


# Wallets.


def test_a_wallet_book_sends_what_the_rules_allow_and_nothing_else(place: Path) -> None:
    mine, theirs = wallet_id(REALM, OWNER, "JPY"), wallet_id(REALM, OTHER, "JPY")

    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as client, WalletBook.of(client, STREAM) as book:
            with pytest.raises(EventRefused, match="NO_WALLET"):
                await book.deposit(mine, 1)
            await book.open(REALM, OWNER, "JPY")
            await book.open(REALM, OTHER, "JPY")
            await book.deposit(mine, 100, b"ref")
            await book.transfer(mine, theirs, 30, bytes(32))
            with pytest.raises(EventRefused, match="a copy of entry 4"):
                await book.transfer(mine, theirs, 30, bytes(32))
            with pytest.raises(EventRefused, match="INSUFFICIENT_FUNDS"):
                await book.withdraw(mine, 71)
            await book.limit(mine, 10)
            with pytest.raises(EventRefused, match="DAILY_LIMIT"):
                await book.withdraw(mine, 11)
            await book.freeze(mine)
            with pytest.raises(EventRefused, match="FROZEN"):
                await book.withdraw(mine, 1)
            await book.unfreeze(mine)
            await book.withdraw(mine, 1, b"w")
            await book.adjust(mine, -9, "fee")
            await book.limit(mine, None)
            await book.close(mine)
            with pytest.raises(EventRefused, match="CLOSED"):
                await book.deposit(mine, 1)
            assert (await book.wallet(mine)).balance == 60
            assert (await book.wallet(theirs)).balance == 30
            assert await book.violations() == []

    at_a_liar(place, work)


# Without a loop.


def test_the_blocking_variants_work_without_a_loop(place: Path) -> None:
    with hostile_hub() as hub, pair(place) as people:
        pin = Pin(key=hub.identity.hub_id)
        with BlockingClient(hub.url, people.writer_dir, pin=pin, retry_policy=QUICK) as client:
            with BlockingKvStore(client, STREAM) as store:
                store.put(b"k", b"v")
                store.put(b"l", b"v")
                store.delete(b"l")
                assert (store.get(b"k"), store.keys(), len(store.history(b"l"))) == (b"v", [b"k"], 2)
            with BlockingTaskQueue(client, STREAM) as queue:
                queue.add(b"x", max_tries=1)
                job = queue.take()
                assert job is not None
                queue.fail(job, "no")
                assert [task_id for task_id, _ in queue.tasks(TaskStatus.DEAD)] == [job.task_id]
                queue.retry(job.task_id)
                jobs = queue.jobs()
                again = next(jobs)
                jobs.close()
                assert again.task_id == job.task_id
                queue.ack(again)
            with BlockingCaller(client, STREAM) as caller, pytest.raises(NoReply):
                caller.call("m", timeout_s=0.05)
