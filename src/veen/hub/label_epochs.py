"""Which stream and epoch a label belongs to: for admission, and for checkpoints, which name both sides of a rotation.

A label is a hash and tells nothing of its stream, so the labels of the epochs around now are derived from the streams
that are registered: a few at a time, and those of the next epoch before it comes, so that nobody waits for all of them.
A label that was written to keeps a row in the index, however long ago its epoch was. Spec §2, §4.4.1, §12.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from veen.core import Malformed, naming
from veen.hub.admission_rules import Rules
from veen.storage.label_map import LabelMap
from veen.storage.store import Store

# So many streams are read or labels derived in one turn of the loop: a millisecond or two.
SLICE = 1024
PAUSE_S = 0.005
REST_S = 0.5
# The epoch after those that are taken now is made ready while they are.
AHEAD = 1


class StreamBook:
    """The registered streams, and the labels they explain. Owned by the loop's thread."""

    def __init__(self, rules: Rules, store: Store) -> None:
        self._store = store
        self._ahead = AHEAD if rules.profile.epoch_sec else 0
        # The admin streams are refused by name before they are told of.
        self._fixed = {rules.control_stream} | rules.admin_streams
        self._registered = {rules.control_stream}
        self._read_upto: bytes | None = b""  # of the streams in the index; None where all of them are here
        self._labels = LabelMap(rules.routing_key, rules.profile, rules.limits.max_epoch_skew_sec)
        for stream in sorted(self._fixed):
            self._labels.add(stream)

    @property
    def derived(self) -> int:
        """How many labels it took so far."""
        return self._labels.derived

    def add(self, stream: bytes) -> bool:
        """False where it was registered already."""
        if stream in self._registered or (self._read_upto is not None and self._is_in_index(stream)):
            return False
        self._take(stream)
        return True

    def drop(self, stream: bytes) -> None:
        """Take back one that did not become durable."""
        self._registered.discard(stream)
        if stream not in self._fixed:
            self._labels.drop(stream)

    def find(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label, in an epoch that is valid at `hub_ts`."""
        found = self._labels.recent(label, hub_ts)
        if found is None and label not in self._labels.unknown_labels:
            found = self._search(label, hub_ts)
        return found

    def prepare(self, hub_ts: int, most: int = SLICE) -> bool:
        """One more slice of what a look-up may ask for. Whether there may be more to do."""
        if self._read_upto is not None:
            self._read(most)
            return True
        return not self._labels.prepare(hub_ts, self._ahead, most)

    def _search(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        complete = self._read_upto is None and self._labels.is_complete(hub_ts)
        found = self._labels.known(label, hub_ts)
        if found is None and not complete:
            found = self._written(label, hub_ts)
        if found is None:
            found = self._labels.find(label, hub_ts)
            while found is None and self._read_upto is not None:
                self._read(SLICE)
                found = self._labels.find(label, hub_ts)
        return found

    def _written(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """What the index says of a label, where its epoch is one of those around now."""
        with self._store.index.read() as rows:
            row = rows.stream_and_epoch(label)
        return row if row and self._labels.matches(label, *row, hub_ts) else None

    def _take(self, stream: bytes) -> None:
        self._registered.add(stream)
        if stream not in self._fixed:
            self._labels.add(stream)

    def _is_in_index(self, stream: bytes) -> bool:
        with self._store.index.read() as rows:
            return rows.stream(stream) is not None

    def _read(self, most: int) -> None:
        """Some more streams of the index; what was added since the start may be among them by now."""
        assert self._read_upto is not None
        with self._store.index.read() as rows:
            streams = list(islice(rows.streams(self._read_upto), most))
        for stream in streams:
            if stream not in self._registered:
                self._take(stream)
        self._read_upto = streams[-1] if streams else None


class Ahead:
    """Slices of a work, each in a turn of the loop, with room for others in between."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], bool], on_broken: Callable[[BaseException], None]
    ) -> None:
        """`work` says whether there may be more to do; where it fails, nothing more can be promised."""
        self._loop = loop
        self._work = work
        self._on_broken = on_broken
        self._timer: asyncio.Handle = loop.call_soon(self._turn)

    def stop(self) -> None:
        self._timer.cancel()

    def _turn(self) -> None:
        try:
            more = self._work()
        except Exception as damage:  # noqa: BLE001  the index is not what was written
            self._on_broken(damage)
            return
        self._timer = self._loop.call_later(PAUSE_S if more else REST_S, self._turn)


class LabelBook:
    """What a checkpoint says of epochs. Safe on any thread."""

    def __init__(self, rules: Rules, store: Store) -> None:
        self._rules = rules
        self._store = store

    def rotation(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        """`(epoch, label_prev)` of a label that was written to at `hub_ts`.

        With epochs every label is of one epoch, and `label_prev` is the stream's label of the epoch before it.
        """
        if not self._rules.profile.epoch_sec:
            return 0, label
        found = self._explained(label)
        if found is None:  # taken under limits that were others
            return self._rules.profile.epoch(hub_ts), label
        stream, epoch = found
        return epoch, self._label(stream, epoch - 1) if epoch else label

    def _explained(self, label: bytes) -> tuple[bytes, int] | None:
        for tail in self._store.tails():
            if label in tail.batch.labels:
                return tail.batch.labels[label]
        with self._store.index.read() as rows:
            found = rows.stream_and_epoch(label)
            if found and self._label(*found) != label:
                raise Malformed("index", f"{label.hex()} is not of the stream it names")
        return found

    def _label(self, stream: bytes, epoch: int) -> bytes:
        return naming.label(self._rules.routing_key, stream, epoch)
