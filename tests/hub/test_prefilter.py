"""Stage 0: source address and proof of work, checked before anything in a message is read. Spec §8.1."""

import http.client
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.hub.client import PATIENCE_S, Hub, Reply, make_dir, running
from tests.hub.disks import QuickDisk
from tests.hub.test_attachments import SEALED, code_of, put
from veen.core import Receipt, Refused, Unavailable, wire_json
from veen.core.envelopes import ErrorEnvelope, SubmitRequest, SubmitResponse
from veen.core.limits import LEAST_MSG_BYTES, MAX_MSG_BYTES, MAX_POW_DIFFICULTY
from veen.core.proof_of_work import PowCookie, challenge_of, solve
from veen.hub.admission_rules import Prefilter
from veen.hub.config import HubConfig

BITS = 9
REJECTED = (403, "E.AUTH", "prefilter", "PREFILTER_REJECT")
HUB_ID = b"\x11" * 32
NOT_CBOR = b"\xff" * 40


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path), disk=QuickDisk(), pow_difficulty=BITS) as found:
        yield found


def worked(hub: Hub, body: bytes, bits: int = BITS) -> PowCookie:
    return solve(challenge_of(hub.service.rules.hub_id, body), bits)


def submit(hub: Hub, body: bytes, cookie: PowCookie | str | None, path: str = "/v1/submit") -> Reply:
    shown = {} if cookie is None else {"veen_pow": cookie if isinstance(cookie, str) else cookie.header()}
    return hub.post(path, body, **shown)


def asked(reply: Reply) -> dict[str, int | str]:
    assert reply.refusal() == REJECTED
    return dict(reply.error().refused().detail)


# Proof of work.


def test_a_message_without_work_is_rejected_with_a_challenge(hub: Hub) -> None:
    body = SubmitRequest(hub.writer().message()).encode()
    detail = asked(submit(hub, body, None))
    assert (detail["difficulty"], detail["hub_id"]) == (BITS, hub.service.rules.hub_id.hex())
    cookie = solve(bytes.fromhex(str(detail["challenge"])), BITS)
    assert submit(hub, body, cookie).receipt().stream_seq == 1


def test_more_work_than_was_asked_for_is_welcome(hub: Hub) -> None:
    body = SubmitRequest(hub.writer().message()).encode()
    assert submit(hub, body, worked(hub, body, BITS + 2)).receipt().stream_seq == 1


def test_work_is_asked_for_in_json_as_well(hub: Hub) -> None:
    body = wire_json.encode(SubmitRequest(hub.writer().message()))
    refused = hub.post_json("/v1/submit", body)
    assert refused.is_json
    assert asked(refused)["difficulty"] == BITS
    found = hub.post_json("/v1/submit", body, veen_pow=worked(hub, body).header())
    assert found.read(SubmitResponse).receipt.stream_seq == 1


def spoiled(hub: Hub, body: bytes) -> dict[str, PowCookie | str]:
    """Cookies that are not valid for this request."""
    good = worked(hub, body)
    little = next(
        PowCookie(good.challenge, nonce, BITS)
        for nonce in range(1 << 16)
        if PowCookie(good.challenge, nonce, BITS).work() == BITS - 1
    )
    return {
        "of less work than it says": little,
        "of too little work": replace(little, difficulty=BITS - 1),
        "that says less than it has": replace(good, difficulty=BITS - 1),
        "that says more than it has": replace(good, difficulty=good.work() + 1),
        "for another message": worked(hub, body + b"\0"),
        "for another hub": solve(challenge_of(HUB_ID, body), BITS),
        "for a challenge of its own": solve(b"", BITS),
        "in upper case": good.header().upper(),
        "that is empty": "",
        "that is no hex": "veen",
        "with more behind it": good.header() + "00",
        "cut short": good.header()[:-2],
        "that is no cookie": "a0",
    }


SPOILED = (
    "of less work than it says",
    "of too little work",
    "that says less than it has",
    "that says more than it has",
    "for another message",
    "for another hub",
    "for a challenge of its own",
    "in upper case",
    "that is empty",
    "that is no hex",
    "with more behind it",
    "cut short",
    "that is no cookie",
)


@pytest.mark.parametrize("how", SPOILED)
def test_an_invalid_cookie_is_rejected_with_the_challenge(hub: Hub, how: str) -> None:
    body = SubmitRequest(hub.writer().message()).encode()
    found = spoiled(hub, body)
    assert tuple(found) == SPOILED
    assert asked(submit(hub, body, found[how]))["challenge"] == worked(hub, body).challenge.hex()
    assert hub.status()["entries"] == 0


def test_nothing_of_a_message_is_read_before_its_work_is_seen(hub: Hub) -> None:
    assert submit(hub, NOT_CBOR, None).refusal() == REJECTED
    assert hub.post_json("/v1/submit", b"{").refusal() == REJECTED
    assert submit(hub, NOT_CBOR, None, "/tooling/submit-batch").refusal() == REJECTED
    assert submit(hub, NOT_CBOR, worked(hub, NOT_CBOR)).refusal()[3] == "CBOR_INVALID"


def test_size_is_judged_before_work(hub: Hub) -> None:
    assert submit(hub, b"\0" * (MAX_MSG_BYTES + 5), None).refusal()[3] == "SIZE_PREFILTER"
    assert submit(hub, b"\0" * (3 * MAX_MSG_BYTES), None).refusal()[3] == "SIZE_PREFILTER"


def test_the_same_request_meets_the_same_verdict_after_a_restart(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, pow_difficulty=BITS) as hub:
        body = SubmitRequest(hub.writer().message()).encode()
        first = asked(submit(hub, body, None))
        cookie = worked(hub, body)
    with running(data_dir, pow_difficulty=BITS) as hub:
        assert asked(submit(hub, body, None)) == first
        assert submit(hub, body, cookie).receipt().stream_seq == 1


def test_every_message_of_a_connection_does_its_own_work(hub: Hub) -> None:
    """A head that is repeated byte for byte, with its cookie, is not accepted for another body."""
    writer = hub.writer()
    bodies = []
    for _ in range(3):
        message = writer.message()
        writer.accepted(message)
        bodies.append(SubmitRequest(message).encode())
    assert len({len(body) for body in bodies}) == 1
    shown = worked(hub, bodies[0]).header()
    head = f"POST /v1/submit HTTP/1.1\r\nhost: hub\r\nveen-pow: {shown}\r\ncontent-length: {len(bodies[0])}\r\n\r\n"
    found = []
    with socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S) as connection:
        for body in (bodies[0], bodies[0], bodies[1], bodies[0]):
            connection.sendall(head.encode() + body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            said = answer.read()
            found.append("taken" if answer.status == 200 else ErrorEnvelope.decode(said).refused().detail_enum)
    assert found == ["taken", "DUPLICATE", "PREFILTER_REJECT", "DUPLICATE"]


def test_a_batch_does_as_much_work_as_its_messages_would(hub: Hub) -> None:
    writer = hub.writer()
    items = writer.next_messages(9)
    body = b"".join(items)
    assert 8 <= len(body) // LEAST_MSG_BYTES < 16
    assert submit(hub, body, worked(hub, body, BITS + 2), "/tooling/submit-batch").refusal() == REJECTED
    refused = submit(hub, body, None, "/tooling/submit-batch")
    assert asked(refused)["difficulty"] == BITS + 3
    reply = submit(hub, body, worked(hub, body, BITS + 3), "/tooling/submit-batch")
    assert reply.status == 200
    assert hub.status()["entries"] == 9


def test_what_writes_nothing_needs_no_work(hub: Hub) -> None:
    assert hub.status()["pow_difficulty"] == BITS
    assert hub.get("/readyz").status == 200
    assert put(hub, SEALED).status == 201
    assert hub.register(b"\x01" * 32).stream_seq == 1


def test_the_refusals_are_counted(hub: Hub) -> None:
    submit(hub, NOT_CBOR, None)
    submit(hub, NOT_CBOR, None, "/tooling/submit-batch")
    assert b'veen_submit_err_total{code="E.AUTH",detail_enum="PREFILTER_REJECT"} 2.0' in hub.get("/metrics").body


def test_a_hub_that_asks_for_no_work_takes_a_cookie_for_nothing(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        assert hub.status()["pow_difficulty"] == 0
        body = SubmitRequest(hub.writer().message()).encode()
        assert submit(hub, body, "nonsense").receipt().stream_seq == 1


@pytest.mark.parametrize("bits", [-1, MAX_POW_DIFFICULTY + 1])
def test_an_impossible_difficulty_is_rejected_at_start(tmp_path: Path, bits: int) -> None:
    with pytest.raises(Unavailable, match="proof of work"):
        HubConfig(tmp_path, pow_difficulty=bits).check()


# Addresses.

HERE, ELSEWHERE = ip_network("127.0.0.0/8"), ip_network("203.0.113.0/24")


@pytest.mark.parametrize(
    ("allow", "deny", "taken"),
    [
        ((), (), True),
        ((HERE,), (), True),
        ((ELSEWHERE,), (), False),
        ((ELSEWHERE, HERE), (), True),
        ((), (HERE,), False),
        ((), (ELSEWHERE,), True),
        ((HERE,), (HERE,), False),
        ((HERE,), (ip_network("127.0.0.1/32"),), False),
    ],
)
def test_messages_are_taken_from_where_they_may_come(
    tmp_path: Path, allow: tuple[Any, ...], deny: tuple[Any, ...], taken: bool
) -> None:
    with running(make_dir(tmp_path), disk=QuickDisk(), allow_networks=allow, deny_networks=deny) as hub:
        writer = hub.writer()
        message = writer.message()
        body = SubmitRequest(message).encode()
        if taken:
            assert isinstance(hub.batch(message.encode())[0], Receipt)
            assert put(hub, SEALED).status == 201
            assert submit(hub, body, None).refusal()[3] == "DUPLICATE"
            return
        for reply in (
            submit(hub, body, None),
            submit(hub, NOT_CBOR, None),
            submit(hub, message.encode(), None, "/tooling/submit-batch"),
            hub.post_json("/v1/submit", b"{"),
        ):
            assert reply.refusal() == REJECTED
            assert "challenge" not in reply.error().refused().detail
        assert code_of(put(hub, SEALED)) == (403, "E.AUTH")
        assert hub.get("/tooling/status").json()["entries"] == 0


@pytest.mark.parametrize(
    ("peer", "taken"),
    [
        ("10.1.2.3", True),
        ("10.1.2.4", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:10.1.2.4", False),
        ("11.0.0.1", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("fe80::1%eth0", False),
        ("", False),
        ("somewhere", False),
    ],
)
def test_an_address_is_judged_however_it_is_written(peer: str, taken: bool) -> None:
    allowed, denied = (ip_network("10.0.0.0/8"), ip_network("fd00::/8")), (ip_network("10.1.2.4/32"),)
    prefilter = Prefilter(HUB_ID, 0, allowed, denied)
    if taken:
        prefilter.check(peer, {}, b"")
        return
    with pytest.raises(Refused) as caught:
        prefilter.check(peer, {}, b"")
    assert caught.value.detail_enum == "PREFILTER_REJECT"


def test_without_network_rules_addresses_are_not_checked() -> None:
    prefilter = Prefilter(HUB_ID, 0)
    assert not prefilter.is_active
    prefilter.check("", {}, b"")
