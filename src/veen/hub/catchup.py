"""The log catches up with the journal on a thread of its own: when there is enough to do, or nothing else to do."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from veen.core import Unavailable
from veen.hub.conditions import Conditions, Reason
from veen.storage.store import Store, Tail

ENOUGH_ENTRIES = 4096
ENOUGH_BYTES = 1 << 22
# With many labels each catch-up touches many files, so more entries share it, as far as memory goes.
ENTRIES_PER_LABEL = 8
BYTES_PER_LABEL = 1 << 13
MAX_BYTES = 1 << 26
LOOK_EVERY_S = 0.5
# A hub that took no more than this since it last looked is idle enough to catch up with what there is,
IDLE_ENTRIES = 256
# and after so many looks any hub is: others read the log too.
MOST_LOOKS = 20
RETRY_S = 1.0


class CatchUp:
    """One catch-up at a time. All of it on the loop's thread, except the work itself."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        conditions: Conditions,
        on_turn: Callable[[], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        """`on_turn` is called whenever one has ended, and whenever one could not be: then there is `trouble`."""
        self._loop = loop
        self._store = store
        self._conditions = conditions
        self._on_turn = on_turn
        self._on_broken = on_broken
        self._lately = 0  # entries since the last look
        self._looks = 0  # since the last catch-up began
        self._tails: SimpleQueue[Tail | None] = SimpleQueue()
        self._closing = Event()
        self.trouble: str | None = None
        self._timer = loop.call_later(LOOK_EVERY_S, self._look)
        self._thread = Thread(target=self._run, name="catch-up", daemon=True)
        self._thread.start()

    def took(self, entries: int) -> None:
        """So many more are durable."""
        self._lately += entries

    def tend(self, *, idle: bool = False) -> None:
        """Start where there is enough to do, or anything where the hub is idle, and none is under way."""
        pending = self._store.pending
        due = max(ENOUGH_ENTRIES, ENTRIES_PER_LABEL * len(pending.labels))
        due_bytes = max(ENOUGH_BYTES, min(BYTES_PER_LABEL * len(pending.labels), MAX_BYTES))
        if idle or len(pending.batch.records) >= due or pending.size_bytes >= due_bytes:
            tail = self._store.begin_catching_up()
            if tail:
                self._looks = 0
                self._tails.put(tail)

    def stop_looking(self) -> None:
        """From here on only `tend` starts anything."""
        self._timer.cancel()

    def close(self) -> None:
        """End the thread. Waits for a catch-up that is under way, and for no further attempt at one."""
        self._closing.set()
        self._tails.put(None)
        self._thread.join()

    def _look(self) -> None:
        """Now and then, so that the log is never far behind a quiet hub. A busy one does more at a time."""
        self._looks += 1
        self.tend(idle=self._lately <= IDLE_ENTRIES or self._looks >= MOST_LOOKS)
        self._lately = 0
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def _run(self) -> None:
        """The thread."""
        while (tail := self._tails.get()) is not None:
            error: Unavailable | None = None
            while True:
                try:
                    self._store.catch_up(tail)
                    error = None
                except Unavailable as found:
                    error = found
                except Exception as damage:  # noqa: BLE001  the log is not what the index says: nothing more may be added
                    self._loop.call_soon_threadsafe(self._on_broken, damage)
                    return
                self._loop.call_soon_threadsafe(self._ended, error)
                if error is None or self._closing.wait(RETRY_S):
                    break

    def _ended(self, error: Unavailable | None) -> None:
        if error is None:
            self.trouble = None
            self._conditions.leave(Reason.LOG_WRITE)
            self._store.end_catching_up()
        else:
            self.trouble = self._conditions.enter(Reason.LOG_WRITE, error, refused=0)
        self._on_turn()
