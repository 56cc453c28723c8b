"""What is to be done when. Time is told to a node, so the same node runs under a clock and under a simulation."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions in the order of their time. Those whose reason is gone find that out themselves and do nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def after(self, seconds: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._clock() + seconds, self._count, action))

    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Do all that is due now; not what it makes due, so that a clock that stands still is no trap."""
        now, last = self._clock(), self._count
        while self._heap and self._heap[0][0] <= now and self._heap[0][1] <= last:
            heapq.heappop(self._heap)[2]()
