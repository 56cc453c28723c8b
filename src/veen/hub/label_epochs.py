"""Find the stream and epoch of a label: for admission, and for checkpoints, which name both sides of a rotation.

A label is a hash, so its stream cannot be read from it. The labels of the current epochs are derived from the
registered streams, a few at a time, and those of the next epoch in advance, so that no request waits for all of them.
A label with entries has a row in the index for ever. Spec §2, §4.4.1, §12.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from veen.core import Malformed, naming
from veen.hub.admission_rules import Rules
from veen.storage.label_map import LabelMap
from veen.storage.store import Store

# Streams read or labels derived in one turn of the loop: one or two milliseconds.
LABELS_PER_TURN = 1024
BUSY_PAUSE_S = 0.005
IDLE_PAUSE_S = 0.5
# Prepare the labels of this many epochs in advance.
EPOCHS_AHEAD = 1


class StreamRegistry:
    """The registered streams and their labels. Owned by the loop's thread."""

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


class BackgroundSteps:
    """Runs work in small steps on the loop, with pauses for other tasks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], bool], on_broken: Callable[[BaseException], None]
    ) -> None:
        """`work` returns whether more may be left. If it raises, `on_broken` is called and the steps end."""
        self._loop = loop
        self._work = work
        self._on_broken = on_broken
        self._timer: asyncio.Handle = loop.call_soon(self._turn)

    def stop(self) -> None:
        self._timer.cancel()

    def _turn(self) -> None:
        try:
            more = self._work()
        except Exception as damage:  # noqa: BLE001  the index is damaged
            self._on_broken(damage)
            return
        self._timer = self._loop.call_later(BUSY_PAUSE_S if more else IDLE_PAUSE_S, self._turn)


class LabelRotation:
    """The epochs that a checkpoint names. Thread-safe."""

    def __init__(self, rules: Rules, store: Store) -> None:
        self._rules = rules
        self._store = store

    def rotation(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        """`(epoch, label_prev)` of a label with an entry at `hub_ts`.

        With epochs every label belongs to one epoch. `label_prev` is the label of its stream one epoch earlier.
        """
        if not self._rules.profile.epoch_sec:
            return 0, label
        found = self._stream_and_epoch(label)
        if found is None:  # accepted under other limits
            return self._rules.profile.epoch(hub_ts), label
        stream, epoch = found
        return epoch, self._label(stream, epoch - 1) if epoch else label

    def _stream_and_epoch(self, label: bytes) -> tuple[bytes, int] | None:
        for tail in self._store.tails():
            if label in tail.epochs:
                return tail.epochs[label]
        with self._store.index.read() as rows:
            found = rows.stream_and_epoch(label)
            if found and self._label(*found) != label:
                raise Malformed("index", f"{label.hex()} does not match the stream of its row")
        return found

    def _label(self, stream: bytes, epoch: int) -> bytes:
        return naming.label(self._rules.routing_key, stream, epoch)
