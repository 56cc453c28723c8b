"""Status, health and metrics of a hub."""

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from plumbing.http import HttpServer
from plumbing.http.message import Response
from plumbing.json_log import LineWriter
from veen.core import Receipt, Refused, mmr, naming, strict_json
from veen.core.limits import SERVER_VERSION
from veen.core.strict_json import Json
from veen.core.wire_json import to_json
from veen.hub import responses
from veen.hub.admission_rules import Rules
from veen.hub.admission_state import Realm
from veen.hub.conditions import Conditions, Reason
from veen.hub.hub_time import ClockWatch
from veen.hub.scrubber import Scrubber
from veen.hub.witness_records import WitnessRecords
from veen.storage import frame
from veen.storage.frame import AcceptedEntry
from veen.storage.index import LabelHead
from veen.storage.metadata import HubMetadata
from veen.storage.store import Store


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


class SingleCounter(Collector):
    """A counter that is read from its owner when Prometheus asks."""

    def __init__(self, name: str, text: str, read: Callable[[], int]) -> None:
        self._name = name
        self._text = text
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._text, value=self._read())


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
        self.prev_ack_ahead = Counter(
            "veen_prev_ack_ahead", "messages that acknowledge entries which the log lacks", registry=r
        )
        self.verify_ms = self._histogram("veen_verify_latency_ms", "arrival to verified", _MS)
        self._commit = self._histogram("veen_commit_latency_ms", "one group, ordered, signed, durable", _MS)
        self.end_to_end_ms = self._histogram("veen_end_to_end_latency_ms", "arrival to durable", _MS)
        self._sync = self._histogram("veen_fsync_latency_ms", "one journal write and sync", _MS)
        self._group = self._histogram("veen_group_size", "entries that shared a sync", _SIZES)
        self._proof = self._histogram("veen_proof_latency_ms", "making one proof", _MS)
        self._interval = self._histogram("veen_checkpoint_interval", "entries between checkpoints", _INTERVALS)
        self.queue_depth = Gauge("veen_queue_depth", "messages between arrival and receipt", registry=r)
        self.journal_bytes = Gauge("veen_journal_bytes", "bytes the log has yet to catch up with", registry=r)
        self.revocations = Gauge(
            "veen_revocations", "client keys and capabilities that the realm or the operator revoked", registry=r
        )
        self.multi_primary = Gauge("veen_multi_primary_labels", "labels that other hubs may write to", registry=r)
        self.hub_ts_lead = Gauge("veen_hub_ts_lead_seconds", "hub_ts minus the wall clock", registry=r)
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

    def watch_witnesses(self, counts: Callable[[], dict[str, dict[str, int]]]) -> None:
        """Show the cosignatures of each witness, by the first digits of its key."""
        for name, what, text, family in (
            ("veen_witness_cosignatures", "cosigned", "cosignatures received", CounterMetricFamily),
            ("veen_witness_failures", "failed", "requests without a cosignature", CounterMetricFamily),
            ("veen_witness_pending", "pending", "labels that wait for a cosignature", GaugeMetricFamily),
        ):
            read = partial(_counts_of, counts, what)
            self.registry.register(LabelledValues(name, text, "witness", read, family))

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

    def watch_scrubber(self, scrubber: Scrubber) -> None:
        """Show how far the log was read again, and what was damaged."""
        r = self.registry
        for name, text, read in (
            ("veen_scrub_bytes", "bytes of the log read again", lambda: scrubber.checked_bytes),
            ("veen_scrub_passes", "full passes over the log", lambda: scrubber.passes),
        ):
            r.register(SingleCounter(name, text, read))
        age = Gauge("veen_scrub_last_pass_age_seconds", "since the last full pass, or the first start", registry=r)
        age.set_function(scrubber.age_s)
        name, text = "veen_scrub_damaged", "files that the scrubber found damaged, by kind"
        r.register(LabelledValues(name, text, "kind", scrubber.damaged_by_kind, GaugeMetricFamily))

    def watch_log(self, lines: LineWriter) -> None:
        """Show how many log lines were dropped."""
        text = "log lines dropped because the queue was full or the write failed"
        self.registry.register(LabelledValues("veen_log_lines_lost", text, "why", lambda: lines.lost))

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _counts_of(counts: Callable[[], dict[str, dict[str, int]]], what: str) -> dict[str, int]:
    return counts()[what]


# Below this the next group may not fit. The disk counts as full until twice as much is free.
MIN_FREE_BYTES = 4 << 20


MAX_SHOWN_LABELS = 1000
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(eq=False)
class HubStatusPage:
    """Status, health checks and metrics, answered from memory: cheap enough to request every second."""

    _hub_metadata: HubMetadata
    _rules: Rules
    _store: Store
    _conditions: Conditions
    _metrics: Metrics
    _realm: Realm
    _witness_records: WitnessRecords
    _in_flight: Callable[[], int]
    _clock: ClockWatch
    _pow_difficulty: int
    _allow_revocation: bool
    _read_access: str
    _scrubber: Scrubber | None = None
    stopping: bool = False

    def __post_init__(self) -> None:
        with self._store.index.read() as rows:
            self.entries, self.labels = rows.entry_count(), rows.label_count()
            label = rows.newest()
            # The head of the label with the newest entry in the index, and the frame of the newest entry since.
            self._newest = (rows.head(label) if label else None) or LabelHead()
            self._last: bytes | None = None
        # Replayed entries are not in the index yet.
        for tail in reversed(self._store.tails()):
            self.count(tail.records)

    def count(self, records: Sequence[AcceptedEntry]) -> int:
        """Count new entries and labels. Returns how many entries clients submitted; the others are the hub's own."""
        submitted = 0
        for record in records:
            submitted += record.client_id != self._rules.control_pk
            self.labels += record.stream_seq == 1
            self._last = record.frame
        self.entries += len(records)
        return submitted

    def alive(self) -> Response:
        """GET /healthz: size and root of the tree with the newest entry. The label is not revealed."""
        stream_seq, root = self._last_tree()
        return _json_response(
            200,
            {
                "ok": True,
                "profile_id": self._rules.profile_id.hex(),
                "peaks_count": stream_seq.bit_count(),
                "last_stream_seq": stream_seq,
                "last_mmr_root": root.hex(),
            },
        )

    def ready(self) -> Response:
        """GET /readyz: the data directory is writable and no blocking state holds."""
        self.check_disk()
        self._clock.check()
        reason = "stopping" if self.stopping else self._conditions.blocking
        bad: list[strict_json.Json] = [str(one) for one in self._conditions.active]
        return _json_response(503 if reason else 200, {"ready": not reason, "reason": reason, "bad_states": bad})

    def check_disk(self) -> bool:
        """Check the disk. Repeated while it is in a bad state."""
        folder, conditions = self._store.folders.journal, self._conditions
        try:
            disk = os.statvfs(folder)
            if disk.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))
        except OSError as error:
            conditions.enter(Reason.DATA_DIRECTORY, error, refused=0, recheck=self.check_disk)
            return True
        conditions.leave(Reason.DATA_DIRECTORY)
        free = disk.f_bavail * disk.f_frsize
        if free < MIN_FREE_BYTES:
            conditions.enter(Reason.DISK_FULL, refused=0, recheck=self.check_disk, free_bytes=free)
        elif free >= 2 * MIN_FREE_BYTES:
            conditions.leave(Reason.DISK_FULL)
        return True

    def _last_tree(self) -> tuple[int, bytes]:
        if self._last is not None:
            receipt = Receipt.decode(frame.read(self._last)[0].receipt)
            return receipt.stream_seq, receipt.mmr_root
        return self._newest.size, mmr.root_of(self._newest.peaks)

    def follow_settings(self, pow_difficulty: int, allow_revocation: bool) -> None:
        """Show other settings from now on."""
        self._pow_difficulty, self._allow_revocation = pow_difficulty, allow_revocation

    def follow(self, hub_metadata: HubMetadata) -> None:
        """Show a record that continues the known one."""
        self._hub_metadata = hub_metadata

    def as_json(self) -> Json:
        """GET /tooling/status."""
        self.check_disk()
        self._clock.check()
        hub_ts, bad = self._hub_ts, self._conditions.active
        active = self._hub_metadata.identity.signing_key_at(hub_ts)
        return {
            "hub_id": self._hub_metadata.identity.hub_id.hex(),
            "hub_pk": active.hub_pk.hex(),
            "key_id": active.key_id.hex(),
            "routing_key": self._rules.routing_key.hex(),
            "identity": to_json(self._hub_metadata.identity),
            "identity_sig": to_json(self._hub_metadata.signature),
            "profile": to_json(self._rules.profile),
            "profile_id": self._rules.profile_id.hex(),
            "epoch": self._rules.profile.epoch(hub_ts),
            "hub_ts": hub_ts,
            "clock": self._clock.as_json(),
            "limits": to_json(self._rules.limits_in_force.registry.limits),
            "earlier_limits": [to_json(row) for row in self._rules.limits_in_force.registry.earlier],
            "admission": str(self._rules.admission),
            "bare_tokens": self._rules.bare_tokens,
            "read_access": str(self._read_access),
            "pow_difficulty": self._pow_difficulty,
            "realm_id": self._rules.realm_id.hex() if self._rules.realm_id else None,
            "revocation": self._allow_revocation,
            "revocations": self._realm.revocations,
            "multi_primary_labels": [label.hex() for label in self._multi_primary(hub_ts)],
            "server_version": SERVER_VERSION,
            "labels": self.labels,
            "entries": self.entries,
            "equivocations": self._witness_records.equivocations,
            "scrub": self._scrubber.as_json() if self._scrubber else None,
            "trouble": "; ".join(bad.values()),
            "bad_states": [self._shown_state(reason, text) for reason, text in bad.items()],
        }

    def _shown_state(self, reason: Reason, text: str) -> Json:
        return {"reason": str(reason), "text": text, "refused": self._conditions.refused(reason)}

    def _multi_primary(self, hub_ts: int) -> list[bytes]:
        """The current labels that other hubs may write to as well: their trees differ between hubs."""
        epoch = self._rules.profile.epoch(hub_ts)
        streams = islice(self._realm.multi_primary(hub_ts), MAX_SHOWN_LABELS)
        return sorted(naming.label(self._rules.routing_key, stream, epoch) for stream in streams)

    @property
    def _hub_ts(self) -> int:
        """The time of the next receipt: it never decreases."""
        return int(self._clock.time.now())

    def probe(self, path: str) -> Response:
        if path == "/metrics":
            self.check_disk()
            self._clock.check()
            self._metrics.queue_depth.set(self._in_flight())
            self._metrics.journal_bytes.set(self._store.journal_bytes)
            self._metrics.revocations.set(self._realm.revocations)
            self._metrics.multi_primary.set(sum(1 for _ in self._realm.multi_primary(self._hub_ts)))
            self._metrics.hub_ts_lead.set(self._hub_ts - int(self._clock.time.wall))
            return Response(200, self._metrics.text(), PROMETHEUS)
        if path == "/readyz":
            return self.ready()
        return self.alive()


def _json_response(status: int, as_json: dict[str, strict_json.Json]) -> Response:
    return Response(status, strict_json.encode(as_json), responses.JSON)
