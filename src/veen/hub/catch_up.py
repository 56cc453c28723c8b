"""Catch-up: the log and its index follow the journal in the background."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from veen.core import Unavailable
from veen.hub.conditions import Conditions, Reason
from veen.storage.commit_group import JournalTail
from veen.storage.store import Store

CATCH_UP_ENTRIES = 4096
CATCH_UP_BYTES = 1 << 22
# With many labels a catch-up writes many files, so it waits for more entries, within a memory limit.
ENTRIES_PER_LABEL = 8
BYTES_PER_LABEL = 1 << 13
MAX_BYTES = 1 << 26
TICK_S = 0.5
# A hub that accepted at most this many entries since the last tick is idle, and catches up with any backlog,
IDLE_ENTRIES = 256
# and after this many ticks every hub does, because others read the log.
MAX_TICKS = 20
RETRY_S = 1.0


class CatchUp:
    """Runs one catch-up at a time. Everything is on the loop's thread, except the writes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        conditions: Conditions,
        on_turn: Callable[[], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        """`on_turn` is called after every attempt. `trouble` says why the last one failed."""
        self._loop = loop
        self._store = store
        self._conditions = conditions
        self._on_turn = on_turn
        self._on_broken = on_broken
        self._recent_entries = 0  # entries since the last tick
        self._ticks = 0  # since the last catch-up started
        self._tails: SimpleQueue[JournalTail | None] = SimpleQueue()
        self._closing = Event()
        self.trouble: str | None = None
        self._timer = loop.call_later(TICK_S, self._tick)
        self._thread = Thread(target=self._run, name="catch-up", daemon=True)
        self._thread.start()

    def add_entries(self, entries: int) -> None:
        """Count entries that became durable."""
        self._recent_entries += entries

    def start_if_due(self, *, idle: bool = False) -> None:
        """Start a catch-up if enough entries are pending, or any if the hub is idle."""
        pending = self._store.pending
        due = max(CATCH_UP_ENTRIES, ENTRIES_PER_LABEL * len(pending.labels))
        due_bytes = max(CATCH_UP_BYTES, min(BYTES_PER_LABEL * len(pending.labels), MAX_BYTES))
        if idle or len(pending.records) >= due or pending.size_bytes >= due_bytes:
            tail = self._store.begin_catching_up()
            if tail:
                self._ticks = 0
                self._tails.put(tail)

    def stop_timer(self) -> None:
        """Stop the timer. Only `start_if_due` starts a catch-up after this."""
        self._timer.cancel()

    def close(self) -> None:
        """Stop the thread. Waits for a running catch-up, but not for a retry."""
        self._closing.set()
        self._tails.put(None)
        self._thread.join()

    def _tick(self) -> None:
        """Keeps the log close behind on a quiet hub. A busy hub writes larger batches."""
        self._ticks += 1
        self.start_if_due(idle=self._recent_entries <= IDLE_ENTRIES or self._ticks >= MAX_TICKS)
        self._recent_entries = 0
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _run(self) -> None:
        while (tail := self._tails.get()) is not None:
            error: Unavailable | None = None
            while True:
                try:
                    self._store.catch_up(tail)
                    error = None
                except Unavailable as found:
                    error = found
                except Exception as damage:  # noqa: BLE001  log and index disagree: nothing more may be written
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
