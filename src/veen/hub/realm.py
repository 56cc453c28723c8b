"""The state of the realm's admin streams: revocations, and which hub is primary for a stream. spec-2 §2.4, §4.3.

It is in memory because every message needs it; it has at most one row per record. Records may come in any order:
revoked times are the union of all intervals, and among several authorities the rank decides.
"""

from collections.abc import Iterator

from veen.core import admin
from veen.core.admin import Authority, AuthorityPolicy, Revocation, RevocationKind

Interval = tuple[int, int | None]  # start, end (exclusive); None means no end
Changed = tuple[dict[bytes, tuple[Interval, ...]] | dict[bytes, tuple[Authority, ...]], bytes, object]


class Realm:
    """Two maps with immutable values, so that a change can be undone by restoring the old value."""

    def __init__(self) -> None:
        self._revoked: dict[bytes, tuple[Interval, ...]] = {}
        self._authorities: dict[bytes, tuple[Authority, ...]] = {}

    def revoked(self, kind: RevocationKind, target: bytes, hub_ts: int) -> bool:
        """Whether a revocation applies at that time."""
        intervals = self._revoked.get(kind.encode() + target)
        return intervals is not None and any(
            start <= hub_ts and (end is None or hub_ts < end) for start, end in intervals
        )

    def authority(self, stream_id: bytes, hub_ts: int) -> Authority | None:
        """The effective record of a stream at that time."""
        records = self._authorities.get(stream_id)
        return admin.active(records, hub_ts) if records else None

    @property
    def revocations(self) -> int:
        """The number of keys and capabilities that were ever revoked."""
        return len(self._revoked)

    def multi_primary(self, hub_ts: int) -> Iterator[bytes]:
        """The streams with several primary hubs at that time."""
        for stream_id in self._authorities:
            record = self.authority(stream_id, hub_ts)
            if record and record.policy == AuthorityPolicy.MULTI_PRIMARY:
                yield stream_id

    def folded(self, event: admin.Event, hub_ts: int) -> Changed:
        """The map that a record changes, with key and new value. `hub_ts` is the hub's time."""
        if isinstance(event, Revocation):
            key = event.kind.encode() + event.target
            return self._revoked, key, _united(self._revoked.get(key, ()), (event.ts, event.end))
        # Hub time never decreases, so an expired record cannot become active again.
        known = {record for record in self._authorities.get(event.stream_id, ()) if record.end > hub_ts}
        return self._authorities, event.stream_id, tuple(sorted(known | {event}, key=Authority.rank))


def _united(intervals: tuple[Interval, ...], added: Interval) -> tuple[Interval, ...]:
    """The union with `added`, as the fewest intervals, sorted by start."""
    start, end = added
    apart = []
    for one in intervals:
        one_start, one_end = one
        if (end is not None and end < one_start) or (one_end is not None and one_end < start):
            apart.append(one)
        else:
            start = min(start, one_start)
            end = None if end is None or one_end is None else max(end, one_end)
    return tuple(sorted([*apart, (start, end)], key=lambda interval: interval[0]))
