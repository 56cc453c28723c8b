"""A hub of a realm rejects messages for a stream whose primary is another hub. 001, spec-2 §2, §3."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.client import (
    READER,
    SCHEMA,
    START,
    TOKEN,
    Clock,
    Hub,
    Writer,
    hub_key,
    log_file,
    log_rows,
    make_dir,
    running,
)
from tests.hub.disks import NoLogDisk, QuickDisk
from tests.hub.realms import AUTHORITIES, OTHER_HUB, REALM, REVOCATIONS, Admin
from tests.hub.test_revocation import LIVES, granted, lives, refused
from veen.core import Profile, SigningKey, naming, receipt
from veen.core.admin import Authority, AuthorityPolicy
from veen.core.envelopes import CheckpointRequest, CheckpointResponse, Equivocation
from veen.hub.admission_rules import Admission
from veen.storage import fsck

NOT_PRIMARY = (403, "E.AUTH", "auth", "AUTH_REF")
EPOCH_SEC = 60


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=list(Admission))
def hub(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Hub]:
    with running(make_dir(tmp_path, realm_id=REALM), clock, QuickDisk(), admission=request.param) as found:
        yield found


@pytest.fixture
def admin(hub: Hub) -> Admin:
    return Admin(hub)


def own(hub: Hub) -> bytes:
    return hub.service.rules.hub_id


# Which hub accepts.


def test_a_stream_of_another_hub_is_rejected_with_its_primary_hub(hub: Hub, admin: Admin) -> None:
    writer, _ = granted(hub, "theirs")
    other, _ = granted(hub, "ours")
    writer.send()
    admin.gives("theirs", OTHER_HUB)
    reply = hub.submit(writer.message())
    assert reply.refusal() == NOT_PRIMARY
    assert reply.error().message == "not primary for label"
    assert reply.error().refused().detail["primary_hub"] == OTHER_HUB.hex()
    other.send()


def test_an_unregistered_stream_is_rejected_by_its_label(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, realm_id=REALM)) as hub:
        writer = hub.writer("theirs")
        writer.send()
        Admin(hub).gives("theirs", OTHER_HUB)
        assert refused(writer) == NOT_PRIMARY


def test_a_stream_of_this_hub_is_taken(hub: Hub, admin: Admin) -> None:
    admin.gives("s", own(hub))
    assert granted(hub)[0].send().stream_seq == 1


def test_a_stream_without_a_record_is_taken(hub: Hub, admin: Admin) -> None:
    admin.gives("another", OTHER_HUB)
    assert granted(hub)[0].send().stream_seq == 1


def test_a_stream_of_several_hubs_is_taken_and_shown(hub: Hub, admin: Admin, clock: Clock) -> None:
    admin.gives("many", OTHER_HUB, AuthorityPolicy.MULTI_PRIMARY, ttl=10)
    admin.gives("one", own(hub))
    granted(hub, "many")[0].send()
    assert hub.status()["multi_primary_labels"] == [hub.label("many").hex()]
    assert b"\nveen_multi_primary_labels 1.0\n" in hub.get("/metrics").body
    clock.now += 10
    assert hub.status()["multi_primary_labels"] == []
    assert b"\nveen_multi_primary_labels 0.0\n" in hub.get("/metrics").body


def test_a_replica_is_no_primary(hub: Hub, admin: Admin) -> None:
    admin.says(replace(admin.record("s", OTHER_HUB), replica_hubs=(own(hub),)))
    assert refused(granted(hub)[0]) == NOT_PRIMARY


@pytest.mark.parametrize(("at", "held"), [(9, False), (10, True), (19, True), (20, False)])
def test_a_record_holds_from_its_time_until_just_before_its_end(
    hub: Hub, admin: Admin, clock: Clock, at: int, held: bool
) -> None:
    writer, _ = granted(hub)
    admin.gives("s", OTHER_HUB, ts=START + 10, ttl=10)
    clock.now = START + at
    if held:
        assert refused(writer) == NOT_PRIMARY
    else:
        writer.send()


# Several records.


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_active_records_the_earlier_counts_whichever_was_logged_first(
    hub: Hub, admin: Admin, clock: Clock, swapped: bool
) -> None:
    writer, _ = granted(hub)
    records = [
        admin.record("s", own(hub), ts=START - 10, ttl=20),
        admin.record("s", OTHER_HUB, ts=START - 9, ttl=100),
    ]
    for record in reversed(records) if swapped else records:
        admin.says(record)
    writer.send()
    clock.now = START + 10  # the earlier one has expired
    assert refused(writer) == NOT_PRIMARY


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_records_of_one_time_the_lower_primary_counts(hub: Hub, admin: Admin, swapped: bool) -> None:
    writer, _ = granted(hub)
    low, high = bytes(32), b"\xff" * 32
    for primary in (low, high) if swapped else (high, low):
        admin.gives("s", primary)
    reply = hub.submit(writer.message())
    assert reply.error().refused().detail["primary_hub"] == low.hex()


def test_a_record_that_has_ended_makes_room_for_the_next(hub: Hub, admin: Admin, clock: Clock) -> None:
    writer, _ = granted(hub)
    for number in range(20):
        admin.gives("s", OTHER_HUB, ttl=2)
        assert refused(writer) == NOT_PRIMARY
        clock.now += 3
        if number % 2:
            writer.send()
    assert len(hub.service.sequencer.state.realm._authorities[naming.stream_id("s")]) == 1


# Invalid records.


def test_what_is_no_record_of_this_realm_is_logged_and_changes_nothing(hub: Hub, admin: Admin) -> None:
    writer, _ = granted(hub)
    record = admin.record("s", OTHER_HUB)
    elsewhere = replace(record, realm_id=naming.realm_id("elsewhere"))
    body = record.encode()
    for number, (schema, sent, reader_pk) in enumerate(
        [
            (Authority.SCHEMA, elsewhere.encode(), None),
            (Authority.SCHEMA, body[:-1], None),
            (Authority.SCHEMA, body + b"\0", None),
            (Authority.SCHEMA, body.replace(b"single-primary", b"double-primary"), None),
            (Authority.SCHEMA, body, READER.public_key),
            (SCHEMA, body, None),
        ],
        1,
    ):
        assert admin.writes(AUTHORITIES, schema, sent, reader_pk).receipt().stream_seq == number
        writer.send()
    admin.writes(REVOCATIONS, Authority.SCHEMA, body).receipt()
    writer.send()
    admin.says(record)
    assert refused(writer) == NOT_PRIMARY


def test_a_hub_without_a_realm_goes_by_no_authority(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        Admin(hub).gives("s", OTHER_HUB)
        hub.writer().send()
        assert hub.status()["multi_primary_labels"] == []


def test_the_streams_that_a_hub_goes_by_cannot_be_given_away(hub: Hub, admin: Admin) -> None:
    """Otherwise such a record could never be corrected by another."""
    control = hub.service.rules.control_stream
    for stream in (AUTHORITIES, REVOCATIONS, control):
        admin.gives(stream.hex(), OTHER_HUB)
    admin.gives("s", OTHER_HUB)
    assert refused(granted(hub)[0]) == NOT_PRIMARY
    assert hub.register(naming.stream_id("new")).stream_seq > 1


@pytest.mark.parametrize("policy", [None, AuthorityPolicy.SINGLE_PRIMARY, AuthorityPolicy.MULTI_PRIMARY])
def test_a_proved_equivocation_is_logged_with_the_policy_of_the_label(
    tmp_path: Path, policy: AuthorityPolicy | None
) -> None:
    with log_file(tmp_path / "log") as log, running(make_dir(tmp_path, realm_id=REALM)) as hub:
        if policy:
            Admin(hub).gives("s", own(hub), policy)
        first = hub.writer().send()
        second = receipt.sign(
            hub_key(hub),
            label=first.label,
            stream_seq=1,
            leaf_hash=bytes(32),
            mmr_root=first.mmr_root,
            hub_ts=first.hub_ts,
        )
        for _ in range(2):
            assert hub.post("/tooling/equivocation", Equivocation(first, second)).status == 200
    (logged,) = [row for row in log_rows(log) if row["event"] == "equivocation"]
    assert (logged["level"], logged["label"], logged["stream_seq"]) == ("error", first.label.hex(), 1)
    assert logged["policy"] == str(policy or AuthorityPolicy.UNSPECIFIED)


# Restarts.


@pytest.mark.parametrize("epoch_sec", [0, EPOCH_SEC])
@pytest.mark.parametrize("how", LIVES)
def test_authority_records_survive_restarts_and_rebuilds(
    tmp_path: Path, clock: Clock, how: str, epoch_sec: int
) -> None:
    data_dir = make_dir(tmp_path, Profile(epoch_sec=epoch_sec), realm_id=REALM)
    settings = {"operator_token": TOKEN, "admission": Admission.OPEN}
    first = Hub(data_dir, clock, LIVES[how](), settings).start()
    admin = Admin(first)
    for stream in ("theirs", "ours", "many"):
        first.register(naming.stream_id(stream))
    admin.gives("theirs", OTHER_HUB, ttl=1000)
    admin.gives("many", OTHER_HUB, AuthorityPolicy.MULTI_PRIMARY)
    # With epochs only registered streams are written to. Without epochs the record may come before the first message.
    admin.gives("unheard of", OTHER_HUB)
    hub = lives(first, how)
    try:
        assert hub.status()["multi_primary_labels"] == [hub.label("many").hex()]
        for stream in ("theirs", *(() if epoch_sec else ("unheard of",))):
            assert refused(hub.writer(stream)) == NOT_PRIMARY
        for stream in ("ours", "many"):
            hub.writer(stream).send()
        clock.now += EPOCH_SEC
        assert refused(hub.writer("theirs")) == NOT_PRIMARY
        admin.at(hub).gives("ours", OTHER_HUB)
        assert refused(hub.writer("ours")) == NOT_PRIMARY
        clock.now = START + 1000
        hub.writer("theirs").send()
    finally:
        hub.stop()
    if not isinstance(hub.disk, NoLogDisk):
        assert fsck.check(data_dir).findings == []


def test_a_checkpoint_of_an_admin_stream_names_its_label_of_the_epoch_before(tmp_path: Path, clock: Clock) -> None:
    with running(make_dir(tmp_path, Profile(epoch_sec=EPOCH_SEC), realm_id=REALM), clock) as hub:
        receipt = Admin(hub).gives("s", OTHER_HUB)
        epoch = START // EPOCH_SEC
        found = hub.post("/v1/checkpoint", CheckpointRequest(receipt.label, 1)).read(CheckpointResponse).checkpoint
        assert (found.label_curr, found.epoch) == (hub.label(AUTHORITIES), epoch)
        assert found.label_prev == hub.label(AUTHORITIES, epoch - 1)


def test_an_admin_stream_needs_no_registration_where_there_are_epochs(tmp_path: Path, clock: Clock) -> None:
    with running(make_dir(tmp_path, Profile(epoch_sec=EPOCH_SEC), realm_id=REALM), clock) as hub:
        unknown = Writer(hub, hub.label("unknown"), SigningKey.generate())
        assert hub.submit(unknown.message()).refusal()[3] == "EPOCH"
        assert Admin(hub).gives("s", OTHER_HUB).stream_seq == 1
