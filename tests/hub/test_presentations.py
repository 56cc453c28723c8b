"""Presentations: a capability is authorized at the hub and until the date that its issuer signed for."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hub.client import ISSUER, START, Clock, Hub, make_dir, presented, running
from tests.hub.disks import QuickDisk
from tests.hub.test_attachments import proof, put
from tests.hub.test_capabilities import detail_of, logged, token_for
from veen.core import Malformed, SigningKey, cap_token, strict_json
from veen.core.envelopes import AuthorizeResponse
from veen.hub.admission_rules import Admission
from veen.storage import fork, fsck

CAPABILITY: dict[str, Any] = {"admission": Admission.CAPABILITY}
INVALID = (403, "E.CAP", "auth", "CAP_INVALID")
EXPIRED = (400, "E.TIME", "auth", "CAP_TTL")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    with running(make_dir(tmp_path), clock, **CAPABILITY) as found:
        yield found


# Finding: a token names no hub and no date.


def test_one_token_cannot_be_authorized_at_two_hubs_of_its_issuer(hub: Hub, tmp_path: Path) -> None:
    token = token_for(SigningKey.generate())
    with running(make_dir(tmp_path / "other"), **CAPABILITY) as other:
        assert hub.post("/tooling/authorize", token).refusal() == INVALID
        assert other.post("/tooling/authorize", token).refusal() == INVALID
        shown = hub.presented(token)
        assert hub.post("/tooling/authorize", shown).read(AuthorizeResponse).auth_ref == token.auth_ref()
        assert other.post("/tooling/authorize", shown).refusal() == INVALID
        assert logged(other) == []


def test_a_leaked_token_that_was_never_used_is_worthless_after_its_date(hub: Hub, clock: Clock) -> None:
    leaked = hub.presented(token_for(SigningKey.generate(), ttl=10 * 365 * 86_400), START + 3600)
    clock.now = START + 3601
    assert hub.authorize(leaked.token).status == 200, "the issuer can still present it until another date"
    other = hub.presented(token_for(SigningKey.generate()), START + 3600)
    assert hub.post("/tooling/authorize", other).refusal() == EXPIRED
    assert hub.post("/tooling/authorize", other.token).refusal() == INVALID
    assert logged(hub) == [hub.presented(leaked.token)]


# The end.


@pytest.mark.parametrize(("ttl", "not_after", "end"), [(10, 50, 10), (50, 10, 10), (10, 10, 10)])
def test_a_capability_ends_with_its_ttl_or_its_date_whichever_is_first(
    hub: Hub, clock: Clock, ttl: int, not_after: int, end: int
) -> None:
    key = SigningKey.generate()
    token = token_for(key, ttl=ttl)
    answer = hub.authorize(hub.presented(token, START + not_after)).read(AuthorizeResponse)
    assert answer.expires_at == START + end
    writer = hub.writer("s", key, token)
    clock.now = START + end
    writer.send()
    clock.now += 1
    reply = hub.submit(writer.message())
    assert reply.refusal() == EXPIRED
    assert (reply.error().detail or {})["expires_at"] == START + end


def test_the_last_second_of_a_presentation_is_enough(hub: Hub, clock: Clock) -> None:
    clock.now = START + 10
    key = SigningKey.generate()
    shown = hub.presented(token_for(key), START + 10)
    assert hub.authorize(shown).read(AuthorizeResponse).expires_at == START + 10
    hub.writer("s", key, shown.token).send()


def test_the_first_presentation_of_a_token_sets_its_end(hub: Hub, clock: Clock) -> None:
    key = SigningKey.generate()
    token = token_for(key, ttl=1000)
    first = hub.authorize(hub.presented(token, START + 10))
    assert hub.authorize(hub.presented(token, START + 500)).body == first.body
    assert hub.authorize(hub.presented(token, START + 5)).body == first.body
    assert logged(hub) == [hub.presented(token, START + 10)]
    clock.now += 11
    assert hub.authorize(hub.presented(token, START + 10)).body == first.body
    assert detail_of(hub, hub.writer("s", key, token)) == "CAP_TTL"
    renewed = cap_token.renew(token, ISSUER)
    hub.authorize(hub.presented(renewed, START + 500)).read(AuthorizeResponse)
    hub.writer("s", key, renewed).send()


def test_an_attachment_is_refused_after_the_date(hub: Hub, clock: Clock) -> None:
    key = SigningKey.generate()
    token = token_for(key, ttl=1000)
    hub.authorize(hub.presented(token, START + 10)).read(AuthorizeResponse)
    writer = hub.writer("s", key, token)
    clock.now = START + 10
    assert put(hub, b"sealed", proof(hub, writer, b"sealed")).status == 201
    clock.now += 1
    reply = put(hub, b"sealed", proof(hub, writer, b"sealed"))
    assert (reply.status, reply.error().code) == (403, "E.FORBIDDEN")


# Signatures.


def test_a_presentation_that_the_issuer_did_not_sign_is_refused(hub: Hub) -> None:
    token, hub_id = token_for(SigningKey.generate()), hub.service.rules.hub_id
    good = hub.presented(token)
    for bad in (
        presented(token, hub_id, key=SigningKey.generate()),
        replace(good, not_after=good.not_after + 1),
        replace(good, token=token_for(SigningKey.generate())),
        presented(replace(token, sig_chain=(bytes(64),)), hub_id),
    ):
        assert hub.authorize(bad).refusal() == INVALID
    assert logged(hub) == []


def test_a_presentation_by_an_untrusted_issuer_is_forbidden(hub: Hub) -> None:
    stranger = SigningKey.generate()
    token = token_for(SigningKey.generate(), issuer=stranger)
    reply = hub.authorize(presented(token, hub.service.rules.hub_id, key=stranger))
    assert (reply.status, reply.error().code) == (403, "E.FORBIDDEN")


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b'{"token":1}', b'{"token":{},"ver":1}'])
def test_a_malformed_json_body_is_a_bad_request(hub: Hub, body: bytes) -> None:
    assert hub.post_json("/tooling/authorize", body).error().code == "E.BAD_REQUEST"


# Bare tokens.


def old_directory(root: Path) -> Path:
    """A data directory as it was created before presentations existed."""
    data_dir = make_dir(root)
    (data_dir / "admission.json").unlink()
    return data_dir


@pytest.mark.parametrize(
    ("make", "given", "accepted"),
    [
        (make_dir, {}, False),
        (make_dir, {"accept_bare_tokens": True}, True),
        (old_directory, {}, True),
        (old_directory, {"accept_bare_tokens": False}, False),
    ],
)
def test_bare_tokens_are_accepted_by_old_directories_and_where_the_operator_says_so(
    tmp_path: Path, make: Callable[[Path], Path], given: dict[str, Any], accepted: bool
) -> None:
    data_dir, key = make(tmp_path), SigningKey.generate()
    token = token_for(key)
    with running(data_dir, **CAPABILITY, **given) as hub:
        assert hub.status()["bare_tokens"] is accepted
        reply = hub.post("/tooling/authorize", token)
        if not accepted:
            assert reply.refusal() == INVALID
            return
        assert reply.read(AuthorizeResponse).expires_at == reply.read(AuthorizeResponse).receipt.hub_ts + 100
        assert logged(hub) == [token]
        assert hub.post("/tooling/authorize", hub.presented(token, 1)).body == reply.body
    with running(data_dir, **CAPABILITY, accept_bare_tokens=False) as hub:
        hub.writer("s", key, token).send()
    assert fsck.check(data_dir).findings == []


def test_a_fork_accepts_bare_tokens_as_its_origin_does(tmp_path: Path) -> None:
    for name, make in (("new", make_dir), ("old", old_directory)):
        data_dir = make(tmp_path / name)
        with running(data_dir) as hub:
            hub.writer().send()
        fork.fork(QuickDisk(), data_dir, tmp_path / name / "fork", None, START)
        with running(tmp_path / name / "fork") as hub:
            assert hub.status()["bare_tokens"] is (name == "old")


def test_damaged_admission_settings_stop_the_hub_and_are_found(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    assert strict_json.decode((data_dir / "admission.json").read_bytes(), "settings") == {"bare_tokens": False}
    (data_dir / "admission.json").write_bytes(b'{"bare_tokens":1}')
    with pytest.raises(Malformed, match="bare_tokens"), running(data_dir):
        pass
    assert [finding.artifact for finding in fsck.check(data_dir).findings] == ["admission.json"]
