"""Prune what the policies allow, on the operator's request, while the hub runs. One run at a time, on its own thread.

The event is durable on the control stream before a byte is deleted. A run uses a small share of one core, so that it
does not slow the hub; a run that is cut off continues with the next one.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Event, Lock

from plumbing.background import CoreShare
from plumbing.durable import Disk
from veen.core import Receipt, Refused, VeenError, naming
from veen.core.limits import ATTACHMENT_GRACE_SEC, MAX_PRUNED_ATTACHMENTS, MAX_RULES
from veen.core.retention import (
    AttachmentPrune,
    Hold,
    Level,
    Prune,
    PrunedRange,
    RetentionPolicy,
    RetentionReport,
    RetentionRequest,
    RetentionRules,
    sign_attachment_tombstone,
)
from veen.hub.admission_rules import Rules
from veen.hub.admission_state import Outcome
from veen.hub.signer import Signer
from veen.storage.attachment_store import AttachmentStore
from veen.storage.index import LabelHead
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.pruning import PlannedPrune, Pruner
from veen.storage.store import Store

MAX_SHARE_OF_TIME = 0.1  # of one core, while the hub runs
_POLL_S = 0.5
_ATTACHMENTS_PER_PAUSE = 64
LogEvent = Callable[[Prune | AttachmentPrune, Callable[[Outcome], None], Callable[[], None]], None]


@dataclass(eq=False)
class RetentionRun:
    """Plans and prunes. `log_event` may be called on any thread; it logs on the loop.

    A hold that is logged during a run wins: each prune is checked again at its own place on the control stream.
    """

    disk: Disk
    folders: Folders
    store: Store
    rules: Rules
    signer: Signer
    hub_metadata: Callable[[], HubMetadata]
    retention: Callable[[], RetentionRules]
    epoch_of: Callable[[bytes, int], int]  # of a label with an entry at a hub_ts
    attachments: AttachmentStore
    log_event: LogEvent
    damaged: Callable[[VeenError], object]  # a record of an upload, or a tombstone: it deletes nothing
    _lock: Lock = field(default_factory=Lock)
    _stopping: Event = field(default_factory=Event)
    _share: CoreShare = field(init=False)

    def check_rule(self, event: RetentionPolicy | Hold) -> None:
        """Raise `Refused` if it names a label and a stream, or if there is no room for another policy or hold."""
        if event.label is not None and event.stream_id is not None:
            raise Refused("E.BAD_REQUEST", "a policy or a hold is for a label or for a stream, not for both")
        rules = self.retention()
        if max(len(rules.policies), len(rules.holds)) >= MAX_RULES:
            raise Refused("E.LIMIT", f"a hub has at most {MAX_RULES} policies and holds")

    def run(self, request: RetentionRequest, now: int) -> RetentionReport:
        """Plan, and prune unless the request is dry. `now` decides what is due: a step of the clock during the run
        changes nothing. Raises `Refused` if a run is in progress."""
        if not self._lock.acquire(blocking=False):
            raise Refused("E.CONFLICT", "a retention run is in progress; wait for its end")
        try:
            self._share = CoreShare(MAX_SHARE_OF_TIME, self._stopping.wait)
            return self._run(request, now)
        finally:
            self._lock.release()

    def _run(self, request: RetentionRequest, now: int) -> RetentionReport:
        if request.coid is not None:
            return self._erase_attachment(request.coid, request)
        pruner = Pruner(self.disk, self.folders, self.store.index, self.hub_metadata, self._pause)
        done: list[PrunedRange] = []
        freed = held = 0
        for label, head in self._labels(request.label):
            if self._is_protected(label, head):
                if request.label is not None:
                    raise Refused("E.FORBIDDEN", "control, admin and policy streams are never pruned")
                continue
            if not request.dry:
                freed += pruner.finish(label)
            planned = self._planned(pruner, label, request, now)
            hold = self._hold(label)
            if planned and hold is not None:
                if request.from_seq is not None:
                    raise Refused("E.FORBIDDEN", f"the label is under a legal hold: {hold.reason}")
                held += sum(one.entries for one in planned)
                continue
            for one in planned:
                if not request.dry:
                    freed += self._prune(pruner, one, request.reason)
                done.append(_shown(one))
        due = _DueAttachments() if request.from_seq is not None else self._due_attachments(request.label, now)
        if not request.dry:
            freed += self.attachments.finish_prunes(self.hub_metadata().identity, self.damaged)
            for label, coids in due.by_label.items():
                freed += self._prune_attachments(coids, label, None)
        return RetentionReport(tuple(done[:MAX_RULES]), len(done), freed, held, due.count, due.size, due.held)

    def _erase_attachment(self, coid: bytes, request: RetentionRequest) -> RetentionReport:
        """Delete one attachment. Without a sound record, nobody knows its label, so every hold prevents it."""
        if (request.label, request.from_seq) != (None, None):
            raise Refused("E.BAD_REQUEST", "erase entries and an attachment with two requests")
        size, record = self.attachments.size(coid), self.attachments.record(coid, self.damaged)
        if not self.attachments.exists(coid):
            raise Refused("E.NOT_FOUND", "there is no attachment with that coid")
        hold = self._hold(record.label if record else None)
        if hold is not None:
            raise Refused("E.FORBIDDEN", f"the attachment is under a legal hold: {hold.reason}")
        freed = 0
        if not request.dry:
            freed = self._prune_attachments([coid], record.label if record else None, request.reason)
        return RetentionReport((), 0, freed, 0, 1, size, 0)

    def _due_attachments(self, only: bytes | None, now: int) -> "_DueAttachments":
        """Every attachment that is too old by the policy of its label, unless it is under a hold."""
        found, rules = _DueAttachments(), self.retention()
        kept: dict[bytes, tuple[RetentionPolicy | None, Hold | None]] = {}
        for count, (coid, record) in enumerate(self.attachments.records(self.damaged)):
            if count % _ATTACHMENTS_PER_PAUSE == 0:
                self._pause()
            label = record.label
            if only not in (None, label):
                continue
            if label not in kept:
                stream = self._stream_of(label)
                kept[label] = rules.policy_of(label, stream), rules.hold_of(label, stream)
            policy, hold = kept[label]
            if policy is None or policy.payload_sec is None:
                continue
            if now - record.uploaded_at >= policy.payload_sec + ATTACHMENT_GRACE_SEC:
                found.add(label, coid, self.attachments.size(coid), is_held=hold is not None)
        return found

    def _prune_attachments(self, coids: Sequence[bytes], label: bytes | None, reason: str | None) -> int:
        """Log the deletion of attachments, sign a tombstone for each, and delete it. Returns the bytes freed."""
        freed = 0
        for start in range(0, len(coids), MAX_PRUNED_ATTACHMENTS):
            part = tuple(coids[start : start + MAX_PRUNED_ATTACHMENTS])
            logged = self._logged(AttachmentPrune(part, label, reason), label)
            key, hub_id = self.signer.at(logged.hub_ts), self.hub_metadata().identity.hub_id
            for count, coid in enumerate(part):
                made = sign_attachment_tombstone(key, hub_id, coid, logged.hub_ts, logged.stream_seq)
                freed += self.attachments.prune(made)
                if count % _ATTACHMENTS_PER_PAUSE == 0:
                    self._pause()
        return freed

    def _prune(self, pruner: Pruner, planned: PlannedPrune, reason: str | None) -> int:
        event = Prune(planned.label, planned.start_seq, planned.end_seq, planned.level, reason)
        logged = self._logged(event, planned.label)
        key, epoch = self.signer.at(logged.hub_ts), self.epoch_of(planned.label, logged.hub_ts)
        return pruner.prune(planned, logged, key, epoch, logged.hub_ts)

    def _hold(self, label: bytes | None) -> Hold | None:
        """A hold that forbids to prune this label. Without one, any hold: the attachment may belong to any label."""
        rules = self.retention()
        return next(iter(rules.holds), None) if label is None else rules.hold_of(label, self._stream_of(label))

    def _logged(self, event: Prune | AttachmentPrune, label: bytes | None) -> Receipt:
        """The receipt of an event on the control stream, which is durable then."""
        answered: Future[Outcome] = Future()

        def check() -> None:
            if (hold := self._hold(label)) is not None:
                raise Refused(
                    "E.FORBIDDEN", f"a legal hold began during this run, which ended; run it again: {hold.reason}"
                )

        self.log_event(event, answered.set_result, check)
        while True:
            try:
                outcome = answered.result(_POLL_S)
                break
            except TimeoutError:
                self._check_stopping()
        if isinstance(outcome, Refused):
            raise outcome
        return Receipt.decode(outcome)

    def _planned(self, pruner: Pruner, label: bytes, request: RetentionRequest, now: int) -> list[PlannedPrune]:
        if request.from_seq is not None:
            last = request.to_seq if request.to_seq is not None else request.from_seq
            return pruner.plan_range(label, request.from_seq, last)
        policy = self.retention().policy_of(label, self._stream_of(label))
        return pruner.plan(label, policy, now) if policy else []

    def _labels(self, only: bytes | None) -> Iterable[tuple[bytes, LabelHead]]:
        with self.store.index.read() as rows:
            found = [(label, head) for label, head in rows.labels() if only in (None, label)]
        if only is not None and not found:
            raise Refused("E.NOT_FOUND", "this label has no entries", detail={"label": only.hex()})
        return found

    def _is_protected(self, label: bytes, head: LabelHead) -> bool:
        if self.hub_metadata().control_hub(label, head.hub_ts) is not None:
            return True
        streams = {self.rules.control_stream, *self.rules.admin_streams}
        if self.rules.profile.epoch_sec:
            return self._stream_of(label) in streams
        return label in {naming.label(self.rules.routing_key, stream, 0) for stream in streams}

    def _stream_of(self, label: bytes) -> bytes | None:
        """The stream of a label, as far as a policy or a hold can name it."""
        if self.rules.profile.epoch_sec:
            with self.store.index.read() as rows:
                found = rows.stream_and_epoch(label)
            return found[0] if found else None
        rules = self.retention()
        named = {one.stream_id for one in rules.policies} | {one.stream_id for one in rules.holds}
        return next((one for one in named if one and naming.label(self.rules.routing_key, one, 0) == label), None)

    def stop(self) -> None:
        """On any thread: end a run soon. The next run continues it."""
        self._stopping.set()

    def _pause(self) -> None:
        self._share.pause()
        self._check_stopping()

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Refused("E.UNAVAILABLE", "the hub is stopping; the next run continues", retry_after=1)


@dataclass(slots=True)
class _DueAttachments:
    by_label: dict[bytes, list[bytes]] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    held: int = 0

    def add(self, label: bytes, coid: bytes, size: int, *, is_held: bool) -> None:
        if is_held:
            self.held += 1
            return
        self.by_label.setdefault(label, []).append(coid)
        self.count += 1
        self.size += size


def _shown(planned: PlannedPrune) -> PrunedRange:
    size = (planned.bytes_before, planned.bytes_after)
    return PrunedRange(planned.label, planned.start_seq, planned.end_seq, Level(planned.level), *size)
