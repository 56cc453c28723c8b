"""The sequencer: decides the order of admitted messages and signs it. Receipts leave when the group is durable."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from veen.core import (
    Bucket,
    CapToken,
    Limits,
    Malformed,
    Msg,
    Place,
    Refused,
    SigningKey,
    Unavailable,
    Unverified,
    admin,
    control_stream,
    naming,
)
from veen.core.receipt import sign_encoded
from veen.hub.admission_rules import Cap, Rules, authorize, check_client, check_revoked, revocable, sequence
from veen.hub.admission_state import AdmissionState
from veen.hub.realm import Realm
from veen.hub.signer import Signer
from veen.storage import frame
from veen.storage.accepted_entry import AcceptedEntry, CommitGroup
from veen.storage.frame import LogEntry
from veen.storage.lookup import Lookup
from veen.storage.store import Store

Outcome = bytes | Refused  # an encoded receipt, or the rejection
Done = Callable[[Outcome], None]


class Submission:
    """A message with a valid signature that waits for its place."""

    __slots__ = ("_done", "encoded", "message")

    def __init__(self, message: Msg, encoded: bytes, done: Done) -> None:
        self.message = message
        self.encoded = encoded
        self._done = done

    def done(self, outcome: Outcome) -> None:
        """Called once with the decision."""
        self._done(outcome)


@dataclass(slots=True)
class ControlEvent:
    """An event of the operator for the control stream."""

    event: control_stream.Event
    done: Done


Item = Submission | ControlEvent


@dataclass(slots=True)
class SequencedGroup:
    """The entries and answers that one sync covers."""

    batch: CommitGroup = field(default_factory=CommitGroup)
    outcomes: list[tuple[Item, Outcome]] = field(default_factory=list)


class NoSigningKeyError(Exception):
    """No key of the hub is active now, or its file is unreadable."""


class Sequencer:
    """Decides every entry of the log. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        signer: Signer,
        control_key: SigningKey,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._state = AdmissionState(store, rules)
        self._lookup = Lookup(store)
        self._rules = rules
        self._clock = clock
        self._control = control_key
        self._signer = signer
        self._key: SigningKey = control_key  # replaced by the first group
        self._outcomes: list[tuple[Item, Outcome]] = []

    def replay(self) -> int:
        """Apply the journal to the state. Returns the number of entries."""
        count = 0
        for group, entries in self._store.replay():
            for entry in entries:
                self._replay_entry(entry, self._state.batch)
            self._store.restore(self._state.take(), group)
            self._state.keep()
            count += len(entries)
        return count

    @property
    def realm(self) -> Realm:
        """The current state of the admin streams."""
        return self._state.realm

    def policy_of(self, label: bytes) -> str:
        """The authority policy of a label, as far as the realm defines it."""
        hub_ts = self.hub_ts
        found = self._state.authority(label, self._state.stream_of(label, hub_ts), hub_ts)
        return found.policy if found else str(admin.AuthorityPolicy.UNSPECIFIED)

    def check_capability(self, token: CapToken) -> None:
        """Raise if a logged capability, or the key it is for, is revoked."""
        hub_ts = self.hub_ts
        check_revoked(revocable(token), self._state, self._rules, hub_ts)
        check_client(token.subject_pk, self._state, self._rules, hub_ts)

    def prepare(self) -> bool:
        """Prepare some labels for later look-ups. Returns whether more may be left."""
        return self._state.streams.prepare(self.hub_ts)

    def forget(self) -> None:
        """Evict state that the log has caught up with, if it is too large."""
        self._state.forget()

    @property
    def hub_ts(self) -> int:
        """The hub's time: it never decreases, even if the clock does."""
        return max(int(self._clock()), self._state.hub_ts)

    def decide(self, items: list[Item]) -> None:
        """Order and sign items into the open group. Rejected items change nothing; the others wait for the commit.

        Raises as `check_key` does; nothing is decided then.
        """
        hub_ts = self.hub_ts
        self._key = self._key_at(hub_ts)
        self._state.advance(hub_ts)
        batch = self._state.batch
        for item in items:
            self._outcomes.append((item, self._decide(item, hub_ts, batch)))

    def check_key(self) -> None:
        """Raise `NoSigningKeyError` if nothing can be signed now."""
        self._key_at(self.hub_ts)

    def _key_at(self, hub_ts: int) -> SigningKey:
        try:
            return self._signer.at(hub_ts)
        except (Unverified, Unavailable) as error:
            raise NoSigningKeyError(str(error)) from error

    def _decide(self, item: Item, hub_ts: int, batch: CommitGroup) -> Outcome:
        try:
            if isinstance(item, ControlEvent):
                return self._log_event(item, hub_ts, batch)
            return self._accept(item, hub_ts, batch)
        except Refused as refused:
            return refused

    @property
    def decided(self) -> int:
        """The number of items in the open group, accepted or rejected."""
        return len(self._outcomes)

    def take(self) -> SequencedGroup:
        """Close the open group for commit. `keep` or `undo` must follow."""
        group = SequencedGroup(self._state.take(), self._outcomes)
        self._outcomes = []
        return group

    def keep(self) -> None:
        """Mark the group as durable."""
        self._state.keep()

    def undo(self, group: SequencedGroup, reason: str) -> SequencedGroup:
        """Undo a group that could not be written, and the open group; all their items are rejected.

        Rejections are replaced too: they may depend on what was undone.
        """
        self._state.undo()
        undone = refused([item for item, _ in group.outcomes + self._outcomes], reason)
        self._outcomes = []
        return undone

    def _accept(self, submission: Submission, hub_ts: int, batch: CommitGroup) -> bytes:
        message = submission.message
        bucket = authorize(message, self._state, self._rules, hub_ts)
        sequence(message, self._state, self._rules, hub_ts)
        if bucket is not None and message.auth_ref is not None:
            self._set_bucket(message.auth_ref, message.label, bucket, batch)
        label, leaf = message.label, message.leaf_hash()
        tree, new_nodes = self._state.append(label, leaf)
        receipt = sign_encoded(self._key, label, tree.size, leaf, tree.root(), hub_ts)
        self._add_entry(message, submission.encoded, receipt, tree.size, new_nodes, hub_ts, batch)
        self._apply_admin_event(message, tree.size, hub_ts, batch)
        return receipt

    def _log_event(self, control: ControlEvent, hub_ts: int, batch: CommitGroup) -> bytes:
        """Log a control event. A repeated event gets its old receipt, unless it was revoked since."""
        if isinstance(control.event, CapToken):
            check_revoked(revocable(control.event), self._state, self._rules, hub_ts)
        known = self._known(control.event)
        if known:
            return known
        label = naming.label(self._rules.routing_key, self._rules.control_stream, self._rules.profile.epoch(hub_ts))
        client_seq, _ = self._state.cursor(label, self._control.public_key) or (0, 0)
        last = self._state.last_seq(label)
        place = Place(self._rules.profile_id, label, self._control.public_key, client_seq + 1, last)
        pad = self._rules.profile.pad_block
        message = control_stream.message(self._control, self._rules.hub_id, place, control.event, pad)
        receipt = self._accept(Submission(message, message.encode(), control.done), hub_ts, batch)
        self._apply_event(control.event, label, last + 1, hub_ts, batch)
        return receipt

    def _known(self, event: control_stream.Event) -> bytes | None:
        """The receipt of an event that was already logged, or is in a group that is not durable yet."""
        at = self._place_of(event)
        if at is None:
            return None
        for batch in self._state.undurable():
            for record in batch.records:
                if (record.label, record.stream_seq) == at:
                    return frame.read(record.frame)[0].receipt
        entry = self._lookup.entry(*at)
        return entry.receipt if entry else None

    def _place_of(self, event: control_stream.Event) -> tuple[bytes, int] | None:
        """`(label, stream_seq)` of a logged event."""
        tails = [*self._state.undurable(), *(tail.batch for tail in self._store.tails())]
        if isinstance(event, bytes):
            found = [tail.streams[event] for tail in tails if event in tail.streams]
            with self._store.index.read() as rows:
                return found[0] if found else rows.stream(event)
        auth_ref = event.auth_ref()
        caps = [tail.caps[auth_ref][:2] for tail in tails if auth_ref in tail.caps]
        with self._store.index.read() as rows:
            row = rows.cap(auth_ref)
        return caps[0] if caps else row[:2] if row else None

    def _apply_event(
        self, event: control_stream.Event, label: bytes, seq: int, hub_ts: int, batch: CommitGroup
    ) -> None:
        """Apply a logged event, new or replayed."""
        if isinstance(event, bytes):
            if self._state.add_stream(event):
                batch.streams[event] = (label, seq)
            return
        auth_ref = event.auth_ref()
        self._state.add_cap(auth_ref, Cap.of(event, hub_ts, self._rules.limits))
        batch.caps[auth_ref] = (label, seq, hub_ts, event.encode())
        for stream in event.allow.stream_ids:
            if self._state.add_stream(stream):
                batch.streams[stream] = (label, seq)

    def _replay_entry(self, entry: LogEntry, batch: CommitGroup) -> None:
        """Apply an acknowledged entry. It is not checked again, but must match the tree."""
        message, receipt = entry.open()
        tree, new_nodes = self._state.append(entry.label, receipt.leaf_hash)
        if tree.size != receipt.stream_seq or tree.root() != receipt.mmr_root:
            raise Malformed(
                "journal", f"entry {receipt.stream_seq} of {entry.label.hex()[:16]}… does not match the log"
            )
        self._state.advance(max(self._state.hub_ts, receipt.hub_ts))
        cap = self._state.cap(message.auth_ref) if message.auth_ref else None
        if cap and cap.rate and message.auth_ref:
            before = self._state.bucket(message.auth_ref, message.label) or Bucket.full(cap.rate, receipt.hub_ts)
            after = before.take(cap.rate, receipt.hub_ts) or before
            self._set_bucket(message.auth_ref, message.label, after, batch)
        self._add_entry(message, entry.msg, entry.receipt, receipt.stream_seq, new_nodes, receipt.hub_ts, batch)
        self._apply_admin_event(message, receipt.stream_seq, receipt.hub_ts, batch)
        if message.client_id == self._rules.control_pk:
            # A logged event is valid even if it exceeds the current limits.
            event = control_stream.event_of(self._rules.hub_id, message, Limits())
            self._apply_event(event, entry.label, receipt.stream_seq, receipt.hub_ts, batch)

    def _apply_admin_event(self, message: Msg, seq: int, hub_ts: int, batch: CommitGroup) -> None:
        """Apply an event of an admin stream. It takes effect with the next message."""
        realm_id = self._rules.realm_id
        stream = self._state.stream_of(message.label, hub_ts) if realm_id else None
        if realm_id is None or stream is None or stream not in self._rules.admin_streams:
            return
        event = admin.event_of(realm_id, stream, message, Limits())
        if event:
            self._state.add_admin_event(event)
            batch.admin_events[message.label, seq] = event

    def _set_bucket(self, auth_ref: bytes, label: bytes, bucket: Bucket, batch: CommitGroup) -> None:
        self._state.set_bucket(auth_ref, label, bucket)
        batch.buckets[auth_ref, label] = bucket

    def _add_entry(
        self,
        message: Msg,
        encoded: bytes,
        receipt: bytes,
        seq: int,
        new_nodes: list[bytes],
        hub_ts: int,
        batch: CommitGroup,
    ) -> None:
        """Add an entry to the group and update its client's cursor."""
        if self._rules.profile.epoch_sec and message.label not in batch.labels:
            self._add_epoch(message.label, hub_ts, batch)
        framed, digest = frame.write(message.label, seq, encoded, receipt)
        batch.records.append(
            AcceptedEntry(
                message.label,
                seq,
                framed,
                digest,
                new_nodes,
                message.client_id,
                message.client_seq,
                message.prev_ack,
                hub_ts,
            )
        )
        self._state.set_cursor(message.label, message.client_id, (message.client_seq, message.prev_ack))
        if message.client_seq == 1 and self._rules.limits.max_client_id_lifetime_sec is not None:
            self._state.set_first_ts(message.label, message.client_id, hub_ts)

    def _add_epoch(self, label: bytes, hub_ts: int, batch: CommitGroup) -> None:
        """Store stream and epoch of a label, so that they are known for ever."""
        found = self._state.streams.find(label, hub_ts)
        if found:
            batch.labels[label] = found


def refused(items: list[Item], reason: str) -> SequencedGroup:
    """A group in which every item is rejected."""
    return SequencedGroup(outcomes=[(item, _unavailable(reason)) for item in items])


def _unavailable(reason: str) -> Refused:
    return Refused("E.UNAVAILABLE", reason, retry_after=1)
