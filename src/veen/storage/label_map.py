"""Map labels to streams and epochs, for the epochs around a time. Spec §2, §12.

A label is a hash, so it can only be looked up among labels that were derived before. They are derived in small steps. A
look-up before that is done derives as many labels as it needs; no label is derived twice.
"""

from itertools import islice

from veen.core import Profile
from veen.core.hashing import h, tag_prefix, u64be

MAX_UNKNOWN_LABELS = 65_536
_TAG = tag_prefix("veen/label")


class _Epoch:
    """The labels of one epoch that are derived so far."""

    __slots__ = ("done", "labels", "suffix")

    def __init__(self, epoch: int) -> None:
        self.suffix = u64be(epoch)
        self.labels: dict[bytes, bytes] = {}
        self.done = 0  # streams, from the first


class LabelMap:
    """Finds the stream and epoch of a label. Not thread-safe."""

    def __init__(self, routing_key: bytes, profile: Profile, max_epoch_skew_sec: int) -> None:
        self._prefix = _TAG + routing_key
        self._profile = profile
        self._skew_sec = max_epoch_skew_sec
        self._streams: list[bytes] = []
        self._at = -1
        self._window = range(0)
        self._epochs: dict[int, _Epoch] = {}
        self._recent: dict[bytes, tuple[bytes, int]] = {}  # recent results within the window
        self.unknown_labels: set[bytes] = set()  # recent look-ups without result
        self._past: list[dict[bytes, bytes]] = []
        self.derived = 0  # number of labels derived so far

    def add(self, stream: bytes) -> None:
        """Add a new stream."""
        self._streams.append(stream)
        self.unknown_labels.clear()

    def drop(self, stream: bytes) -> None:
        """Remove a stream that was among the last added."""
        at = len(self._streams) - 1
        while self._streams[at] != stream:
            at -= 1
        del self._streams[at]
        for epoch in self._epochs.values():
            if epoch.done > at:
                epoch.done -= 1
                del epoch.labels[self._label(stream, epoch.suffix)]
        self._recent = {}

    def recent(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label found before: the fast path of most look-ups."""
        if hub_ts != self._at:
            self._move(hub_ts)
        return self._recent.get(label)

    def known(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label that is already derived."""
        self._move(hub_ts)
        for number in self._window:
            epoch = self._epochs.get(number)
            stream = epoch.labels.get(label) if epoch else None
            if stream is not None:
                return self._found(label, stream, number)
        return None

    def matches(self, label: bytes, stream: bytes, epoch: int, hub_ts: int) -> bool:
        """Whether the label is that of the stream and epoch, and the epoch is near `hub_ts`."""
        self._move(hub_ts)
        matches = epoch in self._window and self._label(stream, u64be(epoch)) == label
        if matches:
            self._found(label, stream, epoch)
        return matches

    def find(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label in the epochs around a time. Derives labels until it is found."""
        found = self.known(label, hub_ts)
        for number in self._by_need() if found is None else ():
            epoch = self._epoch(number)
            if self._derive(epoch, len(self._streams), label):
                return self._found(label, epoch.labels[label], number)
        if found is None:
            self._missed(label)
        return found

    def is_complete(self, hub_ts: int) -> bool:
        """Whether every label around `hub_ts` is derived."""
        self._move(hub_ts)
        return all(n in self._epochs and self._epochs[n].done == len(self._streams) for n in self._window)

    def prepare(self, hub_ts: int, ahead: int, budget: int) -> int:
        """Derive labels of the epochs around `hub_ts` and of `ahead` later ones, and free those of past epochs.

        Handles at most `budget` labels. Returns the unused part of that budget.
        """
        self._move(hub_ts)
        wanted = range(self._window.start, self._window.stop + ahead)
        for number in [number for number in self._epochs if number not in wanted]:
            self._past.append(self._epochs.pop(number).labels)
        while self._past and budget:
            budget -= _forget(self._past[-1], budget)
            if not self._past[-1]:
                self._past.pop()
        for number in (*self._by_need(), *wanted[len(self._window) :]):
            epoch = self._epoch(number)
            before = epoch.done
            self._derive(epoch, before + budget)
            budget -= epoch.done - before
        return budget

    def forget(self) -> None:
        """Free every epoch outside the window at once."""
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if number in self._window}

    def _move(self, hub_ts: int) -> None:
        if hub_ts != self._at:
            self._at = hub_ts
            window = self._profile.epochs_around(hub_ts, self._skew_sec)
            if window != self._window:
                self._window = window
                self._recent = {}
                self.unknown_labels.clear()

    def _by_need(self) -> list[int]:
        """The epochs of the window, nearest to the current one first: most look-ups are for that one."""
        now = self._profile.epoch(self._at)
        return sorted(self._window, key=lambda number: abs(number - now))

    def _found(self, label: bytes, stream: bytes, epoch: int) -> tuple[bytes, int]:
        found = self._recent[label] = stream, epoch
        return found

    def _missed(self, label: bytes) -> None:
        """Remember a look-up without result. Bounded, because any client can send any label."""
        if len(self.unknown_labels) >= MAX_UNKNOWN_LABELS:
            self.unknown_labels.clear()
        self.unknown_labels.add(label)

    def _epoch(self, number: int) -> _Epoch:
        found = self._epochs.get(number)
        if found is None:
            found = self._epochs[number] = _Epoch(number)
        return found

    def _derive(self, epoch: _Epoch, upto: int, until: bytes | None = None) -> bool:
        """Derive labels of the streams before `upto`, stopping at the label `until`. Returns whether it was found."""
        done, labels, prefix, suffix = epoch.done, epoch.labels, self._prefix, epoch.suffix
        label = None
        for stream in islice(self._streams, done, upto):
            label = h(prefix + stream + suffix)
            labels[label] = stream
            done += 1
            if label == until:
                break
        self.derived += done - epoch.done
        epoch.done = done
        return label is not None and label == until

    def _label(self, stream: bytes, suffix: bytes) -> bytes:
        self.derived += 1
        return h(self._prefix + stream + suffix)


def _forget(labels: dict[bytes, bytes], budget: int) -> int:
    """Free at most `budget` labels: freeing a large dictionary at once blocks the event loop."""
    count = min(budget, len(labels))
    for _ in range(count):
        labels.popitem()
    return count
