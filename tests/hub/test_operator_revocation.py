"""Revocation by the operator of one hub: an event on the control stream, where the hub was started with it. KEX0.3."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import ISSUER, START, TOKEN, Clock, Hub, Writer, make_dir, running
from tests.hub.disks import NoLogDisk, QuickDisk
from tests.hub.test_attachments import proof, put
from tests.hub.test_capabilities import logged, token_for
from veen.core import CapToken, Profile, SigningKey, cap_token
from veen.core.admin import OperatorRevocation, RevocationKind
from veen.core.envelopes import AuthorizeResponse, RevocationRequest
from veen.core.hashing import h
from veen.hub.admission_rules import Admission
from veen.storage import fsck

ALLOWED: dict[str, Any] = {"admission": Admission.CAPABILITY, "allow_revocation": True}
REVOKED = (403, "E.CAP", "auth", "CAP_INVALID")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    with running(make_dir(tmp_path), clock, **ALLOWED) as found:
        yield found


def granted(hub: Hub, stream: str = "s") -> tuple[Writer, CapToken]:
    key = SigningKey.generate()
    token = token_for(key, stream, ttl=1000)
    hub.authorize(token).read(AuthorizeResponse)
    return hub.writer(stream, key, token), token


def target(kind: str, token: CapToken) -> bytes:
    return {
        "auth-ref": token.auth_ref(),
        "cap-token": h(token.encode()),
        "client-id": token.subject_pk,
    }[kind]


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_a_revoked_capability_or_key_is_rejected_as_cap_invalid(hub: Hub, kind: RevocationKind) -> None:
    (writer, token), (other, _) = granted(hub), granted(hub)
    writer.send()
    receipt = hub.revoke(kind, target(kind, token), reason="lost").receipt()
    receipt.verify_signature(hub.hub_pk)
    assert receipt.label == hub.label(hub.service.rules.control_stream)
    reply = hub.submit(writer.message())
    assert reply.refusal() == REVOKED
    assert (reply.error().detail or {})["revoked"] == kind
    assert other.send().stream_seq == 2
    assert logged(hub)[-1] == OperatorRevocation(kind, target(kind, token), "lost", START)
    assert hub.status()["revocations"] == 1


@pytest.mark.parametrize("kind", [RevocationKind.AUTH_REF, RevocationKind.CAP_TOKEN])
@pytest.mark.parametrize("known", [True, False])
def test_a_revoked_capability_is_not_authorized(hub: Hub, kind: RevocationKind, known: bool) -> None:
    token = token_for(SigningKey.generate())
    if known:
        hub.authorize(token).read(AuthorizeResponse)
    hub.revoke(kind, target(kind, token)).receipt()
    assert hub.authorize(token).refusal() == REVOKED
    hub.authorize(cap_token.renew(token, ISSUER)).read(AuthorizeResponse)


def test_a_revoked_key_does_not_write_with_open_admission_either(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), allow_revocation=True) as hub:
        writer = hub.writer()
        writer.send()
        hub.revoke("client-id", writer.key.public_key).receipt()
        assert hub.submit(writer.message()).refusal() == REVOKED


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_what_is_revoked_brings_no_attachment(hub: Hub, kind: RevocationKind) -> None:
    writer, token = granted(hub)
    hub.revoke(kind, target(kind, token)).receipt()
    reply = put(hub, b"sealed", proof(hub, writer, b"sealed"))
    assert (reply.status, reply.error().code) == (403, "E.FORBIDDEN")


def test_a_revocation_with_a_ttl_ends_by_the_hubs_time(hub: Hub, clock: Clock) -> None:
    writer, token = granted(hub)
    clock.now = START + 5
    hub.revoke("auth-ref", token.auth_ref(), ttl=10).receipt()
    for second, refused in ((5, True), (14, True), (15, False)):
        clock.now = START + second
        assert (hub.submit(writer.message()).status == 403) is refused, second
    hub.revoke("auth-ref", token.auth_ref()).receipt()
    clock.now = START + 900
    assert hub.submit(writer.message(client_seq=2)).refusal() == REVOKED


def test_a_revocation_is_checked_before_the_stream_of_the_message(hub: Hub) -> None:
    """The order of the admission table."""
    writer, _ = granted(hub)
    hub.revoke("client-id", writer.key.public_key).receipt()
    assert hub.submit(writer.message(label=hub.label("another"))).refusal() == REVOKED


# Permission to revoke.


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}])
def test_only_the_operator_revokes(hub: Hub, given: dict[str, str]) -> None:
    writer, token = granted(hub)
    reply = hub.post("/tooling/revoke", RevocationRequest("auth-ref", token.auth_ref()), **given)
    assert (reply.status, reply.error().code) == (401, "E.UNAUTHORIZED")
    writer.send()


def test_a_hub_without_the_opt_in_revokes_nothing(tmp_path: Path) -> None:
    """000 §6: hubs do not enforce revocation."""
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        assert hub.status()["revocation"] is False
        writer, token = granted(hub)
        reply = hub.revoke("auth-ref", token.auth_ref())
        assert (reply.status, reply.error().code) == (403, "E.FORBIDDEN")
        assert len(logged(hub)) == 1
        writer.send()


def test_a_logged_revocation_stays_without_the_opt_in(tmp_path: Path, clock: Clock) -> None:
    """The same log gives the same decisions, whatever the options of the start."""
    data_dir = make_dir(tmp_path)
    with running(data_dir, clock, **ALLOWED) as hub:
        writer, token = granted(hub)
        hub.revoke("auth-ref", token.auth_ref()).receipt()
    with running(data_dir, clock, admission=Admission.CAPABILITY) as hub:
        writer.hub = hub
        assert hub.submit(writer.message()).refusal() == REVOKED


@pytest.mark.parametrize(
    "body", [b"", b"\xa0", RevocationRequest("auth-ref", bytes(32)).encode().replace(b"auth-ref", b"auth-wrf")]
)
def test_a_malformed_request_is_a_bad_request(hub: Hub, body: bytes) -> None:
    reply = hub.post("/tooling/revoke", body, authorization=f"Bearer {TOKEN}")
    assert (reply.status, reply.error().code) == (400, "E.BAD_REQUEST")


def test_the_hubs_own_key_cannot_be_revoked(hub: Hub) -> None:
    hub.revoke("client-id", hub.service.rules.control_pk).receipt()
    assert granted(hub)[0].send().stream_seq == 1  # the hub logged the capability with that key


# Restarts.

LIVES: dict[str, Callable[[], Disk]] = {
    "restart": QuickDisk,
    "rebuild": QuickDisk,
    "journal": NoLogDisk,
    "caught up": NoLogDisk,
}


@pytest.mark.parametrize("epoch_sec", [0, 60])
@pytest.mark.parametrize("how", LIVES)
def test_revocations_survive_restarts_and_rebuilds(tmp_path: Path, clock: Clock, how: str, epoch_sec: int) -> None:
    data_dir = make_dir(tmp_path, Profile(epoch_sec=epoch_sec))
    first = Hub(data_dir, clock, LIVES[how](), ALLOWED).start()
    (writer, token), (free, _) = granted(first), granted(first)
    first.revoke("cap-token", h(token.encode())).receipt()
    first.revoke("client-id", free.key.public_key, ttl=50).receipt()
    first.stop()
    if how == "rebuild":
        shutil.rmtree(data_dir / "index")
    hub = first.again(disk=QuickDisk() if how == "caught up" else first.disk)
    try:
        assert hub.status()["revocations"] == 2
        for one in (writer, free):
            one.hub = hub
            assert hub.submit(one.message()).refusal() == REVOKED
        clock.now += 55 if epoch_sec == 0 else 60
        free.label = hub.label("s")
        free.send()
    finally:
        hub.stop()
    if not isinstance(hub.disk, NoLogDisk):
        assert fsck.check(data_dir).findings == []
