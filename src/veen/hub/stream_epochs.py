"""Answers of a hub about a stream as a whole: its epochs, the registered streams, and places in time.

Clients use it to find labels and places. They verify the entries themselves, and derive every label on their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from veen.core import Checkpoint, Receipt, naming
from veen.core.envelopes import EpochList, StreamEpoch, StreamList, TimePlace
from veen.core.limits import MAX_PAGE_ITEMS
from veen.hub.admission_rules import Rules
from veen.storage import rotation
from veen.storage.metadata import HubMetadata
from veen.storage.store import Lookup, Store

# Labels derived for one answer. A longer list is continued by the next request.
MAX_EPOCHS_PER_ANSWER = 10_000


@dataclass(frozen=True, slots=True)
class StreamEpochs:
    """Answers these queries, on the thread pool."""

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
