"""Commit: make groups durable in the journal, answer their submitters, and let the log catch up in the background."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread

from veen.core import Refused, Unavailable
from veen.hub.conditions import Conditions, Reason, public_text
from veen.hub.sequencer import Item, NoSigningKeyError, SequencedGroup, Sequencer, refused
from veen.storage.store import JournalTail, Store

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
        if idle or len(pending.batch.records) >= due or pending.size_bytes >= due_bytes:
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


# While the log cannot be written, the journal may grow to this size.
MAX_PENDING_BYTES = 1 << 27
# A group of this size is committed without waiting for more messages.
FULL_GROUP = 16
# After this many writes and syncs in a row that were this fast, the loop syncs without the commit thread.
QUICK_S = 0.001
QUICK_SYNCS = 4
# A larger group is slow on any disk.
QUICK_BYTES = 1 << 20
# Sign at most this many messages per turn, so that answers go out meanwhile.
MAX_DECIDED = 256


@dataclass(frozen=True, slots=True)
class CommitReport:
    """Sizes and times of one group, for the metrics."""

    entries: int
    group_seconds: float
    sync_seconds: float


_Written = tuple[SequencedGroup, int | Exception, CommitReport]  # with the number of the group, or the error


class _Probe:
    """A queue item: test whether the journal can be written."""


class Committer:
    """Accepts admitted messages and answers when they are durable. On the loop's thread, except on a slow disk."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        sequencer: Sequencer,
        conditions: Conditions,
        on_group: Callable[[SequencedGroup, CommitReport], None],
        on_broken: Callable[[BaseException], None],
        feed: Callable[[], None],
    ) -> None:
        """`feed` is called before the loop is busy for a while, to hand over work to other threads."""
        self._loop = loop
        self._store = store
        self._sequencer = sequencer
        self._conditions = conditions
        self._on_group = on_group
        self._on_broken = on_broken
        self._feed = feed
        self._waiting: list[Item] = []
        self.checks_started = 0  # signature checks started so far
        self.checks_finished = 0  # signature checks finished so far
        self._commit_at = 0  # commit a small group once `checks_finished` reaches this
        self._opened = 0.0
        self._due = False
        self._in_flight = False
        self._broken = False
        self._quick_syncs = 0  # in a row
        self._groups: SimpleQueue[tuple[SequencedGroup, float] | _Probe | None] = SimpleQueue()
        self._drained: asyncio.Future[None] | None = None
        self._syncer = Thread(target=self._sync, name="commit", daemon=True)
        self._syncer.start()
        self._catch_up = CatchUp(loop, store, conditions, self._caught_up, self._break)

    @property
    def trouble(self) -> str | None:
        """Why catch-up fails; None if it does not."""
        return self._catch_up.trouble

    def put(self, item: Item) -> None:
        """Queue an item for the next group. Rejects everything once the disk cannot be trusted."""
        if self._broken:
            item.done(Refused("E.UNAVAILABLE", "the disk failed; this hub is stopping", retry_after=1))
            return
        self._waiting.append(item)
        self.schedule_turn()

    def schedule_turn(self) -> None:
        """Schedule a turn of the committer."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Commit queued items, catch up, stop."""
        self._catch_up.stop_timer()
        self._drained = self._loop.create_future()
        self._maybe_drained()
        await self._drained
        self._groups.put(None)
        await self._loop.run_in_executor(None, self._syncer.join)
        await self._loop.run_in_executor(None, self._catch_up.close)

    # Committing.

    def _turn(self) -> None:
        """Decide queued items, and write the group if the disk is free."""
        self._due = False
        if self._broken:
            return
        items, self._waiting = self._waiting[:MAX_DECIDED], self._waiting[MAX_DECIDED:]
        if self._waiting:
            self.schedule_turn()
        if self.trouble is not None and self._store.pending.size_bytes > MAX_PENDING_BYTES:
            self._conditions.count(Reason.LOG_WRITE, len(items))
            self._answer(refused(items, self.trouble), CommitReport(0, 0.0, 0.0))
        elif items:
            if not self._opened:
                self._opened = time.perf_counter()
                self._commit_at = self.checks_finished + FULL_GROUP
            self._feed()
            try:
                self._sequencer.decide(items)
                self._conditions.leave(Reason.SIGNING_KEY)
            except NoSigningKeyError as error:  # none of the items was decided
                if not self._sequencer.decided:
                    self._opened = 0.0
                count = len(items)
                text = self._conditions.enter(Reason.SIGNING_KEY, error, refused=count, recheck=self._lacks_key)
                self._answer(refused(items, text), CommitReport(0, 0.0, 0.0))
            except Exception as mistake:  # noqa: BLE001  a partial decision must never be written
                self._break(mistake)
                return
        self._send()

    def _send(self) -> None:
        """Write the open group, unless the disk is busy or the group should grow."""
        decided = self._sequencer.decided
        if self._in_flight or not decided or self._grows(decided):
            return
        group, start, self._opened = self._sequencer.take(), self._opened, 0.0
        if group.batch.records:
            self._in_flight = True
            if self._is_quick() and group.batch.size_bytes() <= QUICK_BYTES:
                self._synced(*self._commit(group, start))
            else:
                self._groups.put((group, start))
        else:
            self._sequencer.keep()
            self._answer(group, CommitReport(0, time.perf_counter() - start, 0.0))

    def _grows(self, decided: int) -> bool:
        """Whether to wait: the open group is small, and too few of the pending signature checks have finished since."""
        few = decided < min(FULL_GROUP, self.checks_started - self.checks_finished)
        return few and self.checks_finished < self._commit_at and self._drained is None

    def _is_quick(self) -> bool:
        return self._quick_syncs >= QUICK_SYNCS

    def _sync(self) -> None:
        """The commit thread: only writes and syncs."""
        while (given := self._groups.get()) is not None:
            if isinstance(given, _Probe):
                self._loop.call_soon_threadsafe(self._probed, self._try_journal())
            else:
                self._loop.call_soon_threadsafe(self._synced, *self._commit(*given))

    def _commit(self, group: SequencedGroup, start: float) -> _Written:
        before = time.perf_counter()
        outcome: int | Exception
        try:
            outcome = self._store.commit(group.batch)
        except Exception as error:  # noqa: BLE001  if the thread ended here, all clients would wait for ever
            outcome = error
        now = time.perf_counter()
        return group, outcome, CommitReport(len(group.batch.records), now - start, now - before)

    def _synced(self, group: SequencedGroup, outcome: int | Exception, report: CommitReport) -> None:
        """Handle the result: the group is durable, or was not written."""
        self._in_flight = False
        self._quick_syncs = self._quick_syncs + 1 if report.sync_seconds < QUICK_S else 0
        if isinstance(outcome, int):
            self._conditions.leave(Reason.JOURNAL_WRITE)
            self._store.committed(group.batch, outcome)
            self._catch_up.add_entries(report.entries)
            self._sequencer.keep()
            if not self._is_quick():
                self._send()
        elif isinstance(outcome, Unavailable):
            group = self._sequencer.undo(group, public_text(Reason.JOURNAL_WRITE, outcome))
            count = len(group.outcomes)
            self._conditions.enter(Reason.JOURNAL_WRITE, outcome, refused=count, recheck=self._probe)
        else:
            # It is unknown whether this group is on disk, so no client in it gets an answer.
            self._break(outcome)
            return
        self._answer(group, report)
        self._catch_up.start_if_due()
        if self._is_quick():
            self._send()

    def _probe(self) -> bool:
        """Test the journal without writing a group, so that an idle hub notices when its disk recovers."""
        if not (self._in_flight or self._broken or self._drained):
            self._in_flight = True
            self._groups.put(_Probe())
        return True

    def _try_journal(self) -> Exception | None:
        """Runs on the commit thread."""
        try:
            self._store.probe()
        except Exception as error:  # noqa: BLE001  if the thread ended here, all clients would wait for ever
            return error
        return None

    def _probed(self, error: Exception | None) -> None:
        self._in_flight = False
        if error is None:
            self._conditions.leave(Reason.JOURNAL_WRITE)
        elif not isinstance(error, Unavailable):
            self._break(error)
            return
        self._send()
        self._maybe_drained()

    def _lacks_key(self) -> bool:
        try:
            self._sequencer.check_key()
        except NoSigningKeyError:
            return True
        return False

    def _break(self, error: BaseException) -> None:
        """Accept nothing more: the process must exit."""
        self._broken = True
        self._on_broken(error)

    def _answer(self, group: SequencedGroup, report: CommitReport) -> None:
        self._on_group(group, report)
        self._maybe_drained()

    def _caught_up(self) -> None:
        """A catch-up ended, successfully or not."""
        if self.trouble is None:
            self._sequencer.forget()
        self._maybe_drained()

    def _maybe_drained(self) -> None:
        """While closing: finish when nothing is queued and the log has everything or cannot be written."""
        if self._drained is None or self._drained.done() or self._waiting or self._in_flight:
            return
        if self._sequencer.decided:
            self._send()
            return
        if self._store.catching is None:
            self._catch_up.start_if_due(idle=True)
        if self._store.catching is None or self.trouble is not None:
            self._drained.set_result(None)
