"""The state of admission in memory: cursors, trees, capabilities, buckets, realm. Owned by the loop's thread.

Everything here is also in the journal or the index. Missing values are read from there; values that changed since the
last catch-up are never evicted. Decisions are made before they are durable, so every change can be undone.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from veen.core import Bucket, CapToken, Malformed, Mmr, Msg, admin, naming
from veen.core.admin import Authority, RevocationKind
from veen.hub.admission_rules import Cap, Rules
from veen.hub.label_epochs import StreamRegistry
from veen.hub.realm import Realm
from veen.storage import frame
from veen.storage.accepted_entry import CommitGroup
from veen.storage.chunks import check_open_chunks
from veen.storage.lookup import Lookup
from veen.storage.store import Store
from veen.storage.tree_nodes import check_peaks

MAX_CACHED = 65_536


class _Changes:
    """The changes of one group, with the old values for an undo."""

    __slots__ = ("batch", "before", "hub_ts", "streams", "trees")

    def __init__(self, hub_ts: int) -> None:
        self.batch = CommitGroup()
        self.before: list[tuple[dict[bytes, Any], bytes, object]] = []
        self.trees: dict[bytes, Mmr] = {}
        self.streams: list[bytes] = []
        self.hub_ts = hub_ts


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
        with store.index.read() as rows:
            self.hub_ts = rows.number("hub_ts")
            events = list(rows.admin_events())
        self._open = _Changes(self.hub_ts)
        for event in events:
            self.add_admin_event(event)
        self._open.before.clear()
        self._committing: deque[_Changes] = deque()
        self.streams = StreamRegistry(rules, store)

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

    def last_seq(self, label: bytes) -> int:
        return self.tree(label).size

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
                found = self._caps[auth_ref] = Cap.of(CapToken.decode(row[3]), row[2], self._rules.limits)
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
                entry = Lookup(self._store).entry(label, at) if at else None
                message, receipt = entry.open() if entry else (None, None)
                known = rows.client_cursor(label, client_id) is not None
                if known != (message is not None and (message.client_id, message.client_seq) == (client_id, 1)):
                    raise Malformed("index", "the first entry of a client is missing")
            if receipt:
                found = self._first_ts[key] = receipt.hub_ts
        return found

    def revoked(self, kind: RevocationKind, target: bytes, hub_ts: int) -> bool:
        return self.realm.revoked(kind, target, hub_ts)

    def authority(self, label: bytes, stream: bytes | None, hub_ts: int) -> Authority | None:
        stream = stream or self._governed.get(label)
        return self.realm.authority(stream, hub_ts) if stream else None

    def stream_of(self, label: bytes, hub_ts: int) -> bytes | None:
        found = self.streams.find(label, hub_ts)
        return found[0] if found else None

    def accepted_at(self, message: Msg) -> int | None:
        wanted = (message.client_id, message.label, message.client_seq)
        for batch in self.undurable():
            for record in batch.records:
                if (record.client_id, record.label, record.client_seq) == wanted:
                    same = frame.read(record.frame)[0].msg == message.encode()
                    return record.stream_seq if same else None
        with self._store.index.read() as rows:
            found = rows.stream_seq_of(message.label, message.client_id, message.client_seq)
        for tail in self._store.tails():
            for record in tail.labels.get(message.label, ()):
                if (record.client_id, record.client_seq) == (message.client_id, message.client_seq):
                    found = record.stream_seq
        if found is None:
            return None
        entry = Lookup(self._store).entry(message.label, found)
        return found if entry is not None and entry.msg == message.encode() else None

    # Changing.

    def append(self, label: bytes, leaf_hash: bytes) -> tuple[Mmr, list[bytes]]:
        tree = self.tree(label)
        if label not in self._open.trees:
            self._open.trees[label] = tree.copy()
        return tree, tree.append(leaf_hash)

    def set_cursor(self, label: bytes, client_id: bytes, cursor: tuple[int, int]) -> None:
        self._set(self._cursors, client_id + label, cursor)

    def set_first_ts(self, label: bytes, client_id: bytes, hub_ts: int) -> None:
        self._set(self._first_ts, client_id + label, hub_ts)

    def set_bucket(self, auth_ref: bytes, label: bytes, bucket: Bucket) -> None:
        self._set(self._buckets, auth_ref + label, bucket)

    def add_cap(self, auth_ref: bytes, cap: Cap) -> None:
        self._set(self._caps, auth_ref, cap)

    def add_admin_event(self, event: admin.Event) -> None:
        """Apply an event of the realm's admin streams."""
        self._set(*self.realm.folded(event, self.hub_ts))
        if isinstance(event, Authority) and not self._rules.profile.epoch_sec:
            # Without epochs, clients may write to a label whose stream is not registered.
            self._set(self._governed, naming.label(self._rules.routing_key, event.stream_id, 0), event.stream_id)

    def add_stream(self, stream: bytes) -> bool:
        """Returns False if it was already registered."""
        if not self.streams.add(stream):
            return False
        self._open.streams.append(stream)
        return True

    def advance(self, hub_ts: int) -> None:
        self.hub_ts = hub_ts

    def _set(self, cache: dict[bytes, Any], key: bytes, value: object) -> None:
        self._open.before.append((cache, key, cache.get(key)))
        cache[key] = value

    # Groups.

    @property
    def batch(self) -> CommitGroup:
        """The open group."""
        return self._open.batch

    def undurable(self) -> list[CommitGroup]:
        """Groups that are decided but not durable, newest first."""
        return [self._open.batch, *(changes.batch for changes in reversed(self._committing))]

    def take(self) -> CommitGroup:
        """Close the open group for commit, and open the next."""
        taken = self._open
        self._committing.append(taken)
        self._open = _Changes(self.hub_ts)
        return taken.batch

    def keep(self) -> None:
        """Mark the oldest closed group as durable."""
        self._committing.popleft()

    def undo(self) -> None:
        """Undo all groups that are not durable, and everything decided since."""
        self._revert(self._open)
        while self._committing:
            self._revert(self._committing.pop())
        self._open = _Changes(self.hub_ts)

    def _revert(self, changes: _Changes) -> None:
        for cache, key, value in reversed(changes.before):
            if value is None:
                cache.pop(key, None)
            else:
                cache[key] = value
        self._trees |= changes.trees
        for stream in reversed(changes.streams):
            self.streams.drop(stream)
        self.hub_ts = changes.hub_ts

    def forget(self) -> None:
        """Evict values that the index has, if the caches are too large."""
        tails = self._store.tails()
        caches: tuple[dict[bytes, Any], ...] = (self._trees, self._cursors, self._buckets, self._caps, self._first_ts)
        if max(len(cache) for cache in caches) <= MAX_CACHED:
            return
        batches = [*self.undurable(), *(tail.batch for tail in tails)]
        labels = {record.label for batch in batches for record in batch.records}
        clients = {record.client_id + record.label for batch in batches for record in batch.records}
        _keep_only(self._trees, labels)
        _keep_only(self._cursors, clients)
        _keep_only(self._first_ts, clients)
        _keep_only(self._buckets, {a + label for batch in batches for a, label in batch.buckets})
        _keep_only(self._caps, {auth_ref for batch in batches for auth_ref in batch.caps})


def _keep_only(cache: dict[bytes, Any], keys: Iterable[bytes]) -> None:
    """Change the dictionary in place: undo entries refer to it."""
    kept = {key: cache[key] for key in keys if key in cache}
    cache.clear()
    cache.update(kept)
