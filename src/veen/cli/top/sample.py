"""A hub's metrics at one moment, and what happened between two moments. Pure: text in, numbers out."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from veen.core import Malformed

LATENCY = "veen_end_to_end_latency_ms"
VERIFY = "veen_verify_latency_ms"
COMMIT = "veen_commit_latency_ms"
SYNC = "veen_fsync_latency_ms"
GROUP = "veen_group_size"
PROOF = "veen_proof_latency_ms"
HISTOGRAMS = (LATENCY, VERIFY, COMMIT, SYNC, GROUP, PROOF)
_OK, _ERR = "veen_submit_ok_total", "veen_submit_err_total"
_QUEUE, _JOURNAL = "veen_queue_depth", "veen_journal_bytes"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many observations were at most each bound; the last bound is without end."""

    bounds: tuple[float, ...]
    totals: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        return self.totals[-1] if self.totals else 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def since(self, before: "Histogram") -> "Histogram":
        """What was observed after `before` was taken."""
        if before.bounds != self.bounds:
            return self
        totals = tuple(now - then for now, then in zip(self.totals, before.totals, strict=True))
        return Histogram(self.bounds, totals, self.sum - before.sum)

    def quantile(self, share: float) -> float | None:
        """Where that share of the observations ends, evenly spread within its bucket; None where there are none.

        What lies beyond the last finite bound counts as that bound: more is not known.
        """
        if not self.count:
            return None
        wanted = share * self.count
        at = bisect_left(self.totals, wanted)
        below_bound, below = (self.bounds[at - 1], self.totals[at - 1]) if at else (0.0, 0.0)
        if at == len(self.bounds) - 1:
            return below_bound
        return below_bound + (self.bounds[at] - below_bound) * (wanted - below) / (self.totals[at] - below)


_NOTHING = Histogram((), (), 0.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of a hub at one moment."""

    at: float  # seconds, of a clock that only runs forward
    accepted: float
    refused: Mapping[str, float]  # by code, or code/detail_enum
    histograms: Mapping[str, Histogram]
    queue_depth: float
    journal_bytes: float


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two samples, or since the hub started."""

    seconds: float | None  # None where it is since the start: how long that is the metrics do not tell
    accepted: float
    refused: Mapping[str, float]
    histograms: Mapping[str, Histogram]

    @property
    def rate(self) -> float | None:
        return None if not self.seconds else self.accepted / self.seconds

    @property
    def refusal_rate(self) -> float | None:
        return None if not self.seconds else sum(self.refused.values()) / self.seconds

    def histogram(self, name: str) -> Histogram:
        return self.histograms.get(name, _NOTHING)


def read(text: str, at: float) -> Sample:
    """The sample in the text that `/metrics` answers with."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, IndexError, KeyError):
        raise Malformed("metrics", "not in the text form of Prometheus") from None
    single = {one.name: one.value for one in samples if not one.labels}
    if _OK not in single:
        raise Malformed("metrics", f"no {_OK}: these are not a hub's")
    refused: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, float]]] = {}
    for one in samples:
        if one.name == _ERR:
            detail = one.labels.get("detail_enum")
            code = one.labels.get("code", "")
            refused[f"{code}/{detail}" if detail else code] = one.value
        elif one.name.endswith("_bucket") and "le" in one.labels:
            found = buckets.setdefault(one.name.removesuffix("_bucket"), [])
            found.append((float(one.labels["le"]), one.value))
    histograms = {
        name: Histogram(
            tuple(bound for bound, _ in sorted(found)),
            tuple(total for _, total in sorted(found)),
            single.get(f"{name}_sum", 0.0),
        )
        for name, found in buckets.items()
    }
    return Sample(at, single[_OK], refused, histograms, single.get(_QUEUE, 0.0), single.get(_JOURNAL, 0.0))


def between(before: Sample | None, after: Sample) -> Interval:
    """What happened from one sample to the next. A hub that started anew in between counts from its start."""
    if before is None or after.accepted < before.accepted or _went_back(before, after):
        return Interval(None, after.accepted, dict(after.refused), after.histograms)
    refused = {code: count - before.refused.get(code, 0.0) for code, count in after.refused.items()}
    return Interval(
        after.at - before.at,
        after.accepted - before.accepted,
        {code: count for code, count in refused.items() if count},
        {name: one.since(before.histograms.get(name, _NOTHING)) for name, one in after.histograms.items()},
    )


def _went_back(before: Sample, after: Sample) -> bool:
    return any(after.refused.get(code, 0.0) < count for code, count in before.refused.items())
