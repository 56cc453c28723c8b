"""Metrics of the hub for Prometheus, under the names of OBS0.1."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from plumbing.http import HttpServer
from veen.core import Refused
from veen.hub.conditions import Conditions, Reason
from veen.hub.log import LineWriter


@dataclass(frozen=True, slots=True)
class CommitReport:
    """Sizes and times of one group."""

    entries: int
    group_seconds: float
    sync_seconds: float


class Histogram(Collector):
    """A histogram that is formatted only when Prometheus reads it."""

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


class LabelledValues(Collector):
    """Values by one label, read from their owner when Prometheus asks."""

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


_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_INTERVALS = (1, 16, 256, 4096, 65536, 1048576)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters of one hub."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._ok = Counter("veen_submit_ok", "accepted messages", registry=r)
        self._err = Counter("veen_submit_err", "refused messages", ["code", "detail_enum"], registry=r)
        self._limited = Counter("veen_rate_limited", "messages refused for their rate", registry=r)
        self.verify_ms = self._histogram("veen_verify_latency_ms", "arrival to verified", _MS)
        self._commit = self._histogram("veen_commit_latency_ms", "one group, ordered, signed, durable", _MS)
        self.end_to_end_ms = self._histogram("veen_end_to_end_latency_ms", "arrival to durable", _MS)
        self._sync = self._histogram("veen_fsync_latency_ms", "one journal write and sync", _MS)
        self._group = self._histogram("veen_group_size", "entries that shared a sync", _SIZES)
        self._proof = self._histogram("veen_proof_latency_ms", "making one proof", _MS)
        self._interval = self._histogram("veen_checkpoint_interval", "entries between checkpoints", _INTERVALS)
        self.queue_depth = Gauge("veen_queue_depth", "messages between arrival and receipt", registry=r)
        self.journal_bytes = Gauge("veen_journal_bytes", "bytes the log has yet to catch up with", registry=r)
        self.revocations = Gauge("veen_revocations", "client keys and capabilities the realm revoked", registry=r)
        self.multi_primary = Gauge("veen_multi_primary_labels", "labels that other hubs may write to", registry=r)
        self._connections = Gauge("veen_connections", "open connections", registry=r)
        self._attachments = Counter("veen_attachments", "new attachments", registry=r)
        self._attachment_bytes = Counter("veen_attachment_bytes", "bytes of new attachments", registry=r)
        # OBS0.1 requires this name. A hub never raises it: a client publishes anchors, and reports its failures itself.
        Counter("veen_anchor_fail", "always 0: veen anchor publishes anchors, not the hub", registry=r)

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        histogram = Histogram(name, text, bounds)
        self.registry.register(histogram)
        return histogram

    def refused(self, refused: Refused) -> None:
        self._err.labels(refused.code, refused.detail_enum or "").inc()
        if refused.code == "E.RATE":
            self._limited.inc()

    def committed(self, report: CommitReport, durable: int, submitted: int) -> None:
        """Record a group. `durable` is 0 if the disk rejected it; `submitted` excludes the hub's own entries."""
        self._commit.observe(report.group_seconds * 1e3)
        if durable:
            self._ok.inc(submitted)
            self._group.observe(durable)
            self._sync.observe(report.sync_seconds * 1e3)

    def uploaded(self, size: int) -> None:
        self._attachments.inc()
        self._attachment_bytes.inc(size)

    def proved(self, seconds: float) -> None:
        self._proof.observe(seconds * 1e3)

    def checkpointed(self, entries: int) -> None:
        self._interval.observe(entries)

    def watch(self, server: HttpServer) -> None:
        """Show the connections of a server."""
        self._connections.set_function(lambda: server.connections)
        text = "connections refused, by the cap that was reached"
        self.registry.register(
            LabelledValues("veen_connections_refused", text, "cap", lambda: server.refused_connections)
        )

    def watch_conditions(self, conditions: Conditions) -> None:
        """Show the bad states."""

        def active() -> dict[str, int]:
            return {str(reason): int(reason in conditions.active) for reason in Reason}

        name, text = "veen_hub_bad_state", "1 while the hub is in this bad state"
        self.registry.register(LabelledValues(name, text, "reason", active, GaugeMetricFamily))
        text = "how often the hub entered this bad state"
        self.registry.register(LabelledValues("veen_hub_bad_state_entered", text, "reason", lambda: conditions.entered))

    def watch_log(self, lines: LineWriter) -> None:
        """Show how many log lines were dropped."""
        text = "log lines dropped because the queue was full or the write failed"
        self.registry.register(LabelledValues("veen_log_lines_lost", text, "why", lambda: lines.lost))

    def text(self) -> bytes:
        return generate_latest(self.registry)
