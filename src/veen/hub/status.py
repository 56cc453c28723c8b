"""What a hub says of itself: status, health, readiness, metrics."""

from collections.abc import Callable
from dataclasses import asdict

from veen.core import HubIdentity, jsontext
from veen.core.jsonform import to_json
from veen.core.jsontext import Json
from veen.core.limits import SERVER_VERSION
from veen.hub import answers
from veen.hub.committer import Committer
from veen.hub.http.message import Response
from veen.hub.metrics import Metrics
from veen.hub.papers import PaperDesk
from veen.hub.rules import Rules
from veen.hub.submits import Submits
from veen.storage.store import Store

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class Status:
    """Answers from memory: cheap enough to ask every second."""

    def __init__(
        self,
        identity: HubIdentity,
        rules: Rules,
        store: Store,
        committer: Committer,
        submits: Submits,
        desk: PaperDesk,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._identity = identity
        self._rules = rules
        self._store = store
        self._committer = committer
        self._submits = submits
        self._metrics = metrics
        self._clock = clock
        self._desk = desk
        self.stopping = False
        with store.index.read() as rows:
            self.entries = sum(head.size for _, head in rows.labels())
            self.labels = rows.label_count()
        # What was replayed from the journal is not in the index yet.
        for tail in store.tails():
            self.entries += len(tail.batch.records)
            self.labels += sum(record.stream_seq == 1 for record in tail.batch.records)

    def shown(self) -> Json:
        """GET /tooling/status."""
        hub_ts = self._hub_ts()
        active = self._identity.signing_key_at(hub_ts)
        return {
            "hub_id": self._identity.hub_id.hex(),
            "hub_pk": active.hub_pk.hex(),
            "key_id": active.key_id.hex(),
            "identity": to_json(self._identity),
            "profile": to_json(self._rules.profile),
            "profile_id": self._rules.profile_id.hex(),
            "epoch": self._rules.profile.epoch(hub_ts),
            "hub_ts": hub_ts,
            "limits": asdict(self._rules.limits),
            "admission": str(self._rules.admission),
            "server_version": SERVER_VERSION,
            "labels": self.labels,
            "entries": self.entries,
            "equivocations": self._desk.equivocations,
            "trouble": self._committer.trouble or "",
        }

    def _hub_ts(self) -> int:
        """What the next receipt would carry: it never goes back."""
        last = [tail.batch.records[-1].hub_ts for tail in self._store.tails() if tail.batch.records]
        if not last:
            with self._store.index.read() as rows:
                last.append(rows.number("hub_ts"))
        return max(int(self._clock()), *last)

    def probe(self, path: str) -> Response:
        if path == "/metrics":
            self._metrics.queue_depth.set(self._submits.in_flight)
            self._metrics.journal_bytes.set(self._store.journal_bytes)
            return Response(200, self._metrics.text(), PROMETHEUS)
        if path == "/readyz":
            ready = not self.stopping and self._committer.trouble is None
            reason = "stopping" if self.stopping else self._committer.trouble or ""
            return Response(200 if ready else 503, jsontext.encode({"ready": ready, "reason": reason}), answers.JSON)
        return Response(200, jsontext.encode({"ok": True, "profile_id": self._rules.profile_id.hex()}), answers.JSON)
