"""Logs the end of labels whose epochs are over, so that their last chunks are closed. Spec §8.4.

The labels are searched in the index in small steps, once for each epoch that ends and once after a start. Nothing is
remembered across a start: a label with an open chunk has not ended yet.
"""

from collections.abc import Callable
from itertools import islice

from veen.core import Refused, control_stream, mmr
from veen.core.control_stream import EndedLabel, EpochEnd
from veen.core.limits import MAX_ENDED_LABELS
from veen.hub.admission_rules import Rules
from veen.hub.admission_state import AdmissionState, Done, Outcome
from veen.storage.store import Store

LABELS_PER_STEP = 128


class EpochEnds:
    """Owned by the loop's thread.

    `can_sign` says whether a key can sign the last checkpoint of a label, given label, epoch and last entry.
    """

    def __init__(
        self,
        rules: Rules,
        store: Store,
        state: AdmissionState,
        can_sign: Callable[[bytes, int, int], bool],
        log_event: Callable[[control_stream.Event, Done], None],
    ) -> None:
        self._rules = rules
        self._store = store
        self._state = state
        self._can_sign = can_sign
        self._log_event = log_event
        self._is_logging = False
        self.ended_before = 0  # every label of an earlier epoch has ended
        self._begin(0)

    def _begin(self, before: int) -> None:
        """Search for the labels of epochs before this one."""
        self._before = before
        self._after: bytes | None = b"" if before else None  # the last label that was looked at; None at the end
        self._found: list[EndedLabel] = []
        self._own: list[EndedLabel] = []  # labels of the control stream

    def step(self, hub_ts: int) -> bool:
        """Do one more step. Returns whether more may be left.

        While an event is logged, and until the log has it, there is nothing to do: the index lists its labels as open.
        """
        profile = self._rules.profile
        if not profile.epoch_sec or self._is_logging or any(tail.ends for tail in self._store.tails()):
            return False
        start = profile.epochs_around(hub_ts, self._rules.limits.max_epoch_skew_sec).start
        if start > self._before and self._after is None and not self._found and not self._is_behind(start):
            self._begin(start)
        if self._after is not None and len(self._found) < MAX_ENDED_LABELS:
            self._search(self._after)
        if self._found and (self._after is None or len(self._found) >= MAX_ENDED_LABELS):
            self._log()
            return False
        if self._after is None:
            self.ended_before = self._before
        return self._after is not None

    def _is_behind(self, start: int) -> bool:
        """Whether the index lacks entries of epochs before `start`."""
        groups = [*self._state.undurable(), *self._store.tails()]
        return any(epoch < start for group in groups for _, epoch in group.epochs.values())

    def _search(self, after: bytes) -> None:
        with self._store.index.read() as rows:
            looked_at = list(islice(rows.label_epochs(after), LABELS_PER_STEP))
            for label, stream, epoch in looked_at:
                head = rows.head(label) if epoch < self._before else None
                if head and head.chunk_entries and self._can_sign(label, epoch, head.size):
                    found = self._own if stream == self._rules.control_stream else self._found
                    found.append(EndedLabel(label, epoch, head.size, mmr.root_of(head.peaks)))
        self._after = looked_at[-1][0] if len(looked_at) == LABELS_PER_STEP else None
        if self._after is None and self._found:
            # Not alone: each event makes a label of the control stream that has to end, too.
            self._found += self._own
            self._own = []

    def _log(self) -> None:
        ended, self._found = self._found[:MAX_ENDED_LABELS], self._found[MAX_ENDED_LABELS:]
        self._is_logging = True
        self._log_event(EpochEnd(tuple(sorted(ended, key=lambda one: one.label))), self._logged)

    def _logged(self, outcome: Outcome) -> None:
        self._is_logging = False
        if isinstance(outcome, Refused):  # such as a full disk: search again
            self._begin(0)
