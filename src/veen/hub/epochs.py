"""Which stream and epoch a label belongs to: for checkpoints, which name both sides of a rotation. Spec §4.4.1."""

from veen.core import naming
from veen.hub.rules import Rules
from veen.storage.store import Store


class LabelBook:
    """Derives labels from the registered streams. Safe on any thread."""

    def __init__(self, rules: Rules, store: Store) -> None:
        self._rules = rules
        self._store = store

    def rotation(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        """`(epoch, label_prev)` of a label that was written to at `hub_ts`.

        With epochs every label is of one epoch, and `label_prev` is the stream's label of the epoch before it.
        """
        if not self._rules.profile.epoch_sec:
            return 0, label
        for stream in self._streams():
            for epoch in self._rules.profile.epochs_around(hub_ts, self._rules.limits.max_epoch_skew_sec):
                if self._label(stream, epoch) == label:
                    return epoch, self._label(stream, epoch - 1) if epoch else label
        return self._rules.profile.epoch(hub_ts), label

    def _streams(self) -> set[bytes]:
        pending = {stream for tail in self._store.tails() for stream in tail.batch.streams}
        with self._store.index.read() as rows:
            return {*rows.streams(), *pending, self._rules.control_stream}

    def _label(self, stream: bytes, epoch: int) -> bytes:
        return naming.label(self._rules.routing_key, stream, epoch)
