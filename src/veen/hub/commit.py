"""The log catches up with the journal on a thread of its own: when there is enough to do, or nothing else to do."""

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
        self._tails: SimpleQueue[JournalTail | None] = SimpleQueue()
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


# Behind a log that cannot be written the journal grows to this size.
MAX_PENDING_BYTES = 1 << 27
# A group of this many goes to the disk whoever else is coming.
ENOUGH = 16
# The loop syncs by itself after so many writes and syncs in a row that were this quick.
QUICK_S = 0.001
QUICK_SYNCS = 4
# What is larger takes its time on any disk.
QUICK_BYTES = 1 << 20
# Answers go out while the rest of a crowd is still being signed.
MAX_DECIDED = 256


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What one group was, for the metrics."""

    entries: int
    group_seconds: float
    sync_seconds: float


_Written = tuple[SequencedGroup, int | Exception, CommitReport]  # with the number of the group, or why there is none


class _Probe:
    """In the queue of groups: try whether the journal can be written."""


class Committer:
    """Takes admitted messages, answers when they are durable. All of it on the loop's thread, except a slow disk."""

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
        """`feed` is called before the loop is kept busy for long: others may have work to begin with."""
        self._loop = loop
        self._store = store
        self._sequencer = sequencer
        self._conditions = conditions
        self._on_group = on_group
        self._on_broken = on_broken
        self._feed = feed
        self._waiting: list[Item] = []
        self.asked = 0  # messages whose signatures were to be checked, ever,
        self.answered = 0  # and those for which the answer came
        self._patience = 0  # with how many answers a small group goes, whoever else is coming
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
        """Why the log cannot catch up, where it cannot."""
        return self._catch_up.trouble

    def put(self, item: Item) -> None:
        """Queue for the next group. Nothing is taken any more once the disk cannot be trusted."""
        if self._broken:
            item.done(Refused("E.UNAVAILABLE", "the disk failed; this hub is stopping", retry_after=1))
            return
        self._waiting.append(item)
        self.nudge()

    def nudge(self) -> None:
        """Look again in the next turn of the loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Commit what is queued, let the log catch up, stop."""
        self._catch_up.stop_looking()
        self._drained = self._loop.create_future()
        self._maybe_drained()
        await self._drained
        self._groups.put(None)
        await self._loop.run_in_executor(None, self._syncer.join)
        await self._loop.run_in_executor(None, self._catch_up.close)

    # Committing.

    def _turn(self) -> None:
        """Decide what is there, and send it to the disk if that is free."""
        self._due = False
        if self._broken:
            return
        items, self._waiting = self._waiting[:MAX_DECIDED], self._waiting[MAX_DECIDED:]
        if self._waiting:
            self.nudge()
        if self.trouble is not None and self._store.pending.size_bytes > MAX_PENDING_BYTES:
            self._conditions.count(Reason.LOG_WRITE, len(items))
            self._answer(refused(items, self.trouble), CommitReport(0, 0.0, 0.0))
        elif items:
            if not self._opened:
                self._opened = time.perf_counter()
                self._patience = self.answered + ENOUGH
            self._feed()
            try:
                self._sequencer.decide(items)
                self._conditions.leave(Reason.SIGNING_KEY)
            except NoSigningKeyError as error:  # nothing was decided
                if not self._sequencer.decided:
                    self._opened = 0.0
                count = len(items)
                text = self._conditions.enter(Reason.SIGNING_KEY, error, refused=count, recheck=self._lacks_key)
                self._answer(refused(items, text), CommitReport(0, 0.0, 0.0))
            except Exception as mistake:  # noqa: BLE001  what was half decided must never reach the disk
                self._break(mistake)
                return
        self._send()

    def _send(self) -> None:
        """Give the disk the open group, unless it is busy or more will join."""
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
        """Whether the open group is small, many are coming and the verifier has not yet said enough since it opened."""
        few = decided < min(ENOUGH, self.asked - self.answered)
        return few and self.answered < self._patience and self._drained is None

    def _is_quick(self) -> bool:
        return self._quick_syncs >= QUICK_SYNCS

    def _sync(self) -> None:
        """The commit thread: write and sync, nothing else."""
        while (given := self._groups.get()) is not None:
            if isinstance(given, _Probe):
                self._loop.call_soon_threadsafe(self._probed, self._try_journal())
            else:
                self._loop.call_soon_threadsafe(self._synced, *self._commit(*given))

    def _commit(self, group: SequencedGroup, start: float) -> _Written:
        """Write and sync."""
        before = time.perf_counter()
        outcome: int | Exception
        try:
            outcome = self._store.commit(group.batch)
        except Exception as error:  # noqa: BLE001  a thread that ended here would leave everyone waiting
            outcome = error
        now = time.perf_counter()
        return group, outcome, CommitReport(len(group.batch.records), now - start, now - before)

    def _synced(self, group: SequencedGroup, outcome: int | Exception, report: CommitReport) -> None:
        """The group is durable, or was never there."""
        self._in_flight = False
        self._quick_syncs = self._quick_syncs + 1 if report.sync_seconds < QUICK_S else 0
        if isinstance(outcome, int):
            self._conditions.leave(Reason.JOURNAL_WRITE)
            self._store.committed(group.batch, outcome)
            self._catch_up.took(report.entries)
            self._sequencer.keep()
            if not self._is_quick():
                self._send()
        elif isinstance(outcome, Unavailable):
            group = self._sequencer.undo(group, public_text(Reason.JOURNAL_WRITE, outcome))
            count = len(group.outcomes)
            self._conditions.enter(Reason.JOURNAL_WRITE, outcome, refused=count, recheck=self._probe)
        else:
            # Whether this group is on disk is unknown, so nobody in it is told anything.
            self._break(outcome)
            return
        self._answer(group, report)
        self._catch_up.tend()
        if self._is_quick():
            self._send()

    def _probe(self) -> bool:
        """Try the journal with nothing to write: a hub that nobody writes to must learn that its disk is well again."""
        if not (self._in_flight or self._broken or self._drained):
            self._in_flight = True
            self._groups.put(_Probe())
        return True

    def _try_journal(self) -> Exception | None:
        """On the commit thread."""
        try:
            self._store.probe()
        except Exception as error:  # noqa: BLE001  a thread that ended here would leave everyone waiting
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
        """Nothing more is taken: the process must end."""
        self._broken = True
        self._on_broken(error)

    def _answer(self, group: SequencedGroup, report: CommitReport) -> None:
        self._on_group(group, report)
        self._maybe_drained()

    def _caught_up(self) -> None:
        """The log has everything that was set aside for it, or cannot be written."""
        if self.trouble is None:
            self._sequencer.forget()
        self._maybe_drained()

    def _maybe_drained(self) -> None:
        """When closing: done once nothing waits and the log has everything, or cannot be written."""
        if self._drained is None or self._drained.done() or self._waiting or self._in_flight:
            return
        if self._sequencer.decided:
            self._send()
            return
        if self._store.catching is None:
            self._catch_up.tend(idle=True)
        if self._store.catching is None or self.trouble is not None:
            self._drained.set_result(None)
