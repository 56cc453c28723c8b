"""Admission is a function of the log (I13): a replayed history meets the same decisions, accepted and refused."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.hub.client import ISSUER, READER, SCHEMA, START, Clock, make_dir
from tests.hub.disks import QuickDisk
from veen.core import (
    Bucket,
    CapToken,
    Limits,
    Mmr,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Rate,
    Receipt,
    Refused,
    SigningKey,
    captoken,
    ciphertext,
    control,
    msg,
    naming,
)
from veen.core.signing import is_valid
from veen.hub.config import HubConfig
from veen.hub.rules import Admission, Cap, Rules, authorize, parse, sequence
from veen.hub.sequencer import Outcome, Submission, Wish
from veen.hub.service import HubService
from veen.storage import frame

EPOCH_SEC = 30
LIMITS = Limits(max_msg_bytes=1024, max_epoch_skew_sec=EPOCH_SEC)
STEPS = 220
SEEDS = range(6)


class Ledger:
    """What admission looks at, kept the plain way: from the accepted entries alone, with no disk and no cache."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._trees: dict[bytes, Mmr] = {}
        self._entries: dict[tuple[bytes, bytes, int], tuple[int, Msg]] = {}
        self._cursors: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._caps: dict[bytes, Cap] = {}
        self._buckets: dict[tuple[bytes, bytes], Bucket] = {}
        self._streams = {rules.control_stream}

    def last_seq(self, label: bytes) -> int:
        return self._trees[label].size if label in self._trees else 0

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

    def decide(self, encoded: bytes, hub_ts: int) -> Msg:
        """Every check of the table, in order. Raises `Refused`."""
        message = parse(encoded, self._rules)
        if not is_valid(message.client_id, msg.signing_digest(encoded), message.sig):
            raise Refused("E.SIG", "", stage="auth", detail_enum="SIG_INVALID")
        bucket = authorize(message, self, self._rules, hub_ts)
        sequence(message, self, self._rules, hub_ts)
        if bucket is not None and message.auth_ref is not None:
            self._buckets[message.auth_ref, message.label] = bucket
        return message

    def append(self, message: Msg, receipt: Receipt) -> None:
        """Take an accepted entry, which must fit."""
        tree = self._trees.setdefault(message.label, Mmr())
        tree.append(message.leaf_hash())
        assert (tree.size, tree.root()) == (receipt.stream_seq, receipt.mmr_root)
        self._entries[message.label, message.client_id, message.client_seq] = (tree.size, message)
        self._cursors[message.label, message.client_id] = (message.client_seq, message.prev_ack)
        if message.client_id == self._rules.control_pk:
            self._learn(control.event_of(self._rules.hub_id, message, self._rules.limits), receipt.hub_ts)

    def _learn(self, event: control.Event, hub_ts: int) -> None:
        if isinstance(event, bytes):
            self._streams.add(event)
            return
        self._caps[event.auth_ref()] = Cap(event, hub_ts, event.rate_under(self._rules.limits))
        self._streams |= set(event.allow.stream_ids)


@dataclass
class Step:
    """One submission or event, at one time, and what came of it."""

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
    """Writes a random history against a hub's own sequencer, committing as the hub does."""

    service: HubService
    clock: Clock
    dice: random.Random
    steps: list[Step] = field(default_factory=list)
    keys: list[SigningKey] = field(default_factory=list)
    tokens: list[CapToken] = field(default_factory=list)
    sent: list[Msg] = field(default_factory=list)
    cursors: dict[tuple[bytes, bytes], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = [SigningKey(self.dice.randbytes(32)) for _ in range(4)]

    def write(self, steps: int) -> None:
        for _ in range(steps):
            roll = self.dice.random()
            if roll < 0.08:
                self.clock.now += self.dice.choice([1, 1, 2, 5, EPOCH_SEC, -3])
            elif roll < 0.16:
                self._event()
            elif roll < 0.20:
                self._catch_up()
            else:
                self._submit()

    def _catch_up(self) -> None:
        store = self.service.store
        if tail := store.begin_catching_up():
            store.catch_up(tail)
            store.end_catching_up()

    def _event(self) -> None:
        dice = self.dice
        event: control.Event = self._stream()
        if dice.random() < 0.8:
            rate = dice.choice([None, Rate(1, 2), Rate(0, 3), Rate(2, 5)])
            streams = {self._stream() for _ in range(dice.choice([1, 2]))}
            event = captoken.mint(ISSUER, dice.choice(self.keys).public_key, streams, dice.choice([3, 20, 500]), rate)
            self.tokens.append(event)
        self._run(Wish(event, lambda outcome: None), None)

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

    def _run(self, item: Submission | Wish, encoded: bytes | None) -> Outcome:
        sequencer, store = self.service.sequencer, self.service.store
        sequencer.decide([item])
        group = sequencer.take()
        if group.batch.records:
            store.committed(group.batch, store.commit(group.batch))
        sequencer.keep()
        _, outcome = group.outcomes[0]
        known = isinstance(item, Wish) and not group.batch.records
        if not known:
            message = encoded if encoded is not None else frame.read(group.batch.records[0].frame)[0].msg
            hub_ts = Receipt.decode(outcome).hub_ts if isinstance(outcome, bytes) else self._now()
            self.steps.append(Step(message, hub_ts, outcome))
        return outcome

    def _now(self) -> int:
        """The hub's time."""
        return max(int(self.clock.now), self.service.sequencer._state.hub_ts)

    def _stream(self) -> bytes:
        return naming.stream_id(self.dice.choice(["a", "b", "c"]))

    def _encoded(self) -> bytes:
        """A message that is often right, and otherwise wrong in one or two ways."""
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
        sealed = ciphertext.seal(READER.public_key, place, PayloadHdr(SCHEMA), b"x", rules.profile.pad_block)
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
    """What happened, and the rules it happened under."""

    rules: Rules
    steps: list[Step]


@contextmanager
def opened(data_dir: Path, admission: Admission, clock: Clock) -> Iterator[HubService]:
    """A hub that serves nobody: the test is its only client."""
    service = HubService(HubConfig(data_dir, port=0, admission=admission), disk=QuickDisk(), clock=clock)
    try:
        yield service
    finally:
        service.store.close()


def history(tmp_path: Path, seed: int, admission: Admission, epoch_sec: int) -> History:
    """A random history over two runs of one hub."""
    data_dir, clock = make_dir(tmp_path, Profile(epoch_sec=epoch_sec), LIMITS), Clock(START + 1000)
    with opened(data_dir, admission, clock) as service:
        author = Author(service, clock, random.Random(seed))
        author.write(STEPS // 2)
    with opened(data_dir, admission, clock) as service:
        author.service = service
        author.write(STEPS // 2)
    return History(service.rules, author.steps)


CASES = [(seed, admission, epoch_sec) for seed in SEEDS for admission in Admission for epoch_sec in (0, EPOCH_SEC)]


@pytest.mark.parametrize(("seed", "admission", "epoch_sec"), CASES)
def test_a_replayed_history_meets_the_same_decisions(
    tmp_path: Path, seed: int, admission: Admission, epoch_sec: int
) -> None:
    found = history(tmp_path, seed, admission, epoch_sec)
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


def test_a_refusal_at_a_prefix_repeats_at_that_prefix(tmp_path: Path) -> None:
    """Each refusal is judged anew on a ledger built from nothing but the entries before it."""
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
