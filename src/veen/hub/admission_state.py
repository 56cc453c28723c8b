"""The state of admission in memory: cursors, trees, capabilities, buckets, realm. Owned by the loop's thread.

Everything here is also in the journal or the index. Missing values are read from there; values that changed since the
last catch-up are never evicted. Decisions are made before they are durable, so every change can be undone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from veen.core import Bucket, CapToken, Limits, Malformed, Mmr, Msg, Refused, admin, control_stream, naming
from veen.core.admin import Authority, AuthorityPolicy, OperatorRevocation, Revocation, RevocationKind
from veen.core.cap_token import decode_capability
from veen.core.profile import LimitRegistry
from veen.core.retention import RetentionRules
from veen.hub.admission_rules import Cap, Revoker, Rules, check_client, check_operator, check_revoked, revocable
from veen.storage import frame
from veen.storage.frame import AcceptedEntry, CommitGroup, LogEntry
from veen.storage.index import check_peaks
from veen.storage.label_map import LabelMap
from veen.storage.log_writer import check_open_chunks
from veen.storage.store import Lookup, Store

MAX_CACHED = 65_536
# Streams read or labels derived in one turn of the loop: one or two milliseconds.
LABELS_PER_TURN = 1024
# Prepare the labels of this many epochs in advance.
EPOCHS_AHEAD = 1


Outcome = bytes | Refused  # an encoded receipt, or the rejection
Done = Callable[[Outcome], None]


@dataclass(slots=True, eq=False)
class Submission:
    """A message between arrival and receipt. `done` is called once with the outcome."""

    message: Msg
    encoded: bytes
    done: Done
    arrived: float = 0.0
    verify_s: float = 0.0


@dataclass(slots=True, eq=False)
class ControlEvent:
    """An event of the operator for the control stream."""

    event: control_stream.Event
    done: Done
    check: Callable[[], None] | None = None  # raises `Refused` if an event before this one forbids it


Item = Submission | ControlEvent


@dataclass(slots=True, eq=False)  # not frozen: one is made for every message, and freezing triples its cost
class Placed:
    """A message with its place in the log. The receipt is empty until it is signed."""

    message: Msg
    encoded: bytes
    stream_seq: int
    leaf_hash: bytes
    mmr_root: bytes
    new_nodes: list[bytes]
    hub_ts: int
    receipt: bytes = b""


@dataclass(slots=True)
class Group(CommitGroup):
    """Decided messages: what is written, the answers, and the old values for an undo.

    One turn decides a group, which is signed on its own. Signed groups are joined to the one that a sync covers.
    """

    hub_ts: int = 0  # the hub's time before the group
    opened: float = 0.0  # when its first item was decided
    outcomes: list[tuple[Item, Placed | Outcome]] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    old_values: list[tuple[dict[bytes, Any], bytes, object]] = field(default_factory=list)
    old_trees: dict[bytes, Mmr] = field(default_factory=dict)
    old_limits: LimitRegistry | None = None  # before the first event that lowered them
    new_streams: list[bytes] = field(default_factory=list)

    def join(self, later: "Group") -> None:
        """Add the group that was decided next."""
        self.extend(later)
        self.outcomes += later.outcomes
        self.placed += later.placed
        self.old_values += later.old_values
        self.old_trees = later.old_trees | self.old_trees
        self.old_limits = self.old_limits or later.old_limits
        self.new_streams += later.new_streams

    def seal(self, placed: Placed, receipt: bytes) -> None:
        """Add the next message that was placed, with its signed receipt, to what is written."""
        placed.receipt, message, at = receipt, placed.message, placed.stream_seq
        framed, digest = frame.write(message.label, at, placed.encoded, receipt)
        self.add(AcceptedEntry.of(message, at, framed, digest, placed.new_nodes, placed.hub_ts))


class AdmissionState:
    """The admission state of one hub."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules
        self._trees: dict[bytes, Mmr] = {}
        self._cursors: dict[bytes, tuple[int, int]] = {}
        self._buckets: dict[bytes, Bucket] = {}
        self._caps: dict[bytes, Cap] = {}
        self._first_ts: dict[bytes, int] = {}
        self.realm = Realm()
        self._governed: dict[bytes, bytes] = {}
        self._retention: dict[bytes, RetentionRules] = {}
        with store.index.read() as rows:
            self.hub_ts = rows.number("hub_ts")
            events = list(rows.admin_events())
            registry = rows.limits()
            self._retention[b""] = rows.retention()
        if registry:  # the index follows the log; limits.json may be older
            rules.limits_in_force.registry = registry
        self.open = Group(hub_ts=self.hub_ts)  # what is decided now belongs to this group
        self.decided: deque[Group] = deque()  # groups that are not being written yet, oldest first
        self._writing: Group | None = None  # older than those
        for event in events:
            self._add_admin_event(event)
        self.open.old_values.clear()
        self.streams = StreamRegistry(rules, store)

    @property
    def retention(self) -> RetentionRules:
        """The policies and holds after the last event, durable or not."""
        return self._retention[b""]

    # Looking up.

    def tree(self, label: bytes) -> Mmr:
        tree = self._trees.get(label)
        if tree is None:
            with self._store.index.read() as rows:
                head = rows.head(label)
                if head:
                    check_peaks(self._store.folders.node_file(label), head)
                    check_open_chunks(self._store.folders, [(label, head)])
            tree = self._trees[label] = Mmr(head.size, head.peaks) if head else Mmr()
        return tree

    def cursor(self, label: bytes, client_id: bytes) -> tuple[int, int] | None:
        key = client_id + label
        found = self._cursors.get(key)
        if found is None:
            with self._store.index.read() as rows:
                found = rows.client_cursor(label, client_id)
            if found:
                self._cursors[key] = found
        return found

    def cap(self, auth_ref: bytes) -> Cap | None:
        found = self._caps.get(auth_ref)
        if found is None:
            with self._store.index.read() as rows:
                row = rows.cap(auth_ref)
            if row:
                found = self._caps[auth_ref] = Cap.of(decode_capability(row[3]), row[2], self._rules.limits)
        return found

    def bucket(self, auth_ref: bytes, label: bytes) -> Bucket | None:
        key = auth_ref + label
        found = self._buckets.get(key)
        if found is None:
            with self._store.index.read() as rows:
                row = rows.bucket(auth_ref, label)
            if row:
                found = self._buckets[key] = Bucket(*row)
        return found

    def first_ts(self, label: bytes, client_id: bytes) -> int | None:
        key = client_id + label
        found = self._first_ts.get(key)
        if found is None:
            with self._store.index.read() as rows:
                at = rows.stream_seq_of(label, client_id, 1)
                message, receipt = Lookup(self._store).headers(label, at) if at else (None, None)
                known = rows.client_cursor(label, client_id) is not None
                if known != (message is not None and (message.client_id, message.client_seq) == (client_id, 1)):
                    raise Malformed("index", "the first entry of a client is missing")
            if receipt:
                found = self._first_ts[key] = receipt.hub_ts
        return found

    def authority(self, label: bytes, stream: bytes | None, hub_ts: int) -> Authority | None:
        stream = stream or self._governed.get(label)
        return self.realm.authority(stream, hub_ts) if stream else None

    def accepted_at(self, message: Msg) -> int | None:
        wanted = (message.client_id, message.label, message.client_seq)
        for group in self.undurable():
            for placed in group.placed:
                known = placed.message
                if (known.client_id, known.label, known.client_seq) == wanted:
                    return placed.stream_seq if placed.encoded == message.encode() else None
        with self._store.index.read() as rows:
            found = rows.stream_seq_of(message.label, message.client_id, message.client_seq)
        for tail in self._store.tails():
            for record in tail.labels.get(message.label, ()):
                if (record.client_id, record.client_seq) == (message.client_id, message.client_seq):
                    found = record.stream_seq
        if found is None:
            return None
        known_message, _ = Lookup(self._store).headers(message.label, found)
        if known_message is None:
            return None
        if not known_message.ciphertext:  # pruned: the hash of the ciphertext stands for it
            known_message = replace(known_message, ciphertext=message.ciphertext, sig=message.sig)
        return found if known_message == message else None

    def policy_of(self, label: bytes, hub_ts: int) -> str:
        """The authority policy of a label, as far as the realm defines it."""
        stream, _ = self.streams.find(label, hub_ts) or (None, 0)
        found = self.authority(label, stream, hub_ts)
        return found.policy if found else str(admin.AuthorityPolicy.UNSPECIFIED)

    def check_capability(self, token: CapToken, hub_ts: int) -> None:
        """Raise if a logged capability, or the key it is for, is revoked."""
        check_revoked(revocable(token), self.realm, hub_ts)
        check_operator(token.subject_pk, self.realm, hub_ts)
        check_client(token.subject_pk, self.realm, hub_ts)

    # Changing. Every change belongs to the open group.

    def place(self, message: Msg, encoded: bytes, hub_ts: int, found: tuple[bytes, int] | None) -> Placed:
        """Give an admitted message the next place of its label. `found` is what `streams` found for the label."""
        group, label, leaf = self.open, message.label, message.leaf_hash()
        tree = self.tree(label)
        if label not in group.old_trees:
            group.old_trees[label] = tree.copy()
        new_nodes = tree.append(leaf)
        placed = Placed(message, encoded, tree.size, leaf, tree.root(), new_nodes, hub_ts)
        group.placed.append(placed)
        if found and self._rules.profile.epoch_sec:  # stored with the entry: they are known for ever
            group.epochs.setdefault(label, found)
        key = message.client_id + label
        self._set(self._cursors, key, (message.client_seq, message.prev_ack))
        if message.client_seq == 1:
            self._set(self._first_ts, key, hub_ts)
        if found and self._rules.realm_id:
            self._apply_admin_event(placed, self._rules.realm_id, found[0])
        return placed

    def set_bucket(self, auth_ref: bytes, label: bytes, bucket: Bucket) -> None:
        self._set(self._buckets, auth_ref + label, bucket)
        self.open.buckets[auth_ref, label] = bucket

    def apply_control_event(self, event: control_stream.Event, placed: Placed) -> None:
        """Apply a logged event of the control stream, new or replayed."""
        at = (placed.message.label, placed.stream_seq)
        effects = control_stream.effects(event, placed.hub_ts)
        if effects.capability is not None:
            auth_ref = effects.capability.auth_ref()
            self._set(self._caps, auth_ref, Cap.of(effects.capability, placed.hub_ts, self._rules.limits))
            self.open.caps[auth_ref] = (*at, placed.hub_ts, effects.capability.encode())
        for stream in effects.streams:
            self._add_stream(stream, at)
        if effects.revocation is not None:
            self._add_admin_event(effects.revocation)
            self.open.admin_events[at] = effects.revocation
        if effects.limits is not None:
            in_force = self._rules.limits_in_force
            self.open.old_limits = self.open.old_limits or in_force.registry
            self.open.limits = in_force.registry = in_force.registry.lowered(effects.limits, placed.hub_ts)
        if effects.retention is not None:
            self._set(self._retention, b"", self.retention.after(effects.retention))
            self.open.retention = self.retention
        if effects.epoch_end is not None:
            self.open.ends |= {one.label: one.size for one in effects.epoch_end.labels}

    def _add_stream(self, stream: bytes, at: tuple[bytes, int]) -> None:
        if self.streams.add(stream):
            self.open.new_streams.append(stream)
            self.open.streams[stream] = at

    def _apply_admin_event(self, placed: Placed, realm_id: bytes, stream: bytes) -> None:
        """Apply an event of an admin stream. It takes effect with the next message."""
        message = placed.message
        if stream not in self._rules.admin_streams:
            return
        event = admin.event_of(realm_id, stream, message, Limits())
        if event:
            self._add_admin_event(event)
            self.open.admin_events[message.label, placed.stream_seq] = event

    def _add_admin_event(self, event: admin.Event) -> None:
        self._set(*self.realm.folded(event, self.hub_ts))
        if isinstance(event, Authority) and not self._rules.profile.epoch_sec:
            # Without epochs, clients may write to a label whose stream is not registered.
            self._set(self._governed, naming.label(self._rules.routing_key, event.stream_id, 0), event.stream_id)

    def _set(self, cache: dict[bytes, Any], key: bytes, value: object) -> None:
        self.open.old_values.append((cache, key, cache.get(key)))
        cache[key] = value

    # Replaying.

    def replay(self) -> int:
        """Apply the journal. Returns the number of entries."""
        count = 0
        for number, entries in self._store.replay():
            for entry in entries:
                self._replay_entry(entry)
            self.close()
            group = self.take()
            assert group is not None, "a replayed group is signed"
            self._store.pending.add_group(group, number)
            self.keep()
            count += len(entries)
        return count

    def _replay_entry(self, entry: LogEntry) -> None:
        """Apply an acknowledged entry. It is not checked again, but must match the tree."""
        message, receipt = entry.open()
        self.hub_ts = max(self.hub_ts, receipt.hub_ts)
        cap = self.cap(message.auth_ref) if message.auth_ref else None
        rate = cap.rate_under(self._rules.limits_at(receipt.hub_ts)) if cap else None
        if rate and message.auth_ref:
            before = self.bucket(message.auth_ref, message.label) or Bucket.full(rate, receipt.hub_ts)
            self.set_bucket(message.auth_ref, message.label, before.take(rate, receipt.hub_ts) or before)
        needs_stream = self._rules.profile.epoch_sec or self._rules.realm_id
        found = self.streams.find(message.label, receipt.hub_ts) if needs_stream else None
        placed = self.place(message, entry.msg, receipt.hub_ts, found)
        if placed.stream_seq != receipt.stream_seq or placed.mmr_root != receipt.mmr_root:
            raise Malformed(
                "journal", f"entry {receipt.stream_seq} of {entry.label.hex()[:16]}… does not match the log"
            )
        self.open.seal(placed, entry.receipt)
        epoch = self._rules.profile.epoch(receipt.hub_ts)
        control = naming.label(self._rules.routing_key, self._rules.control_stream, epoch)
        if message.label == control:  # not by its client: a hub that was recovered may have another control key
            # A logged event is valid even if it exceeds the current limits.
            event = control_stream.event_of(self._rules.hub_id, message, Limits())
            self.apply_control_event(event, placed)

    # Groups.

    def undurable(self) -> list[Group]:
        """Groups that are decided but not durable, newest first."""
        return [self.open, *reversed(self.decided), *([self._writing] if self._writing else [])]

    def close(self) -> Group:
        """Close the open group, and open the next. It is written once it and all groups before it are signed."""
        group, self.open = self.open, Group(hub_ts=self.hub_ts)
        self.decided.append(group)
        return group

    def take(self) -> Group | None:
        """The oldest groups, joined, for commit; None if the oldest is not signed yet. `keep` or `undo` must follow."""
        assert self._writing is None, "one group is written at a time"
        while self.decided and len(self.decided[0].records) == len(self.decided[0].placed):
            group = self.decided.popleft()
            if self._writing:
                self._writing.join(group)
            else:
                self._writing = group
        return self._writing

    def keep(self) -> None:
        """Mark the group that was taken as durable."""
        self._writing = None

    def undo(self) -> list[Item]:
        """Undo the group that was taken and everything decided since. Returns the items of all, in order.

        All of them must be rejected, also those that were rejected before: that may depend on what was undone.
        """
        groups = self.undurable()
        for group in groups:
            self._revert(group)
        self._writing = None
        self.decided.clear()
        self.open = Group(hub_ts=self.hub_ts)
        return [item for group in reversed(groups) for item, _ in group.outcomes]

    def withdraw(self, group: Group) -> list[Item]:
        """Undo a group that could not be signed, and everything decided since. Returns the items of all, in order.

        Nothing happens if the group was undone before. Groups before it are signed, and stay.
        """
        at = next((at for at, one in enumerate(self.decided) if one is group), None)
        if at is None:
            return []
        groups = [self.open, *(self.decided.pop() for _ in range(len(self.decided) - at))]
        for one in groups:
            self._revert(one)
        self.open = Group(hub_ts=self.hub_ts)
        return [item for one in reversed(groups) for item, _ in one.outcomes]

    def _revert(self, group: Group) -> None:
        for cache, key, value in reversed(group.old_values):
            if value is None:
                cache.pop(key, None)
            else:
                cache[key] = value
        self._trees |= group.old_trees
        if group.old_limits:
            self._rules.limits_in_force.registry = group.old_limits
        for stream in reversed(group.new_streams):
            self.streams.drop(stream)
        self.hub_ts = group.hub_ts

    def forget(self) -> None:
        """Evict values that the index has, if the caches are too large."""
        tails = self._store.tails()
        caches: tuple[dict[bytes, Any], ...] = (self._trees, self._cursors, self._buckets, self._caps, self._first_ts)
        if max(len(cache) for cache in caches) <= MAX_CACHED:
            return
        groups: list[CommitGroup] = [*self.undurable(), *tails]
        messages = [placed.message for group in self.undurable() for placed in group.placed]
        places = [(one.label, one.client_id) for one in messages]
        places += [(record.label, record.client_id) for tail in tails for record in tail.records]
        labels = {label for label, _ in places}
        clients = {client_id + label for label, client_id in places}
        _keep_only(self._trees, labels)
        _keep_only(self._cursors, clients)
        _keep_only(self._first_ts, clients)
        _keep_only(self._buckets, {a + label for group in groups for a, label in group.buckets})
        _keep_only(self._caps, {auth_ref for group in groups for auth_ref in group.caps})


def _keep_only(cache: dict[bytes, Any], keys: Iterable[bytes]) -> None:
    """Change the dictionary in place: undo entries refer to it."""
    kept = {key: cache[key] for key in keys if key in cache}
    cache.clear()
    cache.update(kept)


class StreamRegistry:
    """The registered streams and their labels. Owned by the loop's thread. Spec §2, §12.

    A label is a hash, so its stream cannot be read from it. The labels of the current epochs are derived from the
    registered streams, a few at a time, and those of the next epoch in advance, so that no request waits for all of
    them. A label with entries has a row in the index for ever.
    """

    def __init__(self, rules: Rules, store: Store) -> None:
        self._store = store
        self._ahead = EPOCHS_AHEAD if rules.profile.epoch_sec else 0
        # The labels of admin streams are known before they are registered, because rules name them.
        self._fixed = {rules.control_stream} | rules.admin_streams
        self._registered = {rules.control_stream}
        self._read_upto: bytes | None = b""  # last stream read from the index; None when all are read
        self._labels = LabelMap(rules.routing_key, rules.profile, rules.limits.max_epoch_skew_sec)
        for stream in sorted(self._fixed):
            self._labels.add(stream)

    @property
    def derived(self) -> int:
        """The number of labels derived so far."""
        return self._labels.derived

    def add(self, stream: bytes) -> bool:
        """Register a stream. Returns False if it was already registered."""
        if stream in self._registered or (self._read_upto is not None and self._is_in_index(stream)):
            return False
        self._add(stream)
        return True

    def drop(self, stream: bytes) -> None:
        """Remove a stream whose registration did not become durable."""
        self._registered.discard(stream)
        if stream not in self._fixed:
            self._labels.drop(stream)

    def find(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label, in an epoch that is valid at `hub_ts`."""
        found = self._labels.recent(label, hub_ts)
        if found is None and label not in self._labels.unknown_labels:
            found = self._search(label, hub_ts)
        return found

    def prepare(self, hub_ts: int, count: int = LABELS_PER_TURN) -> bool:
        """Do one more step of preparation. Returns whether more may be left."""
        if self._read_upto is not None:
            self._read(count)
            return True
        return not self._labels.prepare(hub_ts, self._ahead, count)

    def _search(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        complete = self._read_upto is None and self._labels.is_complete(hub_ts)
        found = self._labels.known(label, hub_ts)
        if found is None and not complete:
            found = self._written(label, hub_ts)
        if found is None:
            found = self._labels.find(label, hub_ts)
            while found is None and self._read_upto is not None:
                self._read(LABELS_PER_TURN)
                found = self._labels.find(label, hub_ts)
        return found

    def _written(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """The stream and epoch that the index has for a label, if the epoch is current."""
        with self._store.index.read() as rows:
            row = rows.stream_and_epoch(label)
        return row if row and self._labels.matches(label, *row, hub_ts) else None

    def _add(self, stream: bytes) -> None:
        self._registered.add(stream)
        if stream not in self._fixed:
            self._labels.add(stream)

    def _is_in_index(self, stream: bytes) -> bool:
        with self._store.index.read() as rows:
            return rows.stream(stream) is not None

    def _read(self, count: int) -> None:
        """Read more streams of the index. Streams added since the start may be among them."""
        assert self._read_upto is not None
        with self._store.index.read() as rows:
            streams = list(islice(rows.streams(self._read_upto), count))
        for stream in streams:
            if stream not in self._registered:
                self._add(stream)
        self._read_upto = streams[-1] if streams else None


Interval = tuple[int, int | None]  # start, end (exclusive); None means no end
Changed = tuple[dict[bytes, tuple[Interval, ...]] | dict[bytes, tuple[Authority, ...]], bytes, object]


class Realm:
    """Revocations of the realm and of the hub's operator, and which hub is primary for a stream. spec-2 §2.4, §4.3.

    It is in memory because every message needs it; it has at most one row per record. Records may come in any order:
    revoked times are the union of all intervals, and among several authorities the rank decides. The values of both
    maps are immutable, so that a change can be undone by restoring the old value.
    """

    def __init__(self) -> None:
        self._revoked: dict[bytes, tuple[Interval, ...]] = {}
        self._revoked_by_operator: dict[bytes, tuple[Interval, ...]] = {}
        self._authorities: dict[bytes, tuple[Authority, ...]] = {}

    def revoker(self, kind: RevocationKind, target: bytes, hub_ts: int) -> Revoker | None:
        """The party that revoked the target, if a revocation applies at that time."""
        if not self._revoked and not self._revoked_by_operator:  # for every message, so without a property
            return None
        key = kind.encode() + target
        if _covers(self._revoked_by_operator.get(key, ()), hub_ts):
            return Revoker.OPERATOR
        return Revoker.REALM if _covers(self._revoked.get(key, ()), hub_ts) else None

    def authority(self, stream_id: bytes, hub_ts: int) -> Authority | None:
        """The effective record of a stream at that time."""
        records = self._authorities.get(stream_id)
        return admin.active(records, hub_ts) if records else None

    @property
    def revocations(self) -> int:
        """The number of keys and capabilities that were ever revoked."""
        return len(self._revoked) + len(self._revoked_by_operator)

    def multi_primary(self, hub_ts: int) -> Iterator[bytes]:
        """The streams with several primary hubs at that time."""
        for stream_id in self._authorities:
            record = self.authority(stream_id, hub_ts)
            if record and record.policy == AuthorityPolicy.MULTI_PRIMARY:
                yield stream_id

    def folded(self, event: admin.Event, hub_ts: int) -> Changed:
        """The map that a record changes, with key and new value. `hub_ts` is the hub's time."""
        if isinstance(event, Revocation):
            key = event.kind.encode() + event.target
            known = self._revoked_by_operator if isinstance(event, OperatorRevocation) else self._revoked
            return known, key, _united(known.get(key, ()), (event.ts, event.end))
        # Hub time never decreases, so an expired record cannot become active again.
        valid = {record for record in self._authorities.get(event.stream_id, ()) if record.end > hub_ts}
        return self._authorities, event.stream_id, tuple(sorted(valid | {event}, key=Authority.rank))


def _covers(intervals: tuple[Interval, ...], hub_ts: int) -> bool:
    return any(start <= hub_ts and (end is None or hub_ts < end) for start, end in intervals)


def _united(intervals: tuple[Interval, ...], added: Interval) -> tuple[Interval, ...]:
    """The union with `added`, as the fewest intervals, sorted by start."""
    start, end = added
    apart = []
    for one in intervals:
        one_start, one_end = one
        if (end is not None and end < one_start) or (one_end is not None and one_end < start):
            apart.append(one)
        else:
            start = min(start, one_start)
            end = None if end is None or one_end is None else max(end, one_end)
    return tuple(sorted([*apart, (start, end)], key=lambda interval: interval[0]))
