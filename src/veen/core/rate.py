"""The rate bucket of a capability: a function of the timestamps of what was accepted, and of nothing else. OP0.3.

A bucket starts full, gains `per_sec` tokens each second up to `burst`, and gives one per accepted message. Since
time is `hub_ts`, which is in the log, anyone who replays the log finds the same bucket.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from veen.core.captoken import Rate


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left, and as of when."""

    tokens: int
    hub_ts: int

    @classmethod
    def full(cls, rate: Rate, hub_ts: int) -> "Bucket":
        return cls(rate.burst, hub_ts)

    def refilled(self, rate: Rate, hub_ts: int) -> "Bucket":
        """The bucket at a later time; time never runs back."""
        elapsed = max(0, hub_ts - self.hub_ts)
        return Bucket(min(rate.burst, self.tokens + elapsed * rate.per_sec), max(self.hub_ts, hub_ts))

    def take(self, rate: Rate, hub_ts: int) -> "Bucket | None":
        """The bucket after one more accepted message, or None where it is empty."""
        now = self.refilled(rate, hub_ts)
        return Bucket(now.tokens - 1, now.hub_ts) if now.tokens else None

    def retry_after(self, rate: Rate) -> int | None:
        """Whole seconds until one token is back; None where none ever will be."""
        if self.tokens and rate.burst:
            return 0
        return 1 if rate.per_sec and rate.burst else None


def replay(rate: Rate, accepted: Iterable[int]) -> Bucket | None:
    """The bucket after messages accepted at these times; None before the first. Refused messages leave no trace."""
    bucket: Bucket | None = None
    for hub_ts in accepted:
        bucket = (bucket or Bucket.full(rate, hub_ts)).take(rate, hub_ts)
        if bucket is None:
            raise ValueError(f"the message at {hub_ts} cannot have been accepted under this rate")
    return bucket
