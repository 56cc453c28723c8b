"""Every row of the admission table over real HTTP, and which of two faults is reported. Spec §8.2, §10.6."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.hub import faulty
from tests.hub.client import ISSUER, START, TOKEN, Clock, Hub, Reply, encoded_with, envelope, make_dir, running
from tests.hub.disks import QuickDisk
from tests.hub.faulty import EXCLUSIVE, FAULTS, LIMITS, PAIRS, PROFILE, draft
from veen.core import Limits, SigningKey, cap_token, cbor, naming, strict_json, wire_json
from veen.core.admission import ADMISSION, ADMISSION_STATUS, BY_DETAIL
from veen.core.cap_token import Rate
from veen.core.envelopes import ReceiptRequest, ReceiptResponse, SubmitRequest
from veen.hub.admission_rules import Admission

Running = tuple[Hub, Clock]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A hub with every rule enabled: capabilities, epochs, a small message size."""
    clock = Clock()
    data_dir = make_dir(tmp_path_factory.mktemp("strict"), PROFILE, LIMITS)
    with running(data_dir, clock, QuickDisk(), admission=Admission.CAPABILITY) as hub:
        yield hub, clock


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with open admission."""
    with running(make_dir(tmp_path_factory.mktemp("free")), disk=QuickDisk()) as hub:
        yield hub


def expected(detail_enum: str) -> tuple[int, str, str, str]:
    row = BY_DETAIL[detail_enum]
    return ADMISSION_STATUS[row.code], row.code, row.stage, detail_enum


def test_the_cases_cover_the_whole_table() -> None:
    rows = [row.detail_enum for row in ADMISSION]
    assert sorted(FAULTS + faulty.ELSEWHERE) == sorted(rows)
    assert [row for row in rows if row in FAULTS] == list(FAULTS)
    assert len(rows) == 18


def test_a_draft_without_faults_is_accepted(strict: Running) -> None:
    assert faulty.submit(strict[0], draft(*strict)).receipt().stream_seq == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_each_row_has_its_status_code_stage_and_detail(strict: Running, fault: str) -> None:
    reply = faulty.submit(strict[0], draft(*strict, fault))
    assert reply.refusal() == expected(fault)
    assert reply.headers["content-type"] == "application/cbor"


@pytest.mark.parametrize("fault", FAULTS)
def test_json_requests_are_refused_with_the_same_row(strict: Running, fault: str) -> None:
    reply = strict[0].post_json("/v1/submit", draft(*strict, fault).json())
    assert reply.refusal() == expected(fault)
    assert reply.headers["content-type"] == "application/json"


def test_a_json_request_without_faults_is_accepted(strict: Running) -> None:
    assert strict[0].post_json("/v1/submit", draft(*strict).json()).receipt().stream_seq == 2


def test_a_capability_whose_chain_is_broken_is_cap_invalid(strict: Running) -> None:
    """The chain is verified when the token is authorised; a message only names a logged capability."""
    hub, _ = strict
    writer = hub.writer()
    good = cap_token.mint(ISSUER, writer.key.public_key, [naming.stream_id("s")], 10)
    bad = replace(good, sig_chain=(bytes(64),))
    assert hub.authorize(bad).refusal() == expected("CAP_INVALID")
    assert hub.submit(writer.message(auth_ref=bad.auth_ref())).refusal() == expected("CAP_MISSING")


def test_a_capability_that_asks_too_much_is_cap_invalid(strict: Running) -> None:
    most = LIMITS.max_cap_rate_per_sec
    token = cap_token.mint(ISSUER, bytes(32), [naming.stream_id("s")], 10, Rate(most + 1, 1))
    assert strict[0].authorize(token).refusal() == expected("CAP_INVALID")


def test_one_row_cannot_occur_at_this_hub() -> None:
    """ATT_ROOT has no code path, which this asserts of the source.

    `att_root` is in the encrypted header, which a hub never opens (spec §8.3). PREFILTER_REJECT occurs where the
    operator asks for work or names networks.
    """
    source = "".join(path.read_text() for path in Path("src/veen/hub").rglob("*.py"))
    raised = set(re.findall(r'BY_DETAIL\["(\w+)"\]', source))
    assert "ATT_ROOT" not in raised
    # FIELD_SIZE and VERSION are raised through `refused_structure`.
    assert raised | {"ATT_ROOT", "FIELD_SIZE", "VERSION"} == set(BY_DETAIL)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_of_two_faults_the_earlier_row_is_the_answer(strict: Running, first: str, second: str) -> None:
    assert faulty.submit(strict[0], draft(*strict, first, second)).refusal() == expected(first)


def test_all_adjacent_rows_are_among_the_pairs() -> None:
    for first, second in pairwise(FAULTS):
        assert (first, second) in PAIRS or frozenset((first, second)) in EXCLUSIVE


def test_with_every_fault_at_once_they_come_to_light_in_order(strict: Running) -> None:
    left = [fault for fault in FAULTS if fault not in ("CAP_MISSING", "CLIENT_SEQ")]
    while left:
        reply = faulty.submit(strict[0], draft(*strict, *left))
        assert reply.refusal() == expected(left.pop(0))


@pytest.mark.parametrize("name", ["profile_id", "label", "client_id", "auth_ref", "ct_hash", "sig"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_field_of_the_wrong_length_is_field_size(free: Hub, name: str, change: int) -> None:
    length = (64 if name == "sig" else 32) + change
    encoded = encoded_with(free.writer().message(), **{name: cbor.encode(bytes(length))})
    assert free.post("/v1/submit", envelope(encoded)).refusal() == expected("FIELD_SIZE")


def test_the_size_cap_is_exact(tmp_path: Path) -> None:
    most = 1024
    with running(make_dir(tmp_path, limits=Limits(max_msg_bytes=most))) as hub:
        writer = hub.writer()
        sealed = writer.message().ciphertext
        room = most - len(writer.message(ciphertext=sealed).encode())
        assert hub.submit(writer.message(ciphertext=sealed + bytes(room + 1))).refusal() == expected("SIZE_PREFILTER")
        assert len(writer.message(ciphertext=sealed + bytes(room)).encode()) == most
        assert hub.submit(writer.message(ciphertext=sealed + bytes(room))).receipt().stream_seq == 1


def test_a_body_far_beyond_the_cap_is_refused_while_it_is_read(free: Hub) -> None:
    reply = free.post("/v1/submit", bytes(3 << 20))
    assert reply.refusal() == expected("SIZE_PREFILTER")


MESSAGE_ENVELOPES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda msg: b"",
    "not a map": lambda msg: b"\x82\x01" + msg,
    "another version": lambda msg: b"\xa2\x01\x02\x02" + msg,
    "an unknown key": lambda msg: b"\xa3\x01\x01\x02" + msg + b"\x03\x00",
    "no message": lambda msg: b"\xa1\x01\x01",
    "keys out of order": lambda msg: b"\xa2\x02" + msg + b"\x01\x01",
    "an overlong head": lambda msg: b"\xb8\x02\x01\x01\x02" + msg,
    "null for a message": lambda msg: b"\xa2\x01\x01\x02\xf6",
    "bytes after the end": lambda msg: envelope(msg) + b"\x00",
    "cut short": lambda msg: envelope(msg)[:-1],
    "a text": lambda msg: b"\x65hello",
}


@pytest.mark.parametrize("name", MESSAGE_ENVELOPES)
def test_every_fault_of_the_submit_envelope_is_cbor_invalid(free: Hub, name: str) -> None:
    body = MESSAGE_ENVELOPES[name](free.writer().message().encode())
    assert free.post("/v1/submit", body).refusal() == expected("CBOR_INVALID")


JSON_ENVELOPES: dict[str, Callable[[Any], bytes]] = {
    "empty": lambda msg: b"",
    "not JSON": lambda msg: b"{",
    "not an object": lambda msg: b"[1]",
    "another version": lambda msg: strict_json.encode({"ver": 2, "msg": msg}),
    "true is not 1": lambda msg: strict_json.encode({"ver": True, "msg": msg}),
    "an unknown name": lambda msg: strict_json.encode({"ver": 1, "msg": msg, "more": 1}),
    "no message": lambda msg: b'{"ver":1}',
    "a message that is no array": lambda msg: b'{"ver":1,"msg":{}}',
    "a field too few": lambda msg: strict_json.encode({"ver": 1, "msg": msg[:-1]}),
    "a field too many": lambda msg: strict_json.encode({"ver": 1, "msg": [*msg, 1]}),
    "a negative number": lambda msg: strict_json.encode({"ver": 1, "msg": [*msg[:4], -1, *msg[5:]]}),
    "a boolean": lambda msg: strict_json.encode({"ver": 1, "msg": [*msg[:4], True, *msg[5:]]}),
    "an array for a field": lambda msg: strict_json.encode({"ver": 1, "msg": [*msg[:4], [1], *msg[5:]]}),
    "half a byte": lambda msg: strict_json.encode({"ver": 1, "msg": [*msg[:-1], msg[-1][:-1]]}),
    "a text for a number": lambda msg: strict_json.encode({"ver": 1, "msg": [*msg[:4], "01", *msg[5:]]}),
}


@pytest.mark.parametrize("name", JSON_ENVELOPES)
def test_every_fault_of_the_json_envelope_is_cbor_invalid(free: Hub, name: str) -> None:
    shown = wire_json.to_json(free.writer().message())
    assert free.post_json("/v1/submit", JSON_ENVELOPES[name](shown)).refusal() == expected("CBOR_INVALID")


# D12, D13 and decision 17.


def test_prev_ack_may_not_pass_the_log_nor_go_back(free: Hub) -> None:
    writer, other = free.writer("ack"), free.writer("ack")
    other.send_many(3)
    assert free.submit(writer.message(prev_ack=4)).refusal() == expected("PREV_ACK")
    writer.send(prev_ack=3)
    refused = free.submit(writer.message(prev_ack=2))
    assert refused.refusal() == expected("PREV_ACK")
    assert (refused.error().detail or {})["stream_seq"] == 4
    assert free.submit(writer.message(prev_ack=4)).receipt().stream_seq == 5


def test_a_client_that_lost_the_reply_learns_the_place_of_its_message(free: Hub) -> None:
    writer = free.writer("lost")
    free.writer("lost").send()
    message = writer.message()
    first = free.submit(message).receipt()
    free.writer("lost").send()
    again = free.submit(message)
    assert again.refusal() == expected("DUPLICATE")
    place = (again.error().detail or {})["stream_seq"]
    assert place == first.stream_seq == 2
    fetched = free.post("/v1/receipt", ReceiptRequest(writer.label, int(place)))
    assert fetched.read(ReceiptResponse).receipt == first


def test_a_resubmission_is_a_duplicate_whatever_its_prev_ack(free: Hub) -> None:
    writer = free.writer("again")
    old = writer.message()
    free.submit(old).receipt()
    writer.accepted(old)
    writer.send(prev_ack=1)
    assert old.prev_ack < 1
    assert free.submit(old).refusal() == expected("DUPLICATE")


def test_another_message_with_a_used_client_seq_is_a_duplicate_without_a_place(free: Hub) -> None:
    writer = free.writer("other")
    writer.send()
    reply = free.submit(writer.message(b"something else", client_seq=1))
    assert reply.refusal() == expected("DUPLICATE")
    assert "stream_seq" not in (reply.error().detail or {})
    assert (reply.error().detail or {})["expected"] == 2


def test_another_message_with_a_used_client_seq_and_a_bad_prev_ack_is_prev_ack(free: Hub) -> None:
    writer = free.writer("both")
    writer.send()
    assert free.submit(writer.message(b"else", client_seq=1, prev_ack=9)).refusal() == expected("PREV_ACK")


@pytest.mark.parametrize("client_seq", [0, 2, 1 << 63, (1 << 64) - 1])
def test_a_first_client_seq_that_is_not_one_is_client_seq(free: Hub, client_seq: int) -> None:
    reply = free.submit(free.writer("first").message(client_seq=client_seq))
    assert reply.refusal() == expected("CLIENT_SEQ")
    assert (reply.error().detail or {})["expected"] == 1


def test_a_refused_message_changes_nothing(free: Hub) -> None:
    writer = free.writer("unchanged")
    writer.send()
    before = free.status()["entries"]
    for given in ({"client_seq": 9}, {"prev_ack": 9}, {"sig": bytes(64)}, {"ct_hash": bytes(32)}):
        assert free.submit(writer.message(**given)).status >= 400
    assert free.status()["entries"] == before
    assert writer.send().stream_seq == 2


# Retry times.


def test_a_rate_refusal_says_how_long_to_wait(strict: Running) -> None:
    hub, clock = strict
    writer = hub.granted("rate", rate=Rate(1, 1))
    writer.send()
    reply = hub.submit(writer.message())
    assert reply.refusal() == expected("CAP_RATE")
    assert reply.error().retry_after == 1
    assert reply.headers["retry-after"] == "1"
    clock.now += 1
    writer.send()


def test_a_rate_that_never_refills_does_not_say_to_wait(strict: Running) -> None:
    reply = faulty.submit(strict[0], draft(*strict, "CAP_RATE"))
    assert reply.error().retry_after is None
    assert "retry-after" not in reply.headers


def test_other_refusals_do_not_say_to_wait(free: Hub) -> None:
    reply = free.submit(free.writer().message(client_seq=9))
    assert reply.error().retry_after is None
    assert "retry-after" not in reply.headers


# Other requests.


def code_of(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error().code


@pytest.mark.parametrize("path", ["/v2/submit", "/v0/stream", "/v10/anything", "/v01/submit"])
@pytest.mark.parametrize("size", [0, 100_000])
def test_another_major_version_is_e_version(free: Hub, path: str, size: int) -> None:
    assert code_of(free.post(path, bytes(size))) == (400, "E.VERSION")
    assert code_of(free.get(path)) == (400, "E.VERSION")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/nothing", "/vx/submit", "/nothing", "/tooling/", "/tooling/no"]
)
@pytest.mark.parametrize("size", [0, 100_000])
def test_an_unknown_path_is_not_found(free: Hub, path: str, size: int) -> None:
    assert code_of(free.post(path, bytes(size))) == (404, "E.NOT_FOUND")
    assert code_of(free.get(path)) == (404, "E.NOT_FOUND")


@pytest.mark.parametrize("path", ["submit", "stream", "receipt", "proof", "checkpoint"])
def test_the_data_plane_is_posted_to(free: Hub, path: str) -> None:
    assert code_of(free.get(f"/v1/{path}")) == (404, "E.NOT_FOUND")


READS = ["/v1/stream", "/v1/receipt", "/v1/proof", "/v1/checkpoint"]
TOOLS = ["/tooling/authorize", "/tooling/proof", "/tooling/consistency", "/tooling/equivocation", "/tooling/witness"]
BAD_BODIES = {
    "empty": b"",
    "not CBOR": b"\xff",
    "not a map": b"\x80",
    "another version": b"\xa1\x01\x02",
    "an unknown key": b"\xa2\x01\x01\x18\x63\x00",
    "trailing": b"\xa1\x01\x01\x00",
}


@pytest.mark.parametrize("path", READS + TOOLS)
@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_malformed_body_elsewhere_is_bad_request(free: Hub, path: str, name: str) -> None:
    reply = free.post(path, BAD_BODIES[name])
    assert code_of(reply) == (400, "E.BAD_REQUEST")
    assert reply.error().detail is None or "stage" not in (reply.error().detail or {})


@pytest.mark.parametrize("path", READS + TOOLS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"ver":2}', b'{"ver":1,"extra":0}'])
def test_a_malformed_json_body_elsewhere_is_bad_request(free: Hub, path: str, body: bytes) -> None:
    reply = free.post_json(path, body)
    assert code_of(reply) == (400, "E.BAD_REQUEST")
    assert reply.is_json


def test_a_malformed_registration_is_bad_request(free: Hub) -> None:
    reply = free.post("/tooling/streams", b"\xa1\x01\x01", authorization=f"Bearer {TOKEN}")
    assert code_of(reply) == (400, "E.BAD_REQUEST")


@pytest.mark.parametrize("path", READS + TOOLS)
def test_a_body_above_the_limit_elsewhere_is_e_limit(free: Hub, path: str) -> None:
    assert code_of(free.post(path, bytes(1 << 20))) == (413, "E.LIMIT")


def test_a_message_for_the_past_of_time_itself_is_refused(strict: Running) -> None:
    hub, _ = strict
    writer = hub.granted("early")
    stale = replace(writer, label=hub.label("early", epoch=0))
    assert hub.submit(stale.message()).refusal() == expected("EPOCH")
    detail = hub.submit(stale.message()).error().detail or {}
    assert detail["epoch"] == PROFILE.epoch(int(detail["hub_ts"]))
    assert int(detail["hub_ts"]) >= START


def test_cbor_and_json_requests_carry_the_same_message(free: Hub) -> None:
    writer = free.writer("forms")
    message = writer.message()
    receipt = free.post_json("/v1/submit", SubmitRequest(message)).receipt()
    assert (free.submit(message).error().detail or {})["stream_seq"] == receipt.stream_seq


def test_a_signature_by_another_key_is_sig_invalid(free: Hub) -> None:
    message = replace(free.writer().message(), client_id=SigningKey.generate().public_key)
    assert free.submit(message).refusal() == expected("SIG_INVALID")
