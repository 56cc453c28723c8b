"""The hub's time, which decides the epoch and with it the label of a stream. Spec §12."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from veen.core import Profile, naming


class HubClock:
    """What time it is at the hub: what it last said, and the time since."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead = float("-inf")  # of our monotonic clock
        self._told = asyncio.Event()

    def note(self, hub_ts: int) -> None:
        """The hub said it was `hub_ts`. It never goes back, so the latest it can be is what counts."""
        self._ahead = max(self._ahead, hub_ts - self._monotonic())

    def set(self, hub_ts: int) -> None:
        """The hub says it is `hub_ts` now, whatever we thought."""
        self._ahead = hub_ts - self._monotonic()
        self._told.set()

    async def until(self, hub_ts: int) -> None:
        """Wait until it is that time at the hub, as far as can be told from here."""
        while (wait := hub_ts - self._monotonic() - self._ahead) > 0:
            self._told.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._told.wait()

    def now(self) -> int:
        return int(self._monotonic() + self._ahead)


class Labels:
    """Where one hub keeps streams, epoch by epoch."""

    def __init__(self, routing_key: bytes, profile: Profile) -> None:
        self.routing_key = routing_key
        self.profile = profile

    def epoch(self, hub_ts: int) -> int:
        return self.profile.epoch(hub_ts)

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        return naming.label(self.routing_key, stream_id, epoch)

    def ends_at(self, epoch: int) -> int | None:
        """The first second after an epoch; None where there are no epochs."""
        return (epoch + 1) * self.profile.epoch_sec if self.profile.epoch_sec else None
