"""Queues of the read executor: limits, fairness, and dropped work. A real thread pool on a real loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from tests.hub.client import PATIENCE_S
from veen.hub.read_executor import BoundedQueue, QueuedJob


class Shop:
    """A queue whose jobs block until the test releases them."""

    def __init__(self, executor: ThreadPoolExecutor, threads: int, most: int | None, share: int | None) -> None:
        self.lane = BoundedQueue(asyncio.get_running_loop(), executor, threads, most, share)
        self.gate = Event()
        self.done: list[str] = []
        self.lost: set[str] = set()

    def put(self, name: str, owner: str = "") -> bool:
        def run() -> None:
            self.gate.wait(PATIENCE_S)
            self.done.append(name)

        return self.lane.put(QueuedJob(run, owner, lambda: name in self.lost))

    async def finish(self) -> list[str]:
        """The finished jobs in order, once all are done."""
        self.gate.set()
        while self.lane.waiting or self.lane._free < 1:
            await asyncio.sleep(0.001)
        return self.done


@contextmanager
def shop(threads: int = 1, most: int | None = None, share: int | None = None) -> Iterator[Shop]:
    with ThreadPoolExecutor(4) as executor:
        made = Shop(executor, threads, most, share)
        try:
            yield made
        finally:
            made.gate.set()


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def test_work_without_bounds_is_done_in_order() -> None:
    async def test() -> None:
        with shop() as found:
            assert all(found.put(str(number)) for number in range(50))
            assert await found.finish() == [str(number) for number in range(50)]

    run(test)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_more_waits_than_may(most: int) -> None:
    async def test() -> None:
        with shop(most=most) as found:
            taken = [found.put(str(number), str(number)) for number in range(most + 3)]
            assert taken == [True] * (most + 1) + [False] * 2
            assert found.lane.waiting == most
            assert len(await found.finish()) == most + 1
            assert found.put("later")

    run(test)


def test_no_more_of_one_owner_waits_than_its_share() -> None:
    async def test() -> None:
        with shop(share=2) as found:
            assert [found.put(f"a{number}", "a") for number in range(5)] == [True] * 3 + [False] * 2
            assert found.put("b0", "b")
            assert await found.finish() == ["a0", "a1", "b0", "a2"]

    run(test)


def test_owners_take_turns() -> None:
    async def test() -> None:
        with shop() as found:
            for owner, count in (("a", 4), ("b", 2), ("c", 1)):
                for number in range(count):
                    found.put(f"{owner}{number}", owner)
            assert await found.finish() == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]

    run(test)


def test_a_job_of_a_lost_client_is_not_started() -> None:
    async def test() -> None:
        with shop() as found:
            for name in "abcd":
                found.put(name, name)
            found.lost.update("ac")  # the first one is running
            assert await found.finish() == ["a", "b", "d"]

    run(test)


def test_jobs_of_lost_clients_are_dropped_when_the_queue_is_full() -> None:
    async def test() -> None:
        with shop(most=3) as found:
            for name in "abcd":
                found.put(name, name)
            assert not found.put("e")
            found.lost.update("bc")
            assert found.put("e")
            assert found.put("f")
            assert not found.put("g")
            assert await found.finish() == ["a", "d", "e", "f"]

    run(test)


def test_work_that_raises_leaves_its_place_to_the_next() -> None:
    async def test() -> None:
        with shop() as found:
            found.lane.put(QueuedJob(lambda: found.done.append("raises") or 1 / 0))  # type: ignore[arg-type, func-returns-value]
            found.put("next")
            assert await found.finish() == ["raises", "next"]

    run(test)


def test_what_still_waits_when_the_executor_closes_is_not_done() -> None:
    async def test() -> None:
        with shop() as found:
            for name in "abc":
                found.put(name)
        assert await found.finish() == ["a"]
        assert found.put("d")
        assert found.done == ["a"]

    run(test)
