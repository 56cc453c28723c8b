"""A histogram cheap enough for every message: the client library's own costs more than parsing the message.

And counts that someone else keeps.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally(Collector):
    """Counts by bucket, shown to Prometheus when it asks."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        total, buckets = 0, []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class Counts(Collector):
    """Numbers by one label that are read where they are kept, when Prometheus asks."""

    def __init__(
        self,
        name: str,
        text: str,
        label: str,
        read: Callable[[], Mapping[str, int]],
        family: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily,
    ) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._read = read
        self._family = family

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        family = self._family(self._name, self._text, labels=[self._label])
        for value, count in self._read().items():
            family.add_metric([value], count)
        yield family
