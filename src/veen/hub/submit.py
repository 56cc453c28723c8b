"""The submit pipeline: from the bytes of a message to its receipt. Spec §8.1.

    admit       parse the message, bound how many are in flight
    verify      check its signature in a worker; clients take turns
    decide      the sequencer gives it a place in the log, or rejects it
    replicate   empty: this hub orders alone. Decisions are unsigned here, and may still be withdrawn
    sign        the signer process signs the receipts of the decided messages
    persist     one journal write and sync for the whole group
    reply       answer every message of the group, then update metrics and subscribers

Groups form without timers: while one is being written, the next is signed, and the one after it is decided. Everything
runs on the loop's thread, except signature checks, signing and, on a slow disk, the write and sync. If a write fails,
all groups that are not durable are undone, and signatures that arrive for them later are dropped. No receipt leaves
before its group is durable. A crash before the sync loses only messages without an answer; after it, replay restores
the group.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

from plumbing.background import Background
from plumbing.http.message import Report
from plumbing.json_log import JsonLog
from veen.core import Malformed, Msg, Receipt, Refused, Unavailable, Unverified, control_stream, msg
from veen.core.admission import BY_DETAIL
from veen.core.hashing import ht
from veen.core.profile import LimitRegistry
from veen.core.receipt import unsigned
from veen.hub import responses
from veen.hub.admission_rules import Cap, Rules, parse
from veen.hub.admission_state import ControlEvent, Done, Group, Item, Outcome, Placed, Submission
from veen.hub.conditions import Conditions, Reason, public_text
from veen.hub.read_api import Subscriptions
from veen.hub.read_executor import FairQueue
from veen.hub.sequencer import Sequencer
from veen.hub.signer import RemoteKey, Signer
from veen.hub.status import CommitReport, HubStatusPage, Metrics
from veen.hub.verifier import Verifier
from veen.storage.frame import JournalTail
from veen.storage.store import Store

# At most this many signature checks run at once. Further messages wait in a queue in which clients take turns. It is
# emptied in batches: fewer messages at a time would make groups, and so syncs, small.
MAX_CHECKS = 1024
_REFILL_BATCH = 128
# One client may queue at most half of `max_in_flight`. If others fill the queue, an eighth more is reserved for clients
# with few queued messages.
_CLIENT_SHARE_DIVISOR, _RESERVE_DIVISOR, _FEW_QUEUED = 2, 8, 16
# The overload state ends when at most this part of `max_in_flight` is in flight.
_RELIEVED_DIVISOR = 4
_SIG_INVALID = BY_DETAIL["SIG_INVALID"].refused("the signature does not verify under client_id")
# Decide and sign at most this many messages per turn, so that answers go out meanwhile.
MAX_DECIDED = 256
# A group of this size is signed and committed without waiting for more messages.
FULL_GROUP = 16
# At most this many groups are with the signer: the one that it signs, and a full one, so that it need not wait.
MAX_SIGNING = 2
# Signed to find out whether a key works. No signed object has this digest: each has a domain of its own.
_TRIAL_DIGEST = ht("veen/key-trial", b"")
# While the log cannot be written, the journal may grow to this size.
MAX_PENDING_BYTES = 1 << 27
# After this many writes and syncs in a row that were this fast, the loop syncs without the commit thread.
QUICK_S = 0.001
QUICK_SYNCS = 4
# A larger group is slow on any disk.
QUICK_BYTES = 1 << 20
_PREFIX_BYTES = 4  # of ids in the log


class SubmitPipeline:
    """Owns every message between arrival and receipt: its queues, the verifier, and when groups are written."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: Rules,
        store: Store,
        sequencer: Sequencer,
        signer: Signer,
        verifier: Verifier,
        metrics: Metrics,
        conditions: Conditions,
        log: JsonLog,
        max_in_flight: int,
        background: Background,
        status: HubStatusPage,
        subscriptions: Subscriptions,
        on_limits: Callable[[LimitRegistry], None],
        on_broken: Callable[[BaseException], None],
        *,
        log_submits: bool = False,
    ) -> None:
        """`on_limits` gets the limits after each durable group that lowered them."""
        self._loop = loop
        self._rules = rules
        self._store = store
        self._sequencer = sequencer
        self._state = sequencer.state
        self._signer = signer
        self._verifier = verifier
        self._metrics = metrics
        self._conditions = conditions
        self._report: Report = log.failed
        self._log = log
        self.log_each_submit(log_submits)
        self._max_in_flight = max_in_flight
        self._status = status
        self._subscriptions = subscriptions
        self._on_limits = on_limits
        self._on_broken = on_broken
        # Admit and verify.
        self.in_flight = 0  # messages between arrival and receipt
        self._is_refusing = False
        self._unchecked: FairQueue[Submission] = FairQueue()
        self._checks_started = 0
        self._checks_finished = 0
        # Decide and sign.
        self._verified: list[Item] = []
        self._decide_at = 0  # decide few items once `_checks_finished` reaches this
        self._turn_due = False
        self._signing = 0  # groups that are with the signer
        self._between: list[tuple[Callable[[], Callable[[], object]], Callable[[object], None]]] = []
        self._is_paused = False  # work between two groups is running
        self._cannot_sign: str | None = None  # why, for clients
        self._is_trying_key = False
        # Persist.
        self._is_writing = False
        self._quick_syncs = 0  # in a row
        self._broken = False
        self._drained: asyncio.Future[None] | None = None  # set while closing
        self._writer = background.worker("commit")
        self._catch_up = CatchUp(loop, store, conditions, background, self._caught_up, self._break)

    async def close(self) -> None:
        """Commit queued items, catch up, stop."""
        self._catch_up.stop_timer()
        self._drained = self._loop.create_future()
        self._schedule_turn()  # for items that wait for others
        self._maybe_drained()
        await self._drained
        await self._loop.run_in_executor(None, self._writer.close)
        await self._loop.run_in_executor(None, self._catch_up.close)
        self._verifier.close()

    # Admit.

    def submit(self, encoded: bytes, done: Done, owner: object = None) -> None:
        """Decide about one encoded MSG of `owner`. `done` is called exactly once, on the loop's thread."""
        if (self.in_flight >= self._max_in_flight or self._unchecked.waiting) and not self._has_room(owner):
            self._is_refusing = True
            text = self._conditions.enter(Reason.SUBMIT_OVERLOAD, in_flight=self.in_flight)
            refused = Refused("E.UNAVAILABLE", text, retry_after=1)
            self.record_rejection(refused, len(encoded))
            done(refused)
            return
        try:
            message = parse(encoded, self._rules)
        except Refused as error:
            self.record_rejection(error, len(encoded))
            done(error)
            return
        self.in_flight += 1
        submission = Submission(message, encoded, done, perf_counter())
        if self._unchecked.waiting or self._checks_started - self._checks_finished >= MAX_CHECKS:
            self._unchecked.put(owner, submission)
        else:
            self._verify(submission)

    def log_event(self, event: control_stream.Event, done: Done, check: Callable[[], None] | None = None) -> None:
        """Log an event on the control stream, unless `check` raises `Refused` at its place in the order."""
        self._put(ControlEvent(event, done, check))

    @property
    def hub_ts(self) -> int:
        return self._sequencer.hub_ts

    def log_each_submit(self, wanted: bool) -> None:
        """Whether each submit gets a line in the log, from now on."""
        self._submit_log = SubmitLog(self._log) if wanted else None

    def capability(self, auth_ref: bytes) -> Cap | None:
        """A capability on the control stream, as it was first logged."""
        return self._state.cap(auth_ref)

    def between_groups(self, begin: Callable[[], Callable[[], object]], done: Callable[[object], None]) -> None:
        """Do work while no group is open, being signed or written. Messages that arrive meanwhile wait.

        `begin` is called on the loop at that moment, and what it returns on another thread. `done` is called on the
        loop with the result or the exception, before the next group is opened. If it raises, the hub ends.
        """
        self._between.append((begin, done))
        self._schedule_turn()

    def record_rejection(self, refused: Refused, bytes_in: int) -> None:
        """Count a message that was rejected before it was decoded."""
        self._metrics.refused(refused)
        if self._submit_log:
            self._submit_log.record_rejection(refused, bytes_in)

    def _has_room(self, owner: object) -> bool:
        """Whether one more message of `owner` may be in flight."""
        waiting = self._unchecked.count(owner)
        if self._unchecked.waiting and waiting < _FEW_QUEUED:
            return self.in_flight < self._max_in_flight + self._max_in_flight // _RESERVE_DIVISOR
        return self.in_flight < self._max_in_flight and waiting < max(1, self._max_in_flight // _CLIENT_SHARE_DIVISOR)

    # Verify.

    def _verify(self, submission: Submission) -> None:
        self._checks_started += 1
        message = submission.message
        signed = message.client_id, msg.signing_digest(submission.encoded), message.sig
        self._verifier.check(signed, partial(self._checked, submission))

    def _checked(self, submission: Submission, valid: bool) -> None:
        """The result of a signature check."""
        self._checks_finished += 1
        if self._unchecked.waiting:
            self._refill_verifier()
        submission.verify_s = seconds = perf_counter() - submission.arrived
        if valid:
            self._metrics.verify_ms.observe(seconds * 1e3)
            self._put(submission)
        else:
            self._schedule_turn()  # the next group may have waited for this check
            self._answer(submission, _SIG_INVALID)

    def _refill_verifier(self) -> None:
        room = MAX_CHECKS - (self._checks_started - self._checks_finished)
        if room >= min(_REFILL_BATCH, MAX_CHECKS):
            while room and (queued := self._unchecked.take()) is not None:
                room -= 1
                self._verify(queued)

    def _put(self, item: Item) -> None:
        """Queue an item for the next turn. Rejects everything once the disk cannot be trusted."""
        if self._broken:
            self._answer(item, _unavailable("the disk failed; this hub is stopping"))
            return
        if not self._verified:
            self._decide_at = self._checks_finished + FULL_GROUP
        self._verified.append(item)
        self._schedule_turn()

    # Decide, replicate, sign.

    def _schedule_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take what has been verified through the stages. `_signed` writes it."""
        self._turn_due = False
        if self._broken or self._is_paused:
            return  # `_resume` starts the next turn
        if self._between:
            self._pause()
            return
        if self._should_grow():
            return
        items, self._verified = self._verified[:MAX_DECIDED], self._verified[MAX_DECIDED:]
        if self._verified:
            self._schedule_turn()
        trouble = self._catch_up.trouble
        if trouble is not None and self._store.pending.size_bytes > MAX_PENDING_BYTES:
            self._conditions.count(Reason.LOG_WRITE, len(items))
            self._reject(items, trouble)
        elif items:
            try:
                self._decide(items)
            except Exception as mistake:  # noqa: BLE001  a partial decision must never be written
                self._break(mistake)

    def _should_grow(self) -> bool:
        """Whether the next group waits: for the signer, or because it is small and more messages are being verified."""
        is_full = len(self._verified) >= FULL_GROUP
        if self._signing:
            return self._signing >= MAX_SIGNING or not is_full  # `_signed` starts the next turn
        will_grow = len(self._verified) < self._checks_started - self._checks_finished
        return not is_full and will_grow and self._checks_finished < self._decide_at and self._drained is None

    def _pause(self) -> None:
        """Start the work that waits for a moment between groups, or write the decided groups first."""
        if self._is_writing or self._signing:
            return  # `_written` or `_signed` starts the next turn
        if self._state.decided:
            self._persist()
            if not self._is_writing:
                self._schedule_turn()
            return
        begin, done = self._between.pop(0)
        try:
            work = begin()
        except Exception as error:  # noqa: BLE001  the caller gets it
            done(error)
            self._schedule_turn()
            return
        self._is_paused = True
        self._loop.run_in_executor(None, _outcome, work).add_done_callback(lambda ran: self._resume(ran.result(), done))

    def _resume(self, result: object, done: Callable[[object], None]) -> None:
        try:
            done(result)
        except Exception as error:  # noqa: BLE001  the state that the next group needs is not certain
            self._break(error)
        self._is_paused = False
        self._schedule_turn()
        self._maybe_drained()

    def _decide(self, items: list[Item]) -> None:
        """Decide a group, and have the items signed that got a place. Without any, the group is answered."""
        hub_ts = self._sequencer.hub_ts
        try:
            key = self._signer.at(hub_ts)
        except (Unverified, Unavailable, Malformed) as error:
            text = self._conditions.enter(Reason.SIGNING_KEY, error, refused=len(items), recheck=self._lacks_key)
            self._reject(items, text)
            return
        if self._cannot_sign:
            self._conditions.count(Reason.SIGNING_KEY, len(items))
            self._reject(items, self._cannot_sign)
            return
        if Reason.SIGNING_KEY in self._conditions.states:
            self._conditions.leave(Reason.SIGNING_KEY)
        opened = perf_counter()
        self._verifier.flush()  # the workers are busy while this thread is
        group = self._sequencer.decide(items, hub_ts)
        group.opened = opened
        # Replicate: empty. A hub with replicas publishes the group here and signs what they accepted.
        if group.placed:
            self._sign(key, group)
        else:
            self._persist()

    def _sign(self, key: RemoteKey, group: Group) -> None:
        receipts, digests = [], []
        for one in group.placed:
            receipt, digest = unsigned(one.message.label, one.stream_seq, one.leaf_hash, one.mmr_root, one.hub_ts)
            receipts.append(receipt)
            digests.append(digest)
        self._signing += 1
        self._signer.sign_later(key, digests, partial(self._signed, group, receipts))

    def _signed(self, group: Group, receipts: list[bytes], outcome: list[bytes] | Malformed | Unavailable) -> None:
        """The signer answered. If the group was undone meanwhile, nothing refers to it any more."""
        self._signing -= 1
        if self._verified or self._between:
            self._schedule_turn()
        if isinstance(outcome, list):
            for placed, receipt, sig in zip(group.placed, receipts, outcome, strict=True):
                group.seal(placed, receipt + sig)
        else:
            items = self._state.withdraw(group)
            self._cannot_sign = self._conditions.enter(
                Reason.SIGNING_KEY, outcome, refused=len(items), recheck=self._lacks_key
            )
            self._reject(items, self._cannot_sign)
        self._persist()
        if self._drained is not None:
            self._maybe_drained()

    def _lacks_key(self) -> bool:
        """Whether no key can sign. After a failure, only a signature shows that the key works again."""
        try:
            key = self._signer.at(self._sequencer.hub_ts)
        except (Unverified, Unavailable, Malformed):
            return True
        if self._cannot_sign and not self._is_trying_key:
            self._is_trying_key = True
            self._signer.sign_later(key, [_TRIAL_DIGEST], self._tried_key)
        return self._cannot_sign is not None

    def _tried_key(self, outcome: list[bytes] | Malformed | Unavailable) -> None:
        self._is_trying_key = False
        if isinstance(outcome, list):
            self._cannot_sign = None
            self._conditions.leave(Reason.SIGNING_KEY)

    # Persist.

    def _persist(self) -> None:
        """Write what is signed, unless the disk is busy."""
        if self._is_writing or not self._state.decided:
            return
        group = self._state.take()
        if group is None:
            return
        if not group.records:
            self._state.keep()
            self._reply(group, CommitReport(0, perf_counter() - group.opened, 0.0))
            return
        self._is_writing = True
        if self._quick_syncs >= QUICK_SYNCS and group.size_bytes <= QUICK_BYTES:
            self._write(group, self._written)
        else:
            on_loop: Callable[..., object] = self._loop.call_soon_threadsafe
            self._writer.add(partial(self._write, group, partial(on_loop, self._written)))

    def _write(self, group: Group, done: Callable[[Group, int | Exception, CommitReport], object]) -> None:
        """Make a group durable, and pass on its number or the error. Runs on the commit thread if the disk is slow."""
        before = perf_counter()
        outcome: int | Exception
        try:
            outcome = self._store.commit(group)
        except Exception as error:  # noqa: BLE001  if the thread ended here, all clients would wait for ever
            outcome = error
        now = perf_counter()
        done(group, outcome, CommitReport(len(group.records), now - group.opened, now - before))

    def _written(self, group: Group, outcome: int | Exception, report: CommitReport) -> None:
        """Handle the result: the group is durable, or was not written."""
        self._is_writing = False
        self._quick_syncs = self._quick_syncs + 1 if report.sync_seconds < QUICK_S else 0
        is_quick = self._quick_syncs >= QUICK_SYNCS
        if isinstance(outcome, int):
            if Reason.JOURNAL_WRITE in self._conditions.states:
                self._conditions.leave(Reason.JOURNAL_WRITE)
            self._store.pending.add_group(group, outcome)
            self._state.keep()
            if not is_quick:
                self._persist()  # before the replies, so that the disk does not wait for them
            self._reply(group, report)
            self._catch_up.start_if_due(report.entries)
        elif isinstance(outcome, Unavailable):
            items = self._state.undo()
            self._conditions.enter(Reason.JOURNAL_WRITE, outcome, refused=len(items), recheck=self._probe)
            self._reject(items, public_text(Reason.JOURNAL_WRITE, outcome), report)
        else:
            # It is unknown whether this group is on disk, so no client in it gets an answer.
            self._break(outcome)
            return
        if is_quick:
            self._persist()
        if self._between:
            self._schedule_turn()

    def _probe(self) -> bool:
        """Test the journal without writing a group, so that an idle hub notices when its disk recovers."""
        if not (self._is_writing or self._broken or self._drained):
            self._is_writing = True
            self._writer.add(self._try_journal)
        return True

    def _try_journal(self) -> None:
        """Runs on the commit thread."""
        outcome = _outcome(self._store.probe)
        self._loop.call_soon_threadsafe(self._probed, outcome if isinstance(outcome, Exception) else None)

    def _probed(self, error: Exception | None) -> None:
        self._is_writing = False
        if error is None:
            self._conditions.leave(Reason.JOURNAL_WRITE)
        elif not isinstance(error, Unavailable):
            self._break(error)
            return
        self._persist()
        self._maybe_drained()

    # Reply.

    def _reject(self, items: list[Item], reason: str, report: CommitReport | None = None) -> None:
        """Answer items that nothing was written for."""
        rejected = Group(outcomes=[(item, _unavailable(reason)) for item in items])
        self._reply(rejected, report or CommitReport(0, 0.0, 0.0))

    def _reply(self, group: Group, report: CommitReport) -> None:
        """Answer the items of a group. Its records are durable. An error in one answer does not affect the others."""
        for item, outcome in group.outcomes:
            try:
                self._answer(item, outcome.receipt if isinstance(outcome, Placed) else outcome)
            except Exception as mistake:  # noqa: BLE001  the group is durable, and the others need their answers
                self._report("committed", mistake)
        try:
            self._metrics.committed(report, len(group.records), self._status.count(group.records))
            if report.entries and not group.records:
                self._status.check_disk()
            if group.limits:
                self._on_limits(group.limits)
            if self._subscriptions.by_label:
                self._subscriptions.committed(group.records)
        except Exception as mistake:  # noqa: BLE001  the same
            self._report("committed", mistake)
        if self._drained is not None:
            self._maybe_drained()

    def _answer(self, item: Item, outcome: Outcome) -> None:
        if isinstance(item, ControlEvent):
            item.done(outcome)
            return
        seconds = perf_counter() - item.arrived
        self.in_flight -= 1
        if self._is_refusing and self.in_flight <= self._max_in_flight // _RELIEVED_DIVISOR:
            self._is_refusing = False
            self._conditions.leave(Reason.SUBMIT_OVERLOAD)
        if isinstance(outcome, Refused):
            self._metrics.refused(outcome)
            if outcome.detail_enum == "PREV_ACK":
                self._check_ahead(item.message, int(outcome.detail["stream_seq"]))
        else:
            self._metrics.end_to_end_ms.observe(seconds * 1e3)
        item.done(outcome)
        if self._submit_log:
            self._submit_log.ended(item.message, item.encoded, outcome, item.verify_s, seconds)

    def _check_ahead(self, message: Msg, last_seq: int) -> None:
        """Warn if a client acknowledges entries that the log lacks: it may hold receipts for them."""
        if message.prev_ack > last_seq:
            self._metrics.prev_ack_ahead.inc()
            self._conditions.enter(
                Reason.PREV_ACK_AHEAD,
                source=message.label,
                recheck=self._conditions.for_a_while(),
                label=message.label.hex(),
                prev_ack=message.prev_ack,
                last_seq=last_seq,
            )

    # Behind the replies.

    def _caught_up(self) -> None:
        """A catch-up ended, successfully or not."""
        if self._catch_up.trouble is None:
            self._state.forget()
        self._maybe_drained()

    def _maybe_drained(self) -> None:
        """While closing: finish when nothing is queued and the log has everything or cannot be written."""
        if self._drained is None or self._drained.done() or self._verified or self._is_writing or self._signing:
            return
        if self._is_paused or self._between:
            return  # `_resume` calls this again
        if self._state.decided:
            self._persist()
            return
        if self._store.catching is None:
            self._catch_up.start_if_due(idle=True)
        if self._store.catching is None or self._catch_up.trouble is not None:
            self._drained.set_result(None)

    def _break(self, error: BaseException) -> None:
        """Accept nothing more: the process must exit."""
        self._broken = True
        self._on_broken(error)


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  it is the result
        return error


def _unavailable(reason: str) -> Refused:
    return Refused("E.UNAVAILABLE", reason, retry_after=1)


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
        background: Background,
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
        self._closing = False
        self.trouble: str | None = None
        self._timer = loop.call_later(TICK_S, self._tick)
        self._worker = background.worker("catch-up")

    def start_if_due(self, added: int = 0, *, idle: bool = False) -> None:
        """Start a catch-up if enough entries are pending, or any if the hub is idle. `added` just became durable."""
        self._recent_entries += added
        pending = self._store.pending
        due = max(CATCH_UP_ENTRIES, ENTRIES_PER_LABEL * len(pending.labels))
        due_bytes = max(CATCH_UP_BYTES, min(BYTES_PER_LABEL * len(pending.labels), MAX_BYTES))
        if idle or len(pending.records) >= due or pending.size_bytes >= due_bytes:
            tail = self._store.begin_catching_up()
            if tail:
                self._ticks = 0
                self._worker.add(partial(self._run, tail))

    def stop_timer(self) -> None:
        """Stop the timer. Only `start_if_due` starts a catch-up after this, and none is repeated."""
        self._closing = True
        self._timer.cancel()

    def close(self) -> None:
        """Wait for a running catch-up, and stop the thread."""
        self._worker.close()

    def _tick(self) -> None:
        """Keeps the log close behind on a quiet hub. A busy hub writes larger batches."""
        self._ticks += 1
        self.start_if_due(idle=self._recent_entries <= IDLE_ENTRIES or self._ticks >= MAX_TICKS)
        self._recent_entries = 0
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _run(self, tail: JournalTail) -> None:
        """One attempt, on the thread."""
        error: Unavailable | None = None
        try:
            self._store.catch_up(tail)
        except Unavailable as found:
            error = found
        except Exception as damage:  # noqa: BLE001  log and index disagree: nothing more may be written
            self._loop.call_soon_threadsafe(self._on_broken, damage)
            return
        self._loop.call_soon_threadsafe(self._ended, tail, error)

    def _ended(self, tail: JournalTail, error: Unavailable | None) -> None:
        if error is None:
            self.trouble = None
            self._conditions.leave(Reason.LOG_WRITE)
            self._store.end_catching_up()
        else:
            self.trouble = self._conditions.enter(Reason.LOG_WRITE, error, refused=0)
            self._loop.call_later(RETRY_S, self._retry, tail)
        self._on_turn()

    def _retry(self, tail: JournalTail) -> None:
        if not self._closing:
            self._worker.add(partial(self._run, tail))


class SubmitLog:
    """One JSON line per submit, if the operator enables it. OBS0.2: prefixes of ids, never a payload.

    Every accepted message has a line; accepting it cost a signature, a place and a sync. Lines for rejections are
    limited. A line has the whole label, so that it can be matched with the log.
    """

    def __init__(self, log: JsonLog) -> None:
        self._log = log

    def record_rejection(self, refused: Refused, bytes_in: int) -> None:
        """Log a rejection before decoding: only the size is known."""
        if self._log.may_log("refused submit"):
            self._write(None, bytes_in, refused, 0.0, 0.0)

    def ended(self, message: Msg, encoded: bytes, outcome: Outcome, verify_s: float, whole_s: float) -> None:
        if not isinstance(outcome, Refused) or self._log.may_log("refused submit"):
            self._write(message, len(encoded), outcome, verify_s, whole_s - verify_s)

    def _write(self, message: Msg | None, bytes_in: int, outcome: Outcome, verify_s: float, commit_s: float) -> None:
        fields: dict[str, object] = {
            "label": message.label.hex() if message else None,
            "client_id_prefix": message.client_id[:_PREFIX_BYTES].hex() if message else None,
            "stream_seq": None,
            "leaf_hash_prefix": message.leaf_hash()[:_PREFIX_BYTES].hex() if message else None,
            "bytes_in": bytes_in,
            "verify_ms": round(verify_s * 1e3, 3),
            "commit_ms": round(commit_s * 1e3, 3),
        }
        if isinstance(outcome, Refused):
            size = len(responses.envelope_of(outcome).encode())
            fields |= {"bytes_out": size, "code": outcome.code, "detail_enum": outcome.detail_enum}
        else:
            fields |= {"bytes_out": len(outcome), "stream_seq": Receipt.decode(outcome).stream_seq}
        self._log.event("info", "submit", **fields)
