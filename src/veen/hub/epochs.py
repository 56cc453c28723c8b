"""Epochs: the end of those that are over (spec §8.4), and answers about the epochs, streams and times of a hub.

The labels that end are searched in the index in small steps, once for each epoch that ends and once after a start.
Nothing is remembered across a start: a label with an open chunk has not ended yet. The event of an end closes the last
chunks of its labels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from veen.core import Checkpoint, Receipt, Refused, control_stream, mmr, naming
from veen.core.control_stream import EndedLabel, EpochEnd
from veen.core.envelopes import EpochList, StreamEpoch, StreamList, TimePlace
from veen.core.limits import MAX_ENDED_LABELS, MAX_PAGE_ITEMS
from veen.hub.admission_rules import Rules
from veen.hub.admission_state import AdmissionState, Done, Outcome
from veen.storage import rotation
from veen.storage.metadata import HubMetadata
from veen.storage.store import Lookup, Store

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


# Labels derived for one answer. A longer list is continued by the next request.
MAX_EPOCHS_PER_ANSWER = 10_000


@dataclass(frozen=True, slots=True)
class StreamEpochs:
    """Answers about a stream as a whole, on the thread pool.

    Clients use them to find labels and places. They verify the entries themselves, and derive every label on their own.
    """

    _store: Store
    _lookup: Lookup
    _rules: Rules
    _hub_metadata: Callable[[], HubMetadata]
    _hub_ts: Callable[[], int]

    def epochs(self, stream_id: bytes, first: int | None, last: int | None) -> EpochList:
        """The epochs in which a stream has entries, each with its newest stored checkpoint."""
        born, end = self._lifetime()
        start = max(born, first or 0)
        stop = min(end, end if last is None else last + 1, start + MAX_EPOCHS_PER_ANSWER)
        rows = list(islice(self._rows(stream_id, range(start, stop)), MAX_PAGE_ITEMS))
        cut = rows[-1].epoch + 1 if len(rows) == MAX_PAGE_ITEMS else stop
        more = cut < min(end, end if last is None else last + 1)
        return EpochList(stream_id, tuple(rows), cut if more else None)

    def _lifetime(self) -> tuple[int, int]:
        """The first epoch that can have entries, and the first that cannot have any yet."""
        metadata, profile = self._hub_metadata(), self._rules.profile
        if not profile.epoch_sec:
            return 0, 1
        skew, oldest = self._rules.limits.max_epoch_skew_sec, metadata.lineage.identities[-1]
        born = profile.epochs_around(oldest.signing_keys[0].valid_from, skew).start
        return born, profile.epochs_around(self._hub_ts(), skew).stop

    def _rows(self, stream_id: bytes, epochs: range) -> Iterator[StreamEpoch]:
        for epoch in epochs:
            label = naming.label(self._rules.routing_key, stream_id, epoch)
            size = self._lookup.size(label)
            if size:
                yield StreamEpoch(epoch, label, size, self._newest_checkpoint(label))

    def _newest_checkpoint(self, label: bytes) -> Checkpoint | None:
        with self._store.index.read() as rows:
            ends = rows.chunk_ends(label, None, 1)
        return rotation.stored_checkpoint(self._store.folders, label, ends[-1]) if ends else None

    def streams(self, after: bytes) -> StreamList:
        """A page of the registered streams, in ascending order."""
        found = {stream for tail in self._store.tails() for stream in tail.streams if stream > after}
        with self._store.index.read() as rows:
            found.update(islice(rows.streams(after), MAX_PAGE_ITEMS + 1))
        page = sorted(found)[: MAX_PAGE_ITEMS + 1]
        return StreamList(tuple(page[:MAX_PAGE_ITEMS]), page[MAX_PAGE_ITEMS - 1] if page[MAX_PAGE_ITEMS:] else None)

    def place_in_time(self, label: bytes, hub_ts: int) -> TimePlace:
        """The first entry of a label at a time or later. The receipts around that place prove it."""
        size = self._lookup.size(label)
        seq = self._lookup.first_since(label, hub_ts)
        before = self._receipt(label, seq - 1) if seq > 1 else None
        at = self._receipt(label, seq) if seq <= size else None
        return TimePlace(label, hub_ts, seq, before, at)

    def _receipt(self, label: bytes, stream_seq: int) -> Receipt | None:
        """None if the receipts were pruned: then nothing is signed there any more."""
        _, receipt = self._lookup.headers(label, stream_seq)
        return receipt if receipt is not None and any(receipt.hub_sig) else None
