"""A queue in which owners take turns: who has much waiting does not hold up who has little."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

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
