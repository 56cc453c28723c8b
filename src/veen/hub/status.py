"""What a hub says of itself: status and metrics; its health is asked through here, too."""

from collections.abc import Callable
from itertools import islice

from veen.core import HubIdentity, IdentitySignature, naming
from veen.core.jsonform import to_json
from veen.core.jsontext import Json
from veen.core.limits import SERVER_VERSION
from veen.http.message import Response
from veen.hub.committer import CommitReport
from veen.hub.conditions import Conditions, Reason
from veen.hub.health import Health
from veen.hub.metrics import Metrics
from veen.hub.papers import PaperDesk
from veen.hub.realm import Realm
from veen.hub.rules import Rules
from veen.hub.sequencer import Group
from veen.hub.submits import Submits
from veen.storage.store import Store

MAX_SHOWN_LABELS = 1000
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class Status:
    """Answers from memory: cheap enough to ask every second."""

    def __init__(
        self,
        identity: HubIdentity,
        signature: IdentitySignature,
        rules: Rules,
        store: Store,
        conditions: Conditions,
        submits: Submits,
        desk: PaperDesk,
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
        self._submits = submits
        self._metrics = metrics
        self._clock = clock
        self._realm = realm
        self._pow_difficulty = pow_difficulty
        self._desk = desk
        with store.index.read() as rows:
            self.entries, self.labels = rows.entry_count(), rows.label_count()
            label = rows.newest()
            newest = rows.head(label) if label else None
        self.health = Health(rules, store, conditions, newest)
        # What was replayed from the journal is not in the index yet.
        for tail in store.tails():
            self.entries += len(tail.batch.records)
            self.labels += sum(record.stream_seq == 1 for record in tail.batch.records)

    def committed(self, group: Group, report: CommitReport) -> None:
        """A group is durable or, with nothing left of it, the disk refused it."""
        records = group.batch.records
        control_pk = self._rules.control_pk  # what the hub logs itself was not submitted
        self._metrics.committed(report, len(records), sum(record.client_id != control_pk for record in records))
        if records:
            self.entries += len(records)
            self.labels += sum(record.stream_seq == 1 for record in records)
            self.health.committed(group)
        elif report.entries:
            self.health.look()

    def shown(self) -> Json:
        """GET /tooling/status."""
        self.health.look()
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
            "equivocations": self._desk.equivocations,
            "trouble": "; ".join(bad.values()),
            "bad_states": [self._shown_state(reason, text) for reason, text in bad.items()],
        }

    def _shown_state(self, reason: Reason, text: str) -> Json:
        return {"reason": str(reason), "text": text, "refused": self._conditions.refused(reason)}

    def _multi_primary(self, hub_ts: int) -> list[bytes]:
        """The labels of now that other hubs may write to as well: their trees differ from hub to hub."""
        epoch = self._rules.profile.epoch(hub_ts)
        streams = islice(self._realm.multi_primary(hub_ts), MAX_SHOWN_LABELS)
        return sorted(naming.label(self._rules.routing_key, stream, epoch) for stream in streams)

    def _hub_ts(self) -> int:
        """What the next receipt would carry: it never goes back."""
        last = [tail.batch.records[-1].hub_ts for tail in self._store.tails() if tail.batch.records]
        if not last:
            with self._store.index.read() as rows:
                last.append(rows.number("hub_ts"))
        return max(int(self._clock()), *last)

    def probe(self, path: str) -> Response:
        if path == "/metrics":
            self.health.look()
            self._metrics.queue_depth.set(self._submits.in_flight)
            self._metrics.journal_bytes.set(self._store.journal_bytes)
            self._metrics.revocations.set(self._realm.revocations)
            self._metrics.multi_primary.set(sum(1 for _ in self._realm.multi_primary(self._hub_ts())))
            return Response(200, self._metrics.text(), PROMETHEUS)
        if path == "/readyz":
            return self.health.ready()
        return self.health.alive()
