"""Permission to write: capabilities, control stream, epochs and registered streams, before and after a restart."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import ISSUER, START, TOKEN, Clock, Hub, Writer, make_dir, running
from tests.hub.disks import NoLogDisk
from veen.core import CapToken, Limits, Profile, Rate, Receipt, SigningKey, cap_token, control_stream, naming, wire_json
from veen.core.envelopes import (
    AuthorizeResponse,
    CheckpointRequest,
    CheckpointResponse,
    StreamRegistration,
    StreamRequest,
    StreamResponse,
)
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_STREAMS
from veen.hub.admission_rules import Admission

CAPABILITY: dict[str, Any] = {"admission": Admission.CAPABILITY}
EPOCH_SEC = 60
EPOCHS = Profile(epoch_sec=EPOCH_SEC)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    with running(make_dir(tmp_path), clock, **CAPABILITY) as found:
        yield found


def token_for(key: SigningKey, *streams: str, issuer: SigningKey = ISSUER, **given: Any) -> CapToken:
    ids = [naming.stream_id(stream) for stream in streams or ("s",)]
    return cap_token.mint(issuer, key.public_key, ids, given.pop("ttl", 100), **given)


def logged(hub: Hub, epoch: int | None = None) -> list[control_stream.Event]:
    """The control stream as an auditor reads it."""
    rules = hub.service.rules
    label = hub.label(rules.control_stream, epoch)
    reply = hub.post("/v1/stream", StreamRequest(label, 1))
    if reply.status == 404:
        return []
    return [control_stream.event_of(rules.hub_id, item.msg, rules.limits) for item in reply.read(StreamResponse).items]


def detail_of(hub: Hub, writer: Writer, **given: Any) -> str | None:
    return hub.submit(writer.message(**given)).refusal()[3]


# Authorising.


def test_a_trusted_issuers_capability_lets_its_subject_write(hub: Hub) -> None:
    key = SigningKey.generate()
    token = token_for(key)
    answer = hub.authorize(token).read(AuthorizeResponse)
    assert answer.auth_ref == token.auth_ref()
    assert answer.expires_at == answer.receipt.hub_ts + 100
    answer.receipt.verify_signature(hub.hub_pk)
    assert answer.receipt.label == hub.label(hub.service.rules.control_stream)
    assert hub.writer("s", key, token).send().stream_seq == 1


def test_authorize_answers_json_with_json(hub: Hub) -> None:
    token = token_for(SigningKey.generate())
    first = hub.post_json("/tooling/authorize", hub.presented(token))
    assert first.is_json
    assert first.read(AuthorizeResponse) == hub.authorize(token).read(AuthorizeResponse)
    assert first.body == wire_json.encode(first.read(AuthorizeResponse))


def test_the_largest_capability_can_be_shown_in_both_forms(hub: Hub) -> None:
    streams = [number.to_bytes(32, "big") for number in range(MAX_CAP_STREAMS)]
    token = cap_token.mint(ISSUER, bytes(32), streams, 1000, Rate(1, 1))
    for _ in range(MAX_CAP_CHAIN - 1):
        token = cap_token.resign(token, ISSUER)
    reply = hub.post_json("/tooling/authorize", hub.presented(token))
    assert reply.read(AuthorizeResponse).auth_ref == token.auth_ref()
    assert hub.authorize(token).read(AuthorizeResponse).auth_ref == token.auth_ref()


def test_an_untrusted_issuer_is_forbidden_and_nothing_is_logged(hub: Hub) -> None:
    stranger = SigningKey.generate()
    reply = hub.authorize(token_for(SigningKey.generate(), issuer=stranger))
    assert (reply.status, reply.error().code) == (403, "E.FORBIDDEN")
    assert logged(hub) == []


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_chain_with_one_bad_link_is_refused_and_nothing_is_logged(hub: Hub, broken: int) -> None:
    token = token_for(SigningKey.generate())
    token = cap_token.resign(cap_token.resign(token, ISSUER), ISSUER)
    links = list(token.sig_chain)
    links[broken] = bytes([links[broken][0] ^ 1]) + links[broken][1:]
    reply = hub.authorize(replace(token, sig_chain=tuple(links)))
    assert reply.refusal() == (403, "E.CAP", "auth", "CAP_INVALID")
    assert logged(hub) == []


def test_repeating_an_authorisation_changes_nothing(hub: Hub, clock: Clock) -> None:
    token = token_for(SigningKey.generate())
    first = hub.authorize(token)
    clock.now += 50
    assert hub.authorize(token).body == first.body
    assert logged(hub) == [hub.presented(token)]


def test_issued_at_is_the_receipts_time_and_the_last_second_counts(hub: Hub, clock: Clock) -> None:
    clock.now += 7
    key = SigningKey.generate()
    token = token_for(key, ttl=10)
    answer = hub.authorize(token).read(AuthorizeResponse)
    assert (answer.receipt.hub_ts, answer.expires_at) == (START + 7, START + 17)
    writer = hub.writer("s", key, token)
    clock.now = START + 17
    writer.send()
    clock.now = START + 18
    assert hub.submit(writer.message()).refusal() == (400, "E.TIME", "auth", "CAP_TTL")
    # Repeating it does not renew it; a new token is a new capability.
    assert hub.authorize(token).read(AuthorizeResponse).expires_at == START + 17
    assert detail_of(hub, writer) == "CAP_TTL"
    renewed = cap_token.resign(token, ISSUER)
    hub.authorize(renewed).read(AuthorizeResponse)
    writer.auth_ref = renewed.auth_ref()
    writer.send()


def test_a_ttl_of_zero_lasts_one_second(hub: Hub, clock: Clock) -> None:
    writer = hub.granted(ttl=0)
    writer.send()
    clock.now += 1
    assert detail_of(hub, writer) == "CAP_TTL"


def test_a_rate_is_spent_and_refilled_by_the_hubs_time(hub: Hub, clock: Clock) -> None:
    writer = hub.granted(rate=Rate(per_sec=2, burst=3))
    writer.send_many(3)
    assert detail_of(hub, writer) == "CAP_RATE"
    clock.now += 1
    writer.send_many(2)
    assert detail_of(hub, writer) == "CAP_RATE"
    clock.now += 100
    writer.send_many(3)
    assert detail_of(hub, writer) == "CAP_RATE"


def test_a_refused_message_spends_nothing(hub: Hub) -> None:
    writer = hub.granted(rate=Rate(per_sec=1, burst=1))
    assert detail_of(hub, writer, client_seq=5) == "CLIENT_SEQ"
    writer.send()


def test_each_label_has_a_bucket_of_its_own(hub: Hub) -> None:
    key = SigningKey.generate()
    token = token_for(key, "a", "b", rate=Rate(per_sec=1, burst=1))
    hub.authorize(token)
    for stream in "ab":
        writer = hub.writer(stream, key, token)
        writer.send()
        assert detail_of(hub, writer) == "CAP_RATE"


def test_a_capability_is_for_its_subject_and_its_streams(hub: Hub) -> None:
    writer = hub.granted("mine")
    thief = replace(writer, key=SigningKey.generate())
    assert detail_of(hub, thief) == "AUTH_REF"
    hub.register(naming.stream_id("theirs"))
    for label in (hub.label("theirs"), hub.label("unheard of"), bytes(32)):
        assert detail_of(hub, replace(writer, label=label)) == "AUTH_REF"
    writer.send()


def test_a_message_without_a_capability_is_rejected(hub: Hub) -> None:
    assert detail_of(hub, hub.writer()) == "CAP_MISSING"
    assert detail_of(hub, hub.writer(token=token_for(SigningKey.generate()))) == "CAP_MISSING"


def test_an_open_hub_still_enforces_a_named_capability(tmp_path: Path, clock: Clock) -> None:
    with running(make_dir(tmp_path), clock) as hub:
        writer = hub.granted(ttl=5, rate=Rate(1, 1))
        writer.send()
        assert detail_of(hub, writer) == "CAP_RATE"
        assert detail_of(hub, writer, auth_ref=bytes(32)) == "CAP_MISSING"
        clock.now += 6
        assert detail_of(hub, writer) == "CAP_TTL"
        writer.auth_ref = None
        writer.send()


# The control stream.


@pytest.mark.parametrize("admission", list(Admission))
def test_the_control_stream_is_readable_by_all_and_written_only_by_the_hub(
    tmp_path: Path, admission: Admission
) -> None:
    with running(make_dir(tmp_path), admission=admission) as hub:
        rules = hub.service.rules
        first, second = token_for(SigningKey.generate()), token_for(SigningKey.generate())
        hub.authorize(first)
        hub.register(naming.stream_id("registered"))
        hub.authorize(second)
        registered = control_stream.RegisteredStream(naming.stream_id("registered"))
        assert logged(hub) == [hub.presented(first), registered, hub.presented(second)]
        writer = replace(hub.writer(), label=hub.label(rules.control_stream))
        assert hub.submit(writer.message()).refusal() == (403, "E.AUTH", "auth", "AUTH_REF")
        greedy = cap_token.mint(ISSUER, writer.key.public_key, [rules.control_stream], 100)
        hub.authorize(greedy).read(AuthorizeResponse)
        assert detail_of(hub, writer, auth_ref=greedy.auth_ref()) == "AUTH_REF"


@pytest.mark.parametrize("admission", list(Admission))
def test_a_control_message_sent_again_by_a_stranger_changes_nothing(tmp_path: Path, admission: Admission) -> None:
    with running(make_dir(tmp_path), admission=admission) as hub:
        hub.register(naming.stream_id("registered"))
        label = hub.label(hub.service.rules.control_stream)
        page = hub.post("/v1/stream", StreamRequest(label, 1)).read(StreamResponse)
        assert hub.submit(page.items[0].msg).refusal()[3] == "DUPLICATE"
        assert len(logged(hub)) == 1


def test_the_control_stream_verifies_like_any_other(hub: Hub) -> None:
    hub.granted()
    label = hub.label(hub.service.rules.control_stream)
    page = hub.post("/v1/stream", StreamRequest(label, 1, with_receipts=True)).read(StreamResponse)
    for item in page.items:
        assert item.receipt is not None
        item.msg.verify_signature()
        item.receipt.verify_signature(hub.hub_pk)
        item.receipt.check_binds(item.msg)


# Restarts.


class Story:
    """The control events before a stop, and the state that must survive it."""

    def __init__(self, hub: Hub, clock: Clock) -> None:
        self.clock = clock
        self.key, self.expiring = SigningKey.generate(), SigningKey.generate()
        self.token = token_for(self.key, rate=Rate(per_sec=1, burst=3), ttl=1000)
        self.authorised = hub.authorize(self.token).body
        self.writer = hub.writer("s", self.key, self.token)
        self.sent = self.writer.send_many(2)
        self.short = token_for(self.expiring, "t", ttl=1000)
        hub.authorize(hub.presented(self.short, int(clock.now) + 10)).read(AuthorizeResponse)
        self.registered: Receipt = hub.register(naming.stream_id("r"))
        self.old = hub.writer("t", self.expiring, self.short)
        self.old.send()
        self.last = self.writer.message(b"before the end")
        hub.submit(self.last).receipt()
        self.writer.accepted(self.last)
        self.before = hub.status()

    def check(self, hub: Hub) -> None:
        """On the next run, in the same second as the last."""
        self.writer.hub = self.old.hub = hub
        now = hub.status()
        assert {name: now[name] for name in ("hub_id", "entries", "labels")} == {
            name: self.before[name] for name in ("hub_id", "entries", "labels")
        }
        assert hub.authorize(self.token).body == self.authorised
        assert hub.register(naming.stream_id("r")) == self.registered
        assert detail_of(hub, self.writer) == "CAP_RATE"
        self.clock.now += 1
        duplicate = hub.submit(self.last)
        assert duplicate.refusal()[3] == "DUPLICATE"
        assert (duplicate.error().detail or {})["stream_seq"] == 3
        assert detail_of(hub, self.writer, client_seq=3) == "DUPLICATE"
        assert detail_of(hub, self.writer, client_seq=5) == "CLIENT_SEQ"
        assert detail_of(hub, self.writer, prev_ack=4) == "PREV_ACK"
        assert self.writer.send().stream_seq == 4
        assert detail_of(hub, self.writer) == "CAP_RATE"
        self.clock.now += 9
        self.old.send()
        self.clock.now += 1
        assert detail_of(hub, self.old) == "CAP_TTL"


def test_everything_survives_a_restart(tmp_path: Path, clock: Clock) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, clock, **CAPABILITY) as hub:
        story = Story(hub, clock)
    with running(data_dir, clock, **CAPABILITY) as hub:
        assert hub.service.replayed == 0
        story.check(hub)


def test_everything_survives_a_restart_before_the_index_has_caught_up(tmp_path: Path, clock: Clock) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, clock, NoLogDisk(), **CAPABILITY) as hub:
        story = Story(hub, clock)
    with running(data_dir, clock, NoLogDisk(), **CAPABILITY) as hub:
        assert hub.service.replayed == story.before["entries"]
        story.check(hub)
        entries = hub.status()["entries"]
    with running(data_dir, clock, Disk(), **CAPABILITY) as hub:
        assert hub.service.replayed == entries
        assert hub.status()["entries"] == entries
        assert detail_of(hub, replace(story.old, hub=hub)) == "CAP_TTL"


# Epochs.


@pytest.fixture
def epochal(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    clock.now = START - START % EPOCH_SEC + EPOCH_SEC // 2
    limits = Limits(max_epoch_skew_sec=2 * EPOCH_SEC)
    with running(make_dir(tmp_path, EPOCHS, limits, now=START - EPOCH_SEC), clock, **CAPABILITY) as hub:
        yield hub


@pytest.mark.parametrize("offset", range(-4, 5))
def test_labels_around_now_are_accepted_and_others_are_not(epochal: Hub, clock: Clock, offset: int) -> None:
    writer = epochal.granted()
    writer.label = epochal.label("s", EPOCHS.epoch(int(clock.now)) + offset)
    reply = epochal.submit(writer.message())
    if abs(offset) <= 2:
        assert reply.receipt().stream_seq == 1
    else:
        assert reply.refusal() == (400, "E.TIME", "commit", "EPOCH")


def test_the_window_moves_with_the_hubs_time(epochal: Hub, clock: Clock) -> None:
    writer = epochal.granted()
    writer.send()
    clock.now += 2 * EPOCH_SEC
    writer.send()
    clock.now += EPOCH_SEC
    assert detail_of(epochal, writer) == "EPOCH"
    fresh = replace(writer, label=epochal.label("s"), client_seq=0)
    assert fresh.send().stream_seq == 1


def test_capabilities_hold_across_epochs(epochal: Hub, clock: Clock) -> None:
    writer = epochal.granted(ttl=10 * EPOCH_SEC)
    control_label = epochal.label(epochal.service.rules.control_stream)
    clock.now += 5 * EPOCH_SEC
    assert epochal.label(epochal.service.rules.control_stream) != control_label
    later = replace(writer, label=epochal.label("s"))
    later.send()
    second = epochal.granted("t")
    second.send()
    assert len(logged(epochal)) == 1
    assert len(logged(epochal, EPOCHS.epoch(int(clock.now)) - 5)) == 1


@pytest.mark.parametrize("offset", [-2, 0, 2])
def test_the_control_stream_of_any_epoch_is_the_hubs_own(epochal: Hub, clock: Clock, offset: int) -> None:
    stream = epochal.service.rules.control_stream
    writer = replace(epochal.writer(), label=epochal.label(stream, EPOCHS.epoch(int(clock.now)) + offset))
    assert detail_of(epochal, writer) == "AUTH_REF"


def test_an_open_hub_with_epochs_takes_registered_streams_only(tmp_path: Path, clock: Clock) -> None:
    data_dir = make_dir(tmp_path, EPOCHS)
    with running(data_dir, clock) as hub:
        writer = hub.writer("named")
        assert hub.submit(writer.message()).refusal() == (400, "E.TIME", "commit", "EPOCH")
        receipt = hub.register(naming.stream_id("named"))
        receipt.verify_signature(hub.hub_pk)
        assert hub.register(naming.stream_id("named")) == receipt
        writer.send()
    with running(data_dir, clock) as hub:
        writer.hub = hub
        writer.send()
        assert detail_of(hub, hub.writer("unnamed")) == "EPOCH"


def test_registered_streams_survive_a_restart_before_the_index_has_caught_up(tmp_path: Path, clock: Clock) -> None:
    data_dir = make_dir(tmp_path, EPOCHS)
    with running(data_dir, clock, NoLogDisk()) as hub:
        receipt = hub.register(naming.stream_id("named"))
    with running(data_dir, clock) as hub:
        assert hub.register(naming.stream_id("named")) == receipt
        hub.writer("named").send()


def test_registering_a_stream_needs_the_operator(hub: Hub) -> None:
    request = StreamRegistration(naming.stream_id("x"))
    for given in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
    ):
        headers = {} if given is None else {"authorization": given}
        reply = hub.post("/tooling/streams", request, **headers)
        assert (reply.status, reply.error().code) == (401, "E.UNAUTHORIZED")
    assert logged(hub) == []


def test_a_hub_without_an_operator_token_has_no_operator(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), operator_token=None) as hub:
        for token in ("None", "x"):
            reply = hub.post("/tooling/streams", StreamRegistration(bytes(32)), authorization=f"Bearer {token}")
            assert (reply.status, reply.error().code) == (401, "E.UNAUTHORIZED")


def test_a_checkpoint_of_an_epochs_label_names_its_epoch(epochal: Hub, clock: Clock) -> None:
    rules = epochal.service.rules
    writer = epochal.granted()
    writer.send()
    clock.now += EPOCH_SEC
    later = replace(writer, label=epochal.label("s"), client_seq=0)
    later.send()
    for label in (writer.label, later.label):
        found = epochal.post("/v1/checkpoint", CheckpointRequest(label, 1)).read(CheckpointResponse).checkpoint
        assert found.label_curr == label
        found.check_labels(rules.profile, rules.routing_key, naming.stream_id("s"))
        epochal.service.hub_metadata.identity.verify_checkpoint(found, rules.profile)
