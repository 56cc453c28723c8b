"""Labels explained by streams: which stream and epoch a label is of, for the epochs around a time. Spec §2, §12.

A label is a hash, so it can only be found again among labels that were derived. They are derived bit by bit: whoever
looks one up before that is done pays for as many streams as it takes to find it, and for each stream and epoch once.
"""

from itertools import islice

from veen.core import Profile
from veen.core.hashing import h, tag_prefix, u64be

MAX_UNEXPLAINED = 65_536
_TAG = tag_prefix("veen/label")


class _Epoch:
    """The labels of one epoch, as far as they are derived."""

    __slots__ = ("done", "labels", "suffix")

    def __init__(self, epoch: int) -> None:
        self.suffix = u64be(epoch)
        self.labels: dict[bytes, bytes] = {}
        self.done = 0  # streams, from the first


class LabelMap:
    """What explains a label. One thread at a time."""

    def __init__(self, routing_key: bytes, profile: Profile, max_epoch_skew_sec: int) -> None:
        self._prefix = _TAG + routing_key
        self._profile = profile
        self._skew_sec = max_epoch_skew_sec
        self._streams: list[bytes] = []
        self._at = -1
        self._window = range(0)
        self._epochs: dict[int, _Epoch] = {}
        self._recent: dict[bytes, tuple[bytes, int]] = {}  # found lately, and of the window
        self.unexplained: set[bytes] = set()  # asked for lately, and of no stream there is
        self._past: list[dict[bytes, bytes]] = []
        self.derived = 0  # labels, ever

    def add(self, stream: bytes) -> None:
        """One more stream, which must be new."""
        self._streams.append(stream)
        self.unexplained.clear()

    def drop(self, stream: bytes) -> None:
        """Take back a stream that was added, one of the last."""
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
        """`(stream, epoch)` of a label that was found before: the way of most look-ups."""
        if hub_ts != self._at:
            self._move(hub_ts)
        return self._recent.get(label)

    def known(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label that is derived already."""
        self._move(hub_ts)
        for number in self._window:
            epoch = self._epochs.get(number)
            stream = epoch.labels.get(label) if epoch else None
            if stream is not None:
                return self._found(label, stream, number)
        return None

    def explains(self, label: bytes, stream: bytes, epoch: int, hub_ts: int) -> bool:
        """Whether that is the label's stream and epoch, and the epoch one of those around the time."""
        self._move(hub_ts)
        explained = epoch in self._window and self._label(stream, u64be(epoch)) == label
        if explained:
            self._found(label, stream, epoch)
        return explained

    def find(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """`(stream, epoch)` of a label in the epochs around a time. Derives as much as it takes."""
        found = self.known(label, hub_ts)
        for number in self._by_need() if found is None else ():
            epoch = self._epoch(number)
            if self._derive(epoch, len(self._streams), label):
                return self._found(label, epoch.labels[label], number)
        if found is None:
            self._missed(label)
        return found

    def is_complete(self, hub_ts: int) -> bool:
        """Whether every label around the time is derived."""
        self._move(hub_ts)
        return all(n in self._epochs and self._epochs[n].done == len(self._streams) for n in self._window)

    def prepare(self, hub_ts: int, ahead: int, most: int) -> int:
        """Derive what is missing of the epochs around the time and `ahead` more, and let go of what is past.

        So many labels at most; returns how many less it took.
        """
        self._move(hub_ts)
        wanted = range(self._window.start, self._window.stop + ahead)
        for number in [number for number in self._epochs if number not in wanted]:
            self._past.append(self._epochs.pop(number).labels)
        while self._past and most:
            most -= _forget(self._past[-1], most)
            if not self._past[-1]:
                self._past.pop()
        for number in (*self._by_need(), *wanted[len(self._window) :]):
            epoch = self._epoch(number)
            before = epoch.done
            self._derive(epoch, before + most)
            most -= epoch.done - before
        return most

    def forget(self) -> None:
        """Let go at once of every epoch that is not around the time."""
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if number in self._window}

    def _move(self, hub_ts: int) -> None:
        if hub_ts != self._at:
            self._at = hub_ts
            window = self._profile.epochs_around(hub_ts, self._skew_sec)
            if window != self._window:
                self._window = window
                self._recent = {}
                self.unexplained.clear()

    def _by_need(self) -> list[int]:
        """The epochs around now, from the middle: most look-ups are for the one that it is."""
        now = self._profile.epoch(self._at)
        return sorted(self._window, key=lambda number: abs(number - now))

    def _found(self, label: bytes, stream: bytes, epoch: int) -> tuple[bytes, int]:
        found = self._recent[label] = stream, epoch
        return found

    def _missed(self, label: bytes) -> None:
        """Anyone can ask for any number of labels, so few are kept."""
        if len(self.unexplained) >= MAX_UNEXPLAINED:
            self.unexplained.clear()
        self.unexplained.add(label)

    def _epoch(self, number: int) -> _Epoch:
        found = self._epochs.get(number)
        if found is None:
            found = self._epochs[number] = _Epoch(number)
        return found

    def _derive(self, epoch: _Epoch, upto: int, until: bytes | None = None) -> bool:
        """The labels of the streams before `upto`, or fewer where the label `until` is among them: whether it is."""
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


def _forget(labels: dict[bytes, bytes], most: int) -> int:
    """Let go of some: a large dictionary that goes at once takes its time."""
    count = min(most, len(labels))
    for _ in range(count):
        labels.popitem()
    return count
