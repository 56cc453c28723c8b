"""RPC0: requests, replies, idempotency keys, timeouts. 001, spec-1 §24."""

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import CLIENTS, START, LogLine, log, logs, msg_id
from veen.core import Malformed, PayloadHdr, cbor
from veen.overlays import Event, FaultKind, Fold, FoldEntry, check_laws, fold
from veen.overlays.rpc import (
    RPC,
    CallRequest,
    PendingReply,
    Reply,
    RpcError,
    answer,
    call_part,
    first_of,
    pending_replies,
    success,
)

NULL = cbor.encode(None)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        CallRequest,
        st.sampled_from(["add", "x"]),
        st.sampled_from([NULL, cbor.encode([1, 2])]),
        st.sampled_from([None, 0, 5000]),
        st.none(),
        st.sampled_from([None, None, 1, 2]),
    ),
    st.sampled_from([success(3), success(None), Reply(False, error=RpcError("E", None))]),
)


@given(logs(events))
def test_calls_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(RPC, entries)


def request(idem: int | None = None, timeout_ms: int | None = None, args: cbor.Value = (1, 2)) -> CallRequest:
    return CallRequest("add", cbor.encode(args), timeout_ms, None, idem)


def reply_to(number: int, result: cbor.Value = 3) -> LogLine:
    return LogLine(success(result), msg_id(number), client=2)


def due(folded: Fold, now: int = 0) -> list[PendingReply]:  # type: ignore[type-arg]
    return list(pending_replies(folded.states, folded.states, (START + now) * 1000))


def test_the_schemas_are_the_hashes_of_their_names_and_bodies_have_the_listed_keys() -> None:
    schemas = (CallRequest.SCHEMA, Reply.SCHEMA)
    assert schemas == (sha256(b"rpc.v1").digest(), sha256(b"rpc.res.v1").digest())
    full = CallRequest("m", b"\x80", 7, bytes(32), 9).encode()
    assert full == (
        b"\xa5\x66method\x61m\x64args\x80\x6atimeout_ms\x07\x68reply_to\x58\x20" + bytes(32) + b"\x64idem\x09"
    )
    assert CallRequest("m", b"\xf6").encode() == b"\xa2\x66method\x61m\x64args\xf6"
    assert success(1).encode() == b"\xa2\x62ok\xf5\x66result\x01"
    failed = Reply(False, error=RpcError("c", "d")).encode()
    assert failed == b"\xa2\x62ok\xf4\x65error\xa2\x64code\x61c\x66detail\x61d"


@pytest.mark.parametrize(
    "body",
    [
        b"\xa1\x62ok\xf5",
        b"\xa1\x62ok\xf4",
        b"\xa2\x62ok\xf4\x66result\x01",
        b"\xa3\x62ok\xf5\x66result\x01\x65error\xa1\x64code\x61c",
        b"\xa2\x62ok\xf5\x65error\xa1\x64code\x61c",
        b"\xa2\x62ok\x01\x66result\x01",
        b"\xa2\x62ok\xf5\x66result\xf9\x3c\x00",
        b"\xa2\x62ok\xf4\x65error\xa1\x66detail\x61d",
        b"\xa2\x62ok\xf4\x65error\xa2\x64code\x61c\x61x\x00",
    ],
)
def test_a_reply_that_is_neither_success_nor_failure_does_not_decode(body: bytes) -> None:
    with pytest.raises(Malformed):
        Reply.decode(body)


@pytest.mark.parametrize("result", [b"", b"\x01\x02", b"\xf9\x00\x00"])
def test_a_result_that_is_not_one_value_cannot_be_sent(result: bytes) -> None:
    with pytest.raises(ValueError, match="result"):
        Reply(True, result).encode()


def test_a_null_result_is_a_result() -> None:
    folded = fold(RPC, log(request(), reply_to(1, None)))
    found = answer(folded.states, msg_id(1))
    assert found is not None
    assert found.reply == Reply(True, NULL)


def test_the_first_reply_is_the_answer_and_the_next_is_refused() -> None:
    folded = fold(RPC, log(request(), reply_to(1, 3), reply_to(1, 4)))
    found = answer(folded.states, msg_id(1))
    assert found is not None
    assert (cbor.decode(found.reply.result or b""), found.client_id, found.stream_seq) == (3, CLIENTS[2], 2)
    assert [(fault.stream_seq, fault.reason) for fault in folded.faults] == [(3, "the call is already answered")]


def test_a_reply_that_names_no_request_is_malformed() -> None:
    folded = fold(RPC, log(success(1)))
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


def test_a_reply_may_be_on_another_stream_than_its_request() -> None:
    folded = fold(RPC, log(reply_to(50)))
    assert answer(folded.states, msg_id(50)) is not None
    assert due(folded) == []


def test_each_open_call_has_a_pending_reply_in_order() -> None:
    folded = fold(RPC, log(request(), request(), reply_to(1), request()))
    assert [one.call_id for one in due(folded)] == [msg_id(2), msg_id(4)]


def test_requests_with_one_idempotency_key_are_one_request() -> None:
    folded = fold(RPC, log(request(7), request(7), request(7)))
    assert [one.call_id for one in due(folded)] == [msg_id(1)]
    assert first_of(folded.states, msg_id(3)) == msg_id(1)
    folded.add(log(reply_to(1, 3), start=4)[0])
    again = due(folded)
    assert [(one.call_id, one.known) for one in again] == [(msg_id(2), success(3)), (msg_id(3), success(3))]
    assert answer(folded.states, msg_id(2)) == answer(folded.states, msg_id(1)) is not None


@pytest.mark.parametrize(
    "other",
    [
        request(8),
        LogLine(request(7), client=1),
        CallRequest("other", NULL, None, None, 7),
        request(None),
        LogLine(request(7), msg_id(70)),
    ],
)
def test_another_method_client_or_number_is_another_request(other: Event | LogLine) -> None:
    folded = fold(RPC, log(request(7), other))
    assert len(due(folded)) == 2


def test_mirrored_requests_of_two_clients_do_not_share_a_key_because_one_bridge_signed_both() -> None:
    folded = fold(
        RPC, log(LogLine(request(7), msg_id(70)), LogLine(request(7), msg_id(71)), LogLine(request(7), msg_id(71)))
    )
    assert [one.call_id for one in due(folded)] == [msg_id(70), msg_id(71)]
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY]


@pytest.mark.parametrize(("timeout_ms", "open_for"), [(0, 0), (999, 0), (1000, 1), (60_000, 60)])
def test_a_timed_out_call_has_no_pending_reply(timeout_ms: int, open_for: int) -> None:
    folded = fold(RPC, log(request(None, timeout_ms)))
    assert due(folded, 1 + open_for)
    assert not due(folded, 2 + open_for)


def test_an_answer_that_came_late_is_still_the_answer() -> None:
    folded = fold(RPC, log(request(None, 5), replace(reply_to(1), after=500)))
    assert answer(folded.states, msg_id(1)) is not None
    assert not folded.states[call_part(msg_id(1))].timed_out(START * 2000)


def test_the_header_expiry_limits_a_call_too() -> None:
    (entry,) = log(request(None, 60_000))
    ending = replace(entry, header=PayloadHdr(CallRequest.SCHEMA, expires_at=entry.hub_ts + 5))
    folded = fold(RPC, [ending])
    assert due(folded, 6)
    assert not due(folded, 7)


def test_a_repeated_request_gets_the_same_answer_without_a_second_execution() -> None:
    folded = fold(RPC, log(request(7), reply_to(1, 3), request(7)))
    (one,) = due(folded)
    assert one.known == success(3)


def test_a_call_shows_its_method_and_answer() -> None:
    folded = fold(RPC, log(request(7), reply_to(1, 3)))
    part = call_part(msg_id(1))
    shown = RPC.plain(part, folded.states[part])
    assert shown == {"call": msg_id(1), "method": "add", "args": (1, 2), "ok": True, "result": 3}


def test_a_timed_out_call_is_pending_again_once_it_is_repeated_with_the_same_key() -> None:
    folded = fold(RPC, log(request(7, 1000), request(7, 60_000), request(7, 60_000)))
    assert [(one.call_id, one.known) for one in due(folded, 30)] == [(msg_id(1), None)]
    folded.add(log(reply_to(1, 3), start=4)[0])
    assert [(one.call_id, one.known) for one in due(folded, 30)] == [(msg_id(2), success(3)), (msg_id(3), success(3))]
    assert not due(folded, 100)


def test_a_timed_out_call_without_a_repeat_has_no_pending_reply() -> None:
    folded = fold(RPC, log(request(7, 1000), request(7, 1000), request(8, 60_000)))
    assert [one.call_id for one in due(folded, 30)] == [msg_id(3)]
