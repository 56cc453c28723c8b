"""Admission is a function of the log (I13): a replayed history gets the same decisions, accepted and rejected."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.hub.client import ISSUER, READER, SCHEMA, START, Clock, make_dir
from tests.hub.disks import QuickDisk
from tests.storage import hubs
from veen.core import (
    Bucket,
    CapToken,
    Limits,
    Malformed,
    Mmr,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Rate,
    Receipt,
    Refused,
    SigningKey,
    admin,
    cap_token,
    ciphertext,
    control_stream,
    msg,
    naming,
    wire_json,
)
from veen.core.admin import Authority, AuthorityPolicy, OperatorRevocation, Revocation, RevocationKind
from veen.core.checkpoint import RequestedCheckpoint
from veen.core.control_stream import EpochEnd
from veen.core.handover import HandOver
from veen.core.hashing import h
from veen.core.profile import LimitRegistry, LoweredLimits
from veen.core.recovery import RecoveryStatement
from veen.core.retention import AttachmentPrune, Hold, Prune, RetentionPolicy
from veen.core.signing import is_valid
from veen.hub.admission_rules import (
    Admission,
    Cap,
    LimitsInForce,
    Revoker,
    Rules,
    authorize,
    parse,
    revocable,
    sequence,
)
from veen.hub.admission_state import ControlEvent, Outcome, Submission
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage import frame, fsck, metadata
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders

EPOCH_SEC = 30
LIMITS = Limits(max_msg_bytes=1024, max_epoch_skew_sec=EPOCH_SEC)
REALM = naming.realm_id("histories")
BOUNDED = replace(LIMITS, max_client_id_lifetime_sec=60, max_msgs_per_client_id_per_label=12)
STEPS = 220
DAY = 86_400
LOWER = {
    "max_msg_bytes": [1000, 900, 700],
    "max_body_bytes": [1000, 200],
    "max_cap_rate_per_sec": [50, 2, 1],
    "max_cap_rate_burst": [50, 4, 2],
    "max_client_id_lifetime_sec": [100, 60, 20],
    "max_msgs_per_client_id_per_label": [20, 12, 5],
}
SEEDS = range(6)


class Ledger:
    """A plain model of the admission state: built from accepted entries only, without disk and cache."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._trees: dict[bytes, Mmr] = {}
        self._entries: dict[tuple[bytes, bytes, int], tuple[int, Msg]] = {}
        self._cursors: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._caps: dict[bytes, Cap] = {}
        self._buckets: dict[tuple[bytes, bytes], Bucket] = {}
        self._streams = {rules.control_stream, *rules.admin_streams}
        self._first: dict[tuple[bytes, bytes], int] = {}
        self._admin_events: list[admin.Event] = []
        self.realm = self

    def tree(self, label: bytes) -> Mmr:
        return self._trees.setdefault(label, Mmr())

    def cursor(self, label: bytes, client_id: bytes) -> tuple[int, int] | None:
        return self._cursors.get((label, client_id))

    def cap(self, auth_ref: bytes) -> Cap | None:
        return self._caps.get(auth_ref)

    def bucket(self, auth_ref: bytes, label: bytes) -> Bucket | None:
        return self._buckets.get((auth_ref, label))

    def stream_of(self, label: bytes, hub_ts: int) -> bytes | None:
        profile, skew = self._rules.profile, self._rules.limits.max_epoch_skew_sec
        around = profile.epoch(hub_ts) if profile.epoch_sec else 0
        for stream in self._streams:
            for epoch in range(max(0, around - 5), around + 6):
                fits = profile.accepts_epoch(epoch, hub_ts, skew)
                if fits and naming.label(self._rules.routing_key, stream, epoch) == label:
                    return stream
        return None

    def accepted_at(self, message: Msg) -> int | None:
        found = self._entries.get((message.label, message.client_id, message.client_seq))
        return found[0] if found and found[1] == message else None

    def first_ts(self, label: bytes, client_id: bytes) -> int | None:
        return self._first.get((label, client_id))

    def revoker(self, kind: RevocationKind, target: bytes, hub_ts: int) -> Revoker | None:
        applying = [
            event
            for event in self._admin_events
            if isinstance(event, Revocation)
            and (event.kind, event.target) == (kind, target)
            and event.applies_at(hub_ts)
        ]
        if any(isinstance(event, OperatorRevocation) for event in applying):
            return Revoker.OPERATOR
        return Revoker.REALM if applying else None

    def authority(self, label: bytes, stream: bytes | None, hub_ts: int) -> Authority | None:
        records = [event for event in self._admin_events if isinstance(event, Authority)]
        return admin.active([one for one in records if self._is_of(label, stream, one)], hub_ts)

    def _is_of(self, label: bytes, stream: bytes | None, record: Authority) -> bool:
        if stream is None and not self._rules.profile.epoch_sec:
            return label == naming.label(self._rules.routing_key, record.stream_id, 0)
        return stream == record.stream_id

    def decide(self, encoded: bytes, hub_ts: int) -> Msg:
        """Every check of the table, in order. Raises `Refused`."""
        self._rules.limits_in_force.hub_ts = lambda: hub_ts
        message = parse(encoded, self._rules_for(encoded))
        if not is_valid(message.client_id, msg.signing_digest(encoded), message.sig):
            raise Refused("E.SIG", "", stage="auth", detail_enum="SIG_INVALID")
        stream = self.stream_of(message.label, hub_ts)
        bucket = authorize(message, stream, self, self._rules, self._rules.limits_at(hub_ts), hub_ts)
        sequence(message, stream, self, self._rules, hub_ts)
        if bucket is not None and message.auth_ref is not None:
            self._buckets[message.auth_ref, message.label] = bucket
        return message

    def _rules_for(self, encoded: bytes) -> Rules:
        """The hub's own events are not subject to its limits."""
        own = self._rules.control_pk in encoded and is_own(encoded, self._rules)
        return replace(self._rules, limits_in_force=LimitsInForce(LimitRegistry(Limits()))) if own else self._rules

    def append(self, message: Msg, receipt: Receipt) -> None:
        """Apply an accepted entry, which must match."""
        tree = self.tree(message.label)
        tree.append(message.leaf_hash())
        assert (tree.size, tree.root()) == (receipt.stream_seq, receipt.mmr_root)
        self._entries[message.label, message.client_id, message.client_seq] = (tree.size, message)
        self._cursors[message.label, message.client_id] = (message.client_seq, message.prev_ack)
        self._first.setdefault((message.label, message.client_id), receipt.hub_ts)
        stream = self.stream_of(message.label, receipt.hub_ts)
        if self._rules.realm_id and stream and message.auth_ref:
            event = admin.event_of(self._rules.realm_id, stream, message, Limits())
            self._admin_events += [event] if event else []
        if message.client_id == self._rules.control_pk:
            self._learn(control_stream.event_of(self._rules.hub_id, message, Limits()), receipt.hub_ts)

    def _learn(self, event: control_stream.Event, hub_ts: int) -> None:
        if isinstance(event, control_stream.RegisteredStream):
            self._streams.add(event.stream_id)
            return
        logged_only = HandOver | RecoveryStatement | RequestedCheckpoint | EpochEnd
        if isinstance(event, logged_only | Prune | AttachmentPrune | RetentionPolicy | Hold):
            return  # it is logged for auditors only
        if isinstance(event, OperatorRevocation):
            self._admin_events.append(event)
            return
        if isinstance(event, LoweredLimits):
            in_force = self._rules.limits_in_force
            in_force.registry = in_force.registry.lowered(event, hub_ts)
            return
        self._caps[event.auth_ref()] = Cap.of(event, hub_ts, self._rules.limits)
        self._streams |= set(cap_token.token_of(event).allow.stream_ids)


def is_own(encoded: bytes, rules: Rules) -> bool:
    try:
        return Msg.decode(encoded).client_id == rules.control_pk
    except Malformed:
        return False


@dataclass
class Step:
    """One submission or event at one time, and its outcome."""

    encoded: bytes
    hub_ts: int
    outcome: Outcome

    @property
    def why(self) -> str:
        if isinstance(self.outcome, Refused):
            return self.outcome.detail_enum or self.outcome.code
        return "accepted"


@dataclass
class Author:
    """Writes a random history with a hub's own sequencer, committing as the hub does."""

    service: HubService
    clock: Clock
    dice: random.Random
    steps: list[Step] = field(default_factory=list)
    keys: list[SigningKey] = field(default_factory=list)
    tokens: list[CapToken] = field(default_factory=list)
    sent: list[Msg] = field(default_factory=list)
    cursors: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    admins: list[bytes] = field(default_factory=list)
    jumps: bool = False  # whether the wall clock also jumps by days
    lowers: bool = False  # whether the operator lowers limits

    def __post_init__(self) -> None:
        self.keys = [SigningKey(self.dice.randbytes(32)) for _ in range(4)]
        self.admins = sorted(self.service.rules.admin_streams)

    def write(self, steps: int) -> None:
        for _ in range(steps):
            roll = self.dice.random()
            if roll < 0.08:
                self.clock.now += self.dice.choice([1, 1, 2, 5, EPOCH_SEC, -3])
                if self.jumps:
                    self._jump()
            elif roll < 0.16:
                self._event()
            elif roll < 0.20:
                self._catch_up()
            else:
                self._submit()

    def _jump(self) -> None:
        self.clock.step(self.dice.choice([0, 0, 3, DAY, -DAY, 400 * DAY, -400 * DAY]))
        if self.dice.random() < 0.2:
            self.service.time.accept()

    def _catch_up(self) -> None:
        store = self.service.store
        if tail := store.begin_catching_up():
            store.catch_up(tail)
            store.end_catching_up()

    def _event(self) -> None:
        dice = self.dice
        if self.lowers and dice.random() < 0.3:
            self._lower()
            return
        event: control_stream.Event = control_stream.RegisteredStream(self._stream())
        if dice.random() < 0.8:
            rate = dice.choice([None, Rate(1, 2), Rate(0, 3), Rate(2, 5)])
            streams = {self._stream() for _ in range(dice.choice([1, 2]))}
            token = cap_token.mint(ISSUER, dice.choice(self.keys).public_key, streams, dice.choice([3, 20, 500]), rate)
            self.tokens.append(token)
            event = self._presented(token)
            self._revoke(token)
        self._run(ControlEvent(event, lambda outcome: None), None)

    def _revoke(self, token: CapToken) -> None:
        """Sometimes the operator revokes a token or its key, for a short time."""
        dice = random.Random(token.auth_ref())
        if dice.random() < 0.1:
            names = (*revocable(token), (RevocationKind.CLIENT_ID, token.subject_pk))
            kind, target = dice.choice(names)
            event = OperatorRevocation(kind, target, None, self._now(), dice.choice([1, 2, 5]))
            self._run(ControlEvent(event, lambda outcome: None), None)

    def _presented(self, token: CapToken) -> control_stream.Event:
        """The token itself, or a presentation of it or of an older one. Has dice of its own: most histories stay."""
        dice = random.Random(token.encode())
        if dice.random() < 0.4:
            return token
        if dice.random() < 0.1:
            token = dice.choice(self.tokens)
        end = int(self.clock.now) + dice.choice([-1, 5, *[1000] * 6])
        return cap_token.present(ISSUER, token, self.service.rules.hub_id, end)

    def _lower(self) -> None:
        before = self.service.rules.limits_in_force.registry.limits
        name, values = self.dice.choice(list(LOWER.items()))
        after = replace(before, **{name: self.dice.choice(values)})
        if before.refusal(after) is None:
            self._run(ControlEvent(LoweredLimits(before, after), lambda outcome: None), None)

    def _submit(self) -> None:
        encoded = self._encoded()
        try:
            message = parse(encoded, self.service.rules)
            if not is_valid(message.client_id, msg.signing_digest(encoded), message.sig):
                raise Refused("E.SIG", "", stage="auth", detail_enum="SIG_INVALID")
        except Refused as refused:
            self.steps.append(Step(encoded, self._now(), refused))
            return
        if isinstance(self._run(Submission(message, encoded, lambda outcome: None), encoded), bytes):
            self.cursors[message.label, message.client_id] = message.client_seq

    def _run(self, item: Submission | ControlEvent, encoded: bytes | None) -> Outcome:
        sequencer, store = self.service.sequencer, self.service.store
        group = hubs.decided(sequencer, self.service.signer, [item])
        if group.records:
            store.pending.add_group(group, store.commit(group))
        sequencer.state.keep()
        (outcome,) = hubs.outcomes(group)
        known = isinstance(item, ControlEvent) and not group.records
        if not known:
            message = encoded if encoded is not None else frame.read(group.records[0].frame)[0].msg
            hub_ts = Receipt.decode(outcome).hub_ts if isinstance(outcome, bytes) else self._now()
            self.steps.append(Step(message, hub_ts, outcome))
        return outcome

    def _now(self) -> int:
        """The hub's time."""
        return self.service.sequencer.hub_ts

    def _stream(self) -> bytes:
        return self.dice.choice([*(naming.stream_id(name) for name in "abc"), *self.admins])

    def _payload(self, stream: bytes) -> tuple[bytes, bytes, bytes]:
        """Recipients, schema and body of a message; on an admin stream mostly a valid record."""
        if stream not in self.admins or self.dice.random() < 0.2:
            return READER.public_key, SCHEMA, b"x"
        event = self._record(stream if self.dice.random() < 0.9 else self.dice.choice(self.admins))
        body = event.encode() if self.dice.random() < 0.9 else event.encode()[:-1]
        return admin.reader_key(stream).public_key, event.SCHEMA, body

    def _record(self, stream: bytes) -> admin.Event:
        """A record about existing things, for times around now."""
        dice, ts, ttl = self.dice, self._now() + self.dice.choice([-40, -2, 0, 3]), self.dice.choice([1, 5, 60])
        if stream == admin.fed_admin_stream(REALM):
            primary = dice.choice([self.service.rules.hub_id, bytes(32)])
            realm = dice.choice([REALM, REALM, REALM, bytes(32)])
            return Authority(realm, self._stream(), primary, (), dice.choice(list(AuthorityPolicy)[:2]), ts, ttl)
        kind = dice.choice(list(RevocationKind))
        token = dice.choice(self.tokens) if self.tokens else None
        target = dice.choice(self.keys).public_key
        if token and kind != RevocationKind.CLIENT_ID:
            target = token.auth_ref() if kind == RevocationKind.AUTH_REF else h(token.encode())
        return Revocation(kind, target, None, ts, dice.choice([1, 2, 5, ttl] * 4 + [None]))

    def _encoded(self) -> bytes:
        """A message that is often valid, and otherwise has one or two faults."""
        dice, rules = self.dice, self.service.rules
        if self.sent and dice.random() < 0.08:
            return dice.choice(self.sent).encode()
        token = dice.choice(self.tokens) if self.tokens and dice.random() < 0.9 else None
        key = next((key for key in self.keys if token and key.public_key == token.subject_pk), dice.choice(self.keys))
        stream = dice.choice(token.allow.stream_ids) if token else self._stream()
        epoch = rules.profile.epoch(self._now())
        place = Place(
            rules.profile_id,
            naming.label(rules.routing_key, stream, epoch),
            key.public_key,
            0,
            0,
            token.auth_ref() if token else None,
        )
        place = replace(place, client_seq=self.cursors.get((place.label, place.client_id), 0) + 1)
        for _ in range(dice.choice([0, 0, 0, 0, 1, 1, 2])):
            place = replace(place, **self._fault(place, stream, epoch))
        reader_pk, schema, body = self._payload(stream)
        sealed = ciphertext.seal(reader_pk, place, PayloadHdr(schema), body, rules.profile.pad_block)
        signer = key if dice.random() < 0.97 else self.keys[0]
        message = msg.sign(
            signer,
            profile_id=place.profile_id,
            label=place.label,
            client_seq=place.client_seq,
            prev_ack=place.prev_ack,
            auth_ref=place.auth_ref,
            ciphertext=sealed if dice.random() < 0.97 else sealed + bytes(1024),
        )
        message = replace(message, client_id=place.client_id)
        self.sent.append(message)
        encoded = message.encode()
        return encoded if dice.random() < 0.97 else encoded[:-1]

    def _fault(self, place: Place, stream: bytes, epoch: int) -> dict[str, Any]:
        dice, rules = self.dice, self.service.rules
        return dice.choice(
            [
                {"client_seq": dice.choice([0, max(place.client_seq - 1, 0), place.client_seq + 1, 99])},
                {"prev_ack": dice.choice([1, 2, 1000])},
                {"label": naming.label(rules.routing_key, stream, max(0, epoch + dice.choice([-3, -1, 1, 3])))},
                {"label": naming.label(rules.routing_key, self._stream(), epoch)},
                {"label": naming.label(rules.routing_key, rules.control_stream, epoch)},
                {"auth_ref": dice.choice([None, bytes(32)])},
                {"auth_ref": dice.choice(self.tokens).auth_ref() if self.tokens else None},
                {"profile_id": bytes(32)},
            ]
        )


@dataclass
class History:
    """The steps, and the rules they were decided by."""

    rules: Rules
    steps: list[Step]
    data_dir: Path


@contextmanager
def opened(data_dir: Path, admission: Admission, clock: Clock) -> Iterator[HubService]:
    """A hub without server: the test is its only client."""
    config = HubConfig(data_dir, port=0, admission=admission, max_start_gap=100_000 * DAY)
    service = HubService(config, disk=QuickDisk(), clocks=clock.read)
    try:
        yield service
    finally:
        service.close()


def history(
    tmp_path: Path,
    seed: int,
    admission: Admission,
    epoch_sec: int,
    limits: Limits = LIMITS,
    *,
    realm: bool = False,
    jumps: bool = False,
    lowers: bool = False,
) -> History:
    """A random history over two runs of one hub."""
    realm_id = REALM if realm else None
    data_dir = make_dir(tmp_path, Profile(epoch_sec=epoch_sec), limits, realm_id=realm_id)
    clock = Clock(START + 1000)
    with opened(data_dir, admission, clock) as service:
        author = Author(service, clock, random.Random(seed), jumps=jumps, lowers=lowers)
        author.write(STEPS // 2)
    with opened(data_dir, admission, clock) as service:
        author.service = service
        author.write(STEPS // 2)
    return History(service.rules, author.steps, data_dir)


CASES = [(seed, admission, epoch_sec) for seed in SEEDS for admission in Admission for epoch_sec in (0, EPOCH_SEC)]


@pytest.mark.parametrize(("seed", "admission", "epoch_sec"), CASES)
def test_a_replayed_history_meets_the_same_decisions(
    tmp_path: Path, seed: int, admission: Admission, epoch_sec: int
) -> None:
    check_replay(history(tmp_path, seed, admission, epoch_sec), seed)


@pytest.mark.parametrize(("seed", "admission", "epoch_sec"), CASES)
def test_a_replayed_history_of_a_realm_meets_the_same_decisions(
    tmp_path: Path, seed: int, admission: Admission, epoch_sec: int
) -> None:
    check_replay(history(tmp_path, seed, admission, epoch_sec, BOUNDED, realm=True), seed)


@pytest.mark.parametrize(("seed", "admission", "epoch_sec"), CASES)
def test_a_replayed_history_with_jumps_of_the_clock_meets_the_same_decisions(
    tmp_path: Path, seed: int, admission: Admission, epoch_sec: int
) -> None:
    found = history(tmp_path, seed, admission, epoch_sec, jumps=True)
    times = [step.hub_ts for step in found.steps if step.why == "accepted"]
    assert times == sorted(times)
    check_replay(found, seed)


@pytest.mark.parametrize(("seed", "admission", "epoch_sec"), CASES[:12])
def test_a_replayed_history_with_lowered_limits_meets_the_same_decisions(
    tmp_path: Path, seed: int, admission: Admission, epoch_sec: int
) -> None:
    found = history(tmp_path, seed, admission, epoch_sec, lowers=True)
    registry = found.rules.limits_in_force.registry
    assert registry.earlier, f"seed {seed} lowers no limit"
    fresh = replace(found.rules, limits_in_force=LimitsInForce(LimitRegistry(LIMITS)))
    check_replay(replace(found, rules=fresh), seed)
    assert fresh.limits_in_force.registry == registry
    checked = fsck.check(found.data_dir)  # the files were not written since the last start
    assert checked.verdict is FsckVerdict.CLEAN
    assert {finding.artifact for finding in checked.findings} <= {"limits.json"}
    # An index that is rebuilt from the log, and files that do not know the events, end in the same state.
    folders, clock = Folders(found.data_dir), Clock(found.steps[-1].hub_ts)
    before = registry_rows(found.data_dir, admission, clock)
    folders.limit_history.unlink()
    folders.limits.write_bytes(wire_json.encode(LIMITS))
    shutil.rmtree(folders.index)
    assert registry_rows(found.data_dir, admission, clock) == before
    assert metadata.read_metadata(folders).limit_registry == registry


def registry_rows(data_dir: Path, admission: Admission, clock: Clock) -> list[tuple[str, bytes, bytes]]:
    """The rows of capabilities, rates, streams and limits in the index when the log has caught up."""
    with opened(data_dir, admission, clock) as service:
        if tail := service.store.begin_catching_up():
            service.store.catch_up(tail)
            service.store.end_catching_up()
        with service.store.index.read() as rows:
            found = [(table, *row) for table in ("caps", "buckets", "streams") for row in rows.all_rows(table)]
            limits = rows.limits()
            assert limits is not None
            return [*found, ("limits", b"", limits.encode())]


def check_replay(found: History, seed: int) -> None:
    ledger = Ledger(found.rules)
    for step in found.steps:
        again = replayed(ledger, step)
        if isinstance(step.outcome, Refused):
            assert isinstance(again, Refused), f"seed {seed}: {step.why} was accepted on replay"
            assert shown(again) == shown(step.outcome)
        else:
            assert isinstance(again, Msg), f"seed {seed}: an accepted entry was refused on replay: {again}"
            ledger.append(again, Receipt.decode(step.outcome))


def replayed(ledger: Ledger, step: Step) -> Msg | Refused:
    try:
        return ledger.decide(step.encoded, step.hub_ts)
    except Refused as refused:
        return refused


def shown(refused: Refused) -> tuple[object, ...]:
    detail = refused.detail if refused.detail_enum != "SIG_INVALID" else None
    return refused.code, refused.stage, refused.detail_enum, detail, refused.retry_after


def test_the_histories_meet_every_kind_of_decision(tmp_path: Path) -> None:
    """Otherwise the test above would prove little."""
    seen: Counter[str] = Counter()
    for number, (seed, admission, epoch_sec) in enumerate(CASES[:8]):
        (tmp_path / str(number)).mkdir()
        seen.update(step.why for step in history(tmp_path / str(number), seed, admission, epoch_sec).steps)
    expected = {
        "accepted",
        "SIZE_PREFILTER",
        "CBOR_INVALID",
        "PROFILE",
        "SIG_INVALID",
        "CAP_MISSING",
        "AUTH_REF",
        "CAP_TTL",
        "CAP_RATE",
        "PREV_ACK",
        "DUPLICATE",
        "CLIENT_SEQ",
        "EPOCH",
    }
    assert set(seen) >= expected, expected - set(seen)
    assert seen["accepted"] > 200


def test_the_histories_of_a_realm_meet_what_a_realm_refuses(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for number, (seed, admission, epoch_sec) in enumerate(CASES[:20]):
        (tmp_path / str(number)).mkdir()
        found = history(tmp_path / str(number), seed, admission, epoch_sec, BOUNDED, realm=True)
        refused = [step.outcome for step in found.steps if isinstance(step.outcome, Refused)]
        seen.update(f"{one.detail_enum}: {one.message[:25]}" for one in refused)
        seen["accepted"] += len(found.steps) - len(refused)
    expected = {
        "CAP_MISSING: writing to this admin str",
        "CAP_INVALID: the capability is revoked",
        "AUTH_REF: the client_id is revoked",
        "AUTH_REF: not primary for label",
        "AUTH_REF: a client_id may write at ",
        "AUTH_REF: a client_id may be used f",
    }
    assert set(seen) >= expected, (expected - set(seen), seen)
    assert seen["accepted"] > 200


def test_a_refusal_at_a_prefix_repeats_at_that_prefix(tmp_path: Path) -> None:
    """Each rejection is repeated on a ledger built only from the entries before it."""
    found = history(tmp_path, 99, Admission.CAPABILITY, EPOCH_SEC)
    refusals = [number for number, step in enumerate(found.steps) if isinstance(step.outcome, Refused)]
    for number in refusals[:: max(1, len(refusals) // 20)]:
        ledger = Ledger(found.rules)
        for step in found.steps[:number]:
            if isinstance(step.outcome, bytes):
                again = replayed(ledger, step)
                assert isinstance(again, Msg)
                ledger.append(again, Receipt.decode(step.outcome))
        again, outcome = replayed(ledger, found.steps[number]), found.steps[number].outcome
        assert isinstance(again, Refused)
        assert isinstance(outcome, Refused)
        assert shown(again) == shown(outcome)
