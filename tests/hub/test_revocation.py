"""A hub of a realm rejects what is revoked, from the next message on, and after any restart. spec-2 §4.3."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import ISSUER, READER, SCHEMA, START, TOKEN, Clock, Hub, Reply, Writer, make_dir, running
from tests.hub.disks import FullDisk, NoLogDisk, QuickDisk
from tests.hub.realms import AUTHORITIES, REALM, REVOCATIONS, Admin, names_of, sealed
from tests.hub.test_attachments import SEALED, code_of, proof, put
from tests.hub.test_groups import ignore_outcome, prepared, shown, submission
from veen.core import CapToken, Profile, SigningKey, cap_token, cbor, naming
from veen.core.admin import Revocation, RevocationKind
from veen.core.envelopes import AuthorizeResponse
from veen.hub.admission_rules import Admission
from veen.hub.admission_state import Submission
from veen.storage import fork, fsck

REVOKED_KEY = (403, "E.AUTH", "auth", "AUTH_REF")
REVOKED_CAP = (403, "E.CAP", "auth", "CAP_INVALID")
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


def granted(hub: Hub, stream: str = "s") -> tuple[Writer, CapToken]:
    """A writer with a capability, and the capability."""
    key = SigningKey.generate()
    token = cap_token.mint(ISSUER, key.public_key, [naming.stream_id(stream)], 10_000)
    hub.authorize(token).read(AuthorizeResponse)
    return hub.writer(stream, key, token), token


def refused(writer: Writer) -> tuple[int, str, str | None, str | None]:
    return writer.hub.submit(writer.message()).refusal()


# Rejections.


def test_a_revoked_client_id_writes_nothing_more(hub: Hub, admin: Admin) -> None:
    writer, _ = granted(hub)
    other, _ = granted(hub)
    writer.send()
    admin.revokes_key(writer.key)
    reply = hub.submit(writer.message())
    assert reply.refusal() == REVOKED_KEY
    assert "revoked" in reply.error().message
    assert reply.error().refused().detail["revoked"] == "client-id"
    assert other.send().stream_seq == 2


def test_a_revoked_client_id_needs_no_capability_to_be_refused(tmp_path: Path, clock: Clock) -> None:
    with running(make_dir(tmp_path, realm_id=REALM), clock) as hub:
        writer = hub.writer()
        writer.send()
        Admin(hub).revokes_key(writer.key)
        assert refused(writer) == REVOKED_KEY
        assert hub.batch(writer.message().encode())[0].refused().detail_enum == "AUTH_REF"  # type: ignore[union-attr]
        assert hub.post_json("/v1/submit", b'{"ver":1,"msg":[]}').refusal()[3] == "CBOR_INVALID"


@pytest.mark.parametrize("kind", [RevocationKind.AUTH_REF, RevocationKind.CAP_TOKEN])
def test_a_revoked_capability_is_rejected_and_its_subject_may_get_another(
    hub: Hub, admin: Admin, kind: RevocationKind
) -> None:
    writer, token = granted(hub)
    writer.send()
    admin.revokes(kind, names_of(token)[kind])
    reply = hub.submit(writer.message())
    assert reply.refusal() == REVOKED_CAP
    assert reply.error().refused().detail["revoked"] == str(kind)
    again = cap_token.resign(token, ISSUER)
    hub.authorize(again).read(AuthorizeResponse)
    writer.auth_ref = again.auth_ref()
    assert writer.send().stream_seq == 2


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_a_name_of_one_kind_is_not_revoked_under_another(hub: Hub, admin: Admin, kind: RevocationKind) -> None:
    writer, token = granted(hub)
    names = {**names_of(token), RevocationKind.CLIENT_ID: writer.key.public_key}
    for other, target in names.items():
        if other is not kind:
            admin.revokes(kind, target)
    assert writer.send().stream_seq == 1


@pytest.mark.parametrize("first", [RevocationKind.AUTH_REF, RevocationKind.CLIENT_ID])
def test_what_is_revoked_twice_is_refused_for_the_capability_first(
    hub: Hub, admin: Admin, first: RevocationKind
) -> None:
    """The order of checks is that of the admission table, whatever the order of the log."""
    writer, token = granted(hub)
    names = {**names_of(token), RevocationKind.CLIENT_ID: writer.key.public_key}
    last = next(kind for kind in (RevocationKind.AUTH_REF, RevocationKind.CLIENT_ID) if kind is not first)
    for kind in (first, last):
        admin.revokes(kind, names[kind])
    assert refused(writer) == REVOKED_CAP


# Times.


@pytest.mark.parametrize(
    ("at", "held"), [(99, False), (100, True), (149, True), (150, False), (1_000, False)], ids=lambda value: str(value)
)
def test_a_revocation_with_a_ttl_holds_from_its_time_until_just_before_its_end(
    hub: Hub, admin: Admin, clock: Clock, at: int, held: bool
) -> None:
    writer, _ = granted(hub)
    admin.revokes_key(writer.key, ts=START + 100, ttl=50)
    clock.now = START + at
    if held:
        assert refused(writer) == REVOKED_KEY
    else:
        writer.send()


@pytest.mark.parametrize("at", [0, 1, 9_000])
def test_a_revocation_without_a_ttl_holds_for_ever(hub: Hub, admin: Admin, clock: Clock, at: int) -> None:
    writer, _ = granted(hub)
    admin.revokes_key(writer.key)
    clock.now = START + at
    assert refused(writer) == REVOKED_KEY


def test_a_revocation_is_by_the_hubs_time_which_never_goes_back(hub: Hub, admin: Admin, clock: Clock) -> None:
    writer, other = granted(hub)[0], granted(hub)[0]
    admin.revokes_key(writer.key, ts=START + 10)
    clock.now = START + 10
    other.send()
    clock.now = START
    assert refused(writer) == REVOKED_KEY


@pytest.mark.parametrize(
    "spans",
    [
        [(10, 10), (20, 10)],  # adjacent
        [(20, 10), (10, 10)],
        [(10, 15), (12, 3)],  # nested
        [(12, 3), (10, 20)],
        [(10, 2), (25, 5), (11, 15)],  # the last one joins the first two
        [(10, None), (10, 1)],  # a revocation cannot be withdrawn
        [(10, 1), (10, None)],
        [(10, 0), (15, None), (10, 6)],
    ],
)
def test_revocations_of_one_thing_add_up(
    hub: Hub, admin: Admin, clock: Clock, spans: list[tuple[int, int | None]]
) -> None:
    writer, _ = granted(hub)
    for start, ttl in spans:
        admin.revokes_key(writer.key, START + start, ttl)
    for second in range(45):
        held = any(start <= second and (ttl is None or second < start + ttl) for start, ttl in spans)
        clock.now = START + second
        reply = hub.submit(writer.message())
        assert (reply.status == 403) == held, second
        if not held:
            writer.accepted(writer.message())


def test_a_ttl_of_zero_revokes_nothing(hub: Hub, admin: Admin) -> None:
    writer, _ = granted(hub)
    admin.revokes_key(writer.key, START, 0)
    assert writer.send().stream_seq == 1


def test_the_last_time_there_is_can_be_named(hub: Hub, admin: Admin) -> None:
    writer, _ = granted(hub)
    most = (1 << 64) - 1
    admin.revokes_key(writer.key, most, most)
    writer.send()
    admin.revokes_key(writer.key, 0, most)
    assert refused(writer) == REVOKED_KEY


def test_the_next_message_of_the_same_group_is_refused(hub: Hub, admin: Admin) -> None:
    victim, _ = granted(hub)
    writer = admin.writer(REVOCATIONS)
    event = Revocation("client-id", victim.key.public_key, None, START)
    message = writer.message(ciphertext=sealed(writer, REVOCATIONS, event.SCHEMA, event.encode()))
    before, after = victim.message(), victim.message(client_seq=2)
    revoking = Submission(message, message.encode(), ignore_outcome)
    group = prepared(
        hub,
        Submission(before, before.encode(), ignore_outcome),
        revoking,
        Submission(after, after.encode(), ignore_outcome),
    )
    assert shown(group) == [1, 1, "AUTH_REF"]


# Permission to revoke.


def test_admin_streams_need_a_capability(hub: Hub) -> None:
    for stream in (REVOCATIONS, AUTHORITIES):
        reply = hub.submit(Writer(hub, hub.label(stream), SigningKey.generate()).message())
        assert reply.refusal() == (403, "E.CAP", "auth", "CAP_MISSING")


def test_a_capability_for_another_stream_is_none_for_an_admin_stream(hub: Hub) -> None:
    writer, _ = granted(hub)
    assert refused(replace(writer, label=hub.label(REVOCATIONS))) == (403, "E.AUTH", "auth", "AUTH_REF")


def test_the_other_admin_streams_are_like_any_stream(tmp_path: Path) -> None:
    """The hub does not enforce label classes and schemas, so with open admission anyone may write them."""
    from veen.core import admin

    with running(make_dir(tmp_path, realm_id=REALM)) as hub:
        for stream in (admin.label_class_stream(REALM), admin.schema_meta_stream(REALM)):
            assert Writer(hub, hub.label(stream), SigningKey.generate()).send().stream_seq == 1


def spoiled(admin: Admin, victim: Writer) -> dict[str, Callable[[], Reply]]:
    """Entries of the revocation stream that revoke nothing."""
    event = Revocation("client-id", victim.key.public_key, None, START)
    body, schema = event.encode(), event.SCHEMA
    return {
        "sealed for others": lambda: admin.writes(REVOCATIONS, schema, body, READER.public_key),
        "of another schema": lambda: admin.writes(REVOCATIONS, SCHEMA, body),
        "an authority's schema": lambda: admin.writes(REVOCATIONS, naming.schema_id("veen.fed.authority.v1"), body),
        "cut short": lambda: admin.writes(REVOCATIONS, schema, body[:-1]),
        "empty": lambda: admin.writes(REVOCATIONS, schema, b""),
        "with more behind it": lambda: admin.writes(REVOCATIONS, schema, body + b"\0"),
        "of a kind that is none": lambda: admin.writes(REVOCATIONS, schema, body.replace(b"client-id", b"issuer-id")),
        "with an unknown key": lambda: admin.writes(
            REVOCATIONS, schema, cbor.encode({"kind": "client-id", "target": event.target, "ts": START, "why": 1})
        ),
        "with keys in another order": lambda: admin.writes(
            REVOCATIONS, schema, body[:1] + cbor.encode("ts") + cbor.encode(START) + body[1:-7]
        ),
        "on the other stream": lambda: admin.writes(AUTHORITIES, schema, body),
    }


SPOILED = (
    "sealed for others",
    "of another schema",
    "an authority's schema",
    "cut short",
    "empty",
    "with more behind it",
    "of a kind that is none",
    "with an unknown key",
    "with keys in another order",
    "on the other stream",
)


@pytest.mark.parametrize("how", SPOILED)
def test_an_entry_that_is_no_revocation_is_logged_and_changes_nothing(hub: Hub, admin: Admin, how: str) -> None:
    writer, _ = granted(hub)
    found = spoiled(admin, writer)
    assert tuple(found) == SPOILED
    assert found[how]().receipt().stream_seq == 1
    writer.send()
    assert hub.status()["revocations"] == 0
    admin.revokes_key(writer.key)
    assert refused(writer) == REVOKED_KEY


def test_a_hub_without_a_realm_goes_by_no_revocation(tmp_path: Path) -> None:
    """Spec 000 §6: hubs do not enforce revocation, unless their operator assigned them to a realm."""
    with running(make_dir(tmp_path)) as hub:
        assert hub.status()["realm_id"] is None
        writer = hub.writer()
        Admin(hub).revokes_key(writer.key)
        assert writer.send().stream_seq == 1
        assert Writer(hub, hub.label(REVOCATIONS), SigningKey.generate()).send().stream_seq == 2


def test_the_revocations_of_another_realm_are_not_ours(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, realm_id=naming.realm_id("elsewhere"))) as hub:
        writer = hub.writer()
        Admin(hub).revokes_key(writer.key)
        assert writer.send().stream_seq == 1


# No lock-out for ever.


def test_an_administrator_who_revokes_its_own_key_is_replaced_by_the_operator(hub: Hub, admin: Admin) -> None:
    writer, _ = granted(hub)
    admin.revokes_key(admin.key)
    event = Revocation("client-id", writer.key.public_key, None, START)
    assert admin.writes(REVOCATIONS, event.SCHEMA, event.encode()).refusal() == REVOKED_KEY
    writer.send()
    Admin(hub).revokes_key(writer.key)
    assert refused(writer) == REVOKED_KEY


def test_the_hubs_own_key_cannot_be_revoked(hub: Hub, admin: Admin) -> None:
    admin.revokes_key(hub.service.rules.control_pk)
    writer, _ = granted(hub, "later")
    writer.send()
    assert hub.register(naming.stream_id("another")).stream_seq > 1


# Other endpoints.


@pytest.mark.parametrize("kind", [RevocationKind.AUTH_REF, RevocationKind.CAP_TOKEN])
@pytest.mark.parametrize("known", [True, False])
def test_a_revoked_capability_is_not_authorised(hub: Hub, admin: Admin, kind: RevocationKind, known: bool) -> None:
    token = cap_token.mint(ISSUER, SigningKey.generate().public_key, [naming.stream_id("s")], 100)
    if known:
        hub.authorize(token).read(AuthorizeResponse)
    admin.revokes(kind, names_of(token)[kind])
    entries = hub.status()["entries"]
    assert hub.authorize(token).refusal() == REVOKED_CAP
    assert hub.status()["entries"] == entries


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_a_revoked_capability_and_a_revoked_key_bring_no_attachments(
    hub: Hub, admin: Admin, clock: Clock, kind: RevocationKind
) -> None:
    writer, token = granted(hub)
    names = {**names_of(token), RevocationKind.CLIENT_ID: writer.key.public_key}
    admin.revokes(kind, names[kind], START + 10, 5)
    assert put(hub, SEALED, proof(hub, writer, SEALED)).status == 201
    clock.now += 10
    reply = put(hub, SEALED, proof(hub, writer, SEALED))
    assert code_of(reply) == (403, "E.FORBIDDEN")
    assert "revoked" in reply.error().message
    clock.now += 5
    assert put(hub, SEALED, proof(hub, writer, SEALED)).status == 200


def test_status_and_metrics_count_what_is_revoked(hub: Hub, admin: Admin) -> None:
    assert hub.status()["realm_id"] == REALM.hex()
    writer, token = granted(hub)
    for _ in range(3):
        admin.revokes_key(writer.key)
    admin.revokes(RevocationKind.AUTH_REF, token.auth_ref())
    assert hub.status()["revocations"] == 2
    assert b"\nveen_revocations 2.0\n" in hub.get("/metrics").body


# Restarts.


def lives(hub: Hub, how: str) -> Hub:
    """The next run of a hub, after each way in which one ends."""
    disk: Disk | None = hub.disk
    hub.stop()
    if how == "rebuild":
        shutil.rmtree(hub.data_dir / "index")
    if how == "caught up":
        disk = QuickDisk()
    return hub.again(disk=disk)


LIVES: dict[str, Callable[[], Disk]] = {
    "restart": QuickDisk,
    "rebuild": QuickDisk,
    "journal": NoLogDisk,
    "caught up": NoLogDisk,
}


@pytest.mark.parametrize("epoch_sec", [0, EPOCH_SEC])
@pytest.mark.parametrize("how", LIVES)
def test_what_is_revoked_stays_so_through_restarts_and_rebuilds(
    tmp_path: Path, clock: Clock, how: str, epoch_sec: int
) -> None:
    settings: dict[str, Any] = {"admission": Admission.CAPABILITY}
    data_dir = make_dir(tmp_path, Profile(epoch_sec=epoch_sec), realm_id=REALM)
    first = Hub(data_dir, clock, LIVES[how](), {"operator_token": TOKEN, **settings}).start()
    writer, _ = granted(first)
    capless, lost = granted(first)
    free, _ = granted(first)
    admin = Admin(first)
    admin.revokes_key(writer.key, START, 50)
    admin.revokes(RevocationKind.CAP_TOKEN, names_of(lost)[RevocationKind.CAP_TOKEN])
    hub = lives(first, how)
    try:
        assert hub.status()["revocations"] == 2
        for one in (writer, capless, free):
            one.hub, one.label = hub, hub.label("s")
        assert refused(writer) == REVOKED_KEY
        assert refused(capless) == REVOKED_CAP
        free.send()
        admin.at(hub).revokes_key(free.key)
        clock.now += EPOCH_SEC
        for one in (writer, free):
            one.label = hub.label("s")
        assert refused(free) == REVOKED_KEY
        if epoch_sec:
            writer.client_seq = writer.prev_ack = 0
        writer.send()  # it has expired
    finally:
        hub.stop()
    if not isinstance(hub.disk, NoLogDisk):
        assert fsck.check(data_dir).findings == []


def test_a_group_that_the_disk_refused_has_revoked_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    with running(make_dir(tmp_path, realm_id=REALM), disk=disk) as hub:
        victim, _ = granted(hub)
        admin = Admin(hub)
        admin.revokes_key(SigningKey.generate())
        writer = admin.writer(REVOCATIONS)
        event = Revocation("client-id", victim.key.public_key, None, START)
        message = writer.message(ciphertext=sealed(writer, REVOCATIONS, event.SCHEMA, event.encode()))
        disk.full = True
        assert hub.submit(message).error().code == "E.UNAVAILABLE"
        disk.full = False
        victim.send()
        assert hub.status()["revocations"] == 1
        hub.submit(message).receipt()
        assert refused(victim) == REVOKED_KEY


def test_a_fork_is_of_no_realm(tmp_path: Path, clock: Clock) -> None:
    """A fork copies entries, not permissions."""
    data_dir = make_dir(tmp_path, realm_id=REALM)
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        Admin(hub).revokes_key(writer.key)
    fork.fork(QuickDisk(), data_dir, tmp_path / "fork", None, START)
    with running(tmp_path / "fork", clock) as hub:
        assert hub.status()["realm_id"] is None
        writer.hub = hub
        writer.send()
    assert fsck.check(tmp_path / "fork").findings == []


def test_a_fork_of_a_hub_of_a_realm_knows_the_labels_of_its_admin_streams(tmp_path: Path, clock: Clock) -> None:
    """With epochs its checkpoints name the previous label, those of the admin streams too."""
    data_dir = make_dir(tmp_path, Profile(epoch_sec=EPOCH_SEC), realm_id=REALM)
    with running(data_dir, clock) as hub:
        label = Admin(hub).revokes_key(SigningKey.generate()).label
        before = hub.label(REVOCATIONS, START // EPOCH_SEC - 1)
    hub_metadata = fork.fork(QuickDisk(), data_dir, tmp_path / "fork", None, START)
    kept = hub_metadata.lineage.checkpoint(label)
    assert kept is not None
    assert (kept.label_prev, kept.epoch) == (before, START // EPOCH_SEC)


def test_a_message_before_and_after_are_judged_by_the_log_alone(hub: Hub, admin: Admin) -> None:
    """Entries accepted before stay: a revocation does not affect the past."""
    writer, _ = granted(hub)
    receipt = writer.send()
    admin.revokes_key(writer.key, START - 1_000_000)
    assert hub.status()["entries"] > 1
    assert shown(prepared(hub, submission(writer))) == ["AUTH_REF"]
    assert receipt.stream_seq == 1
