"""How many bytes each may bring: an allowance that fills again. In memory, so a restart fills all of them."""

from collections.abc import Callable
from math import ceil

_MAX_OWNERS = 65_536


class ByteAllowance:
    """One bucket of bytes for each owner. An owner that is not here has a full one."""

    def __init__(self, per_sec: int, burst: int, clock: Callable[[], float]) -> None:
        self._per_sec = max(1, per_sec)
        self._burst = burst
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float]] = {}  # what is left, and as of when

    def take(self, owner: bytes, size: int) -> int:
        """0 where it is granted, else the whole seconds after which to ask again. More than the burst waits for it."""
        now = self._clock()
        left, since = self._buckets.pop(owner, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_sec)
        short = min(size, self._burst) - left
        self._buckets[owner] = (left if short > 0 else left - size, now)
        if len(self._buckets) > _MAX_OWNERS:
            self._forget(now)
        return max(1, ceil(short / self._per_sec)) if short > 0 else 0

    def _forget(self, now: float) -> None:
        """Let go of those that are full again, and of the one that was here longest if none are."""
        full = [
            owner
            for owner, (left, since) in self._buckets.items()
            if left + (now - since) * self._per_sec >= self._burst
        ]
        for owner in full or [next(iter(self._buckets))]:
            del self._buckets[owner]

    def __len__(self) -> int:
        return len(self._buckets)
