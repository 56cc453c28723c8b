"""Where messages went to, as ranges of the target stream."""

from collections import defaultdict
from collections.abc import Iterable

from veen.client.client import Client
from veen.client.draft import Sent
from veen.core import Receipt, Unavailable
from veen.overlays.bridging import TargetRange
from veen.overlays.bridging.events import MAX_RANGES
from veen.overlays.bridging.exports import joined


class Places:
    """The places of one stream that messages of ours were given."""

    def __init__(self, client: Client, stream_id: bytes) -> None:
        self._client = client
        self._stream_id = stream_id
        self._found: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, sent: Sent) -> None:
        self._found[sent.epoch].append((sent.stream_seq, sent.stream_seq))

    def find(self, leaves: Iterable[bytes]) -> None:
        """Messages of an earlier run, by the receipts that are kept of everything that was sent."""
        wanted = set(leaves)
        if not wanted:
            return
        hub_id = self._client.hub_id
        with self._client.dir.state.tables.read() as rows:
            for _, row in rows.scan("receipts", hub_id):
                receipt = Receipt.decode(row)
                if receipt.leaf_hash in wanted:
                    wanted.remove(receipt.leaf_hash)
                    self._found[self._epoch(receipt)].append((receipt.stream_seq, receipt.stream_seq))
        if wanted:
            raise Unavailable(f"{len(wanted)} messages of an earlier run have no receipt yet")

    def _epoch(self, receipt: Receipt) -> int:
        known = self._client.contact.trust.known
        around = known.profile.epochs_around(receipt.hub_ts, known.limits.max_epoch_skew_sec)
        return next(epoch for epoch in around if self._client.label(self._stream_id, epoch) == receipt.label)

    def ranges(self) -> tuple[TargetRange, ...]:
        """By epoch and number; where others wrote in between so often that it would be too many, the whole span."""
        found = [
            TargetRange(epoch, first, last)
            for epoch in sorted(self._found)
            for first, last in joined(self._found[epoch])
        ]
        if len(found) <= MAX_RANGES:
            return tuple(found)
        spans = {epoch: joined(each) for epoch, each in self._found.items()}
        return tuple(TargetRange(epoch, spans[epoch][0][0], spans[epoch][-1][1]) for epoch in sorted(spans))
