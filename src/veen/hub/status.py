"""Status, health and metrics of a hub."""

import errno
import os
from collections.abc import Callable, Sequence
from itertools import islice

from plumbing.http.message import Response
from veen.core import HubIdentity, IdentitySignature, Receipt, mmr, naming, strict_json
from veen.core.limits import SERVER_VERSION
from veen.core.strict_json import Json
from veen.core.wire_json import to_json
from veen.hub import responses
from veen.hub.admission_rules import Rules
from veen.hub.admission_state import Realm
from veen.hub.conditions import Conditions, Reason
from veen.hub.metrics import CommitReport, Metrics
from veen.hub.submit import SubmitPipeline
from veen.hub.witness_records import WitnessRecords
from veen.storage import frame
from veen.storage.commit_group import AcceptedEntry
from veen.storage.index import LabelHead
from veen.storage.store import Store

# Below this the next group may not fit. The disk counts as full until twice as much is free.
MIN_FREE_BYTES = 4 << 20


class Health:
    """Health checks, answered from memory except for one look at the disk."""

    def __init__(
        self,
        rules: Rules,
        store: Store,
        conditions: Conditions,
        newest: LabelHead | None,
    ) -> None:
        """`newest` is the head of the label with the newest entry in the index."""
        self._rules = rules
        self._store = store
        self._conditions = conditions
        self._newest = newest
        self._last: bytes | None = None  # the frame of the newest entry since
        self.stopping = False
        for tail in store.tails():
            if tail.records and self._last is None:
                self._last = tail.records[-1].frame

    def committed(self, newest: AcceptedEntry) -> None:
        self._last = newest.frame

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
        newest = self._newest or LabelHead()
        return newest.size, mmr.root_of(newest.peaks)


def _json_response(status: int, as_json: dict[str, strict_json.Json]) -> Response:
    return Response(status, strict_json.encode(as_json), responses.JSON)


MAX_SHOWN_LABELS = 1000
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class HubStatusPage:
    """Answers from memory: cheap enough to request every second."""

    def __init__(
        self,
        identity: HubIdentity,
        signature: IdentitySignature,
        rules: Rules,
        store: Store,
        conditions: Conditions,
        pipeline: SubmitPipeline,
        witness_records: WitnessRecords,
        metrics: Metrics,
        clock: Callable[[], float],
        realm: Realm,
        pow_difficulty: int,
    ) -> None:
        self._identity = identity
        self._signature = signature
        self._rules = rules
        self._store = store
        self._conditions = conditions
        self._pipeline = pipeline
        self._metrics = metrics
        self._clock = clock
        self._realm = realm
        self._pow_difficulty = pow_difficulty
        self._witness_records = witness_records
        with store.index.read() as rows:
            self.entries, self.labels = rows.entry_count(), rows.label_count()
            label = rows.newest()
            newest = rows.head(label) if label else None
        self.health = Health(rules, store, conditions, newest)
        # Replayed entries are not in the index yet.
        for tail in store.tails():
            self.entries += len(tail.records)
            self.labels += sum(record.stream_seq == 1 for record in tail.records)

    def committed(self, records: Sequence[AcceptedEntry], report: CommitReport) -> None:
        """Record a durable group. If the disk rejected it, `records` is empty."""
        control_pk = self._rules.control_pk  # entries of the hub itself were not submitted
        self._metrics.committed(report, len(records), sum(record.client_id != control_pk for record in records))
        if records:
            self.entries += len(records)
            self.labels += sum(record.stream_seq == 1 for record in records)
            self.health.committed(records[-1])
        elif report.entries:
            self.health.check_disk()

    def as_json(self) -> Json:
        """GET /tooling/status."""
        self.health.check_disk()
        hub_ts, bad = self._hub_ts(), self._conditions.active
        active = self._identity.signing_key_at(hub_ts)
        return {
            "hub_id": self._identity.hub_id.hex(),
            "hub_pk": active.hub_pk.hex(),
            "key_id": active.key_id.hex(),
            "routing_key": self._rules.routing_key.hex(),
            "identity": to_json(self._identity),
            "identity_sig": to_json(self._signature),
            "profile": to_json(self._rules.profile),
            "profile_id": self._rules.profile_id.hex(),
            "epoch": self._rules.profile.epoch(hub_ts),
            "hub_ts": hub_ts,
            "limits": to_json(self._rules.limits),
            "admission": str(self._rules.admission),
            "pow_difficulty": self._pow_difficulty,
            "realm_id": self._rules.realm_id.hex() if self._rules.realm_id else None,
            "revocations": self._realm.revocations,
            "multi_primary_labels": [label.hex() for label in self._multi_primary(hub_ts)],
            "server_version": SERVER_VERSION,
            "labels": self.labels,
            "entries": self.entries,
            "equivocations": self._witness_records.equivocations,
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

    def _hub_ts(self) -> int:
        """The time of the next receipt: it never decreases."""
        last = [tail.records[-1].hub_ts for tail in self._store.tails() if tail.records]
        if not last:
            with self._store.index.read() as rows:
                last.append(rows.number("hub_ts"))
        return max(int(self._clock()), *last)

    def probe(self, path: str) -> Response:
        if path == "/metrics":
            self.health.check_disk()
            self._metrics.queue_depth.set(self._pipeline.in_flight)
            self._metrics.journal_bytes.set(self._store.journal_bytes)
            self._metrics.revocations.set(self._realm.revocations)
            self._metrics.multi_primary.set(sum(1 for _ in self._realm.multi_primary(self._hub_ts())))
            return Response(200, self._metrics.text(), PROMETHEUS)
        if path == "/readyz":
            return self.health.ready()
        return self.health.alive()
