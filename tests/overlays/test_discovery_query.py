"""disc.query: filters, pages, and queries as calls. 001, spec-5 §6."""

from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest

from tests.overlays.directories import KV_OVERLAY, RPC_OVERLAY, hub, id_of, overlay, service
from tests.overlays.logs import START, LogLine, log, msg_id
from veen.core import Malformed, cbor
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays import Event, fold
from veen.overlays.discovery import DISCOVERY, MAX_DESCRIPTOR_BYTES, Descriptor, DirectoryRecord, HubRetire
from veen.overlays.discovery_query import (
    BAD_QUERY,
    MAX_RESULTS,
    METHOD,
    UNKNOWN_KIND,
    DirectoryQuery,
    Filter,
    HubFilter,
    OverlayFilter,
    QueryResult,
    ServiceFilter,
    evaluate,
    pending_queries,
    reply,
    request,
    result_of,
)
from veen.overlays.rpc import RPC, CallRequest, Reply, RpcError, success

NOW = START + 100


def directory(*events: Event) -> dict[bytes, DirectoryRecord]:
    return fold(DISCOVERY, log(*events)).states


def found(states: dict[bytes, DirectoryRecord], wanted: Filter) -> set[bytes]:
    answer = evaluate(states, DirectoryQuery.of(wanted), NOW)
    assert answer.ok
    assert answer.error is None
    return {one.id for one in answer.results}


HUBS = directory(
    hub("a", region="x", tags=("public",), overlays=(RPC_OVERLAY,)),
    hub("b", region="y", tags=("public", "test"), overlays=(RPC_OVERLAY, KV_OVERLAY)),
    hub("c", region="xy", tags=(), overlays=()),
    hub("gone"),
    HubRetire(id_of("gone")),
    hub("old", ttl_sec=1),
)
SERVICES = directory(
    service("bill", methods=("charge",), regions=("x", "y"), tags=("public",)),
    service("billing", methods=("charge", "refund"), overlay_id=KV_OVERLAY, regions=(), tags=("beta",)),
    service("mail", methods=(), regions=("y",), tags=()),
)
OVERLAYS = directory(
    overlay("rpc", tags=("stable",)), overlay("rpc.two", schemas=(id_of("s"),), tags=()), overlay("kv", schemas=())
)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (HubFilter(), "a b c"),
        (HubFilter(region="x"), "a"),
        (HubFilter(region=""), ""),
        (HubFilter(tags_any=("test", "nothing")), "b"),
        (HubFilter(tags_any=("public",)), "a b"),
        (HubFilter(tags_any=("pub",)), ""),
        (HubFilter(overlay_id=RPC_OVERLAY), "a b"),
        (HubFilter(overlay_id=bytes(32)), ""),
        (HubFilter("y", ("public",), KV_OVERLAY), "b"),
        (HubFilter("x", ("public",), KV_OVERLAY), ""),
    ],
)
def test_hubs_are_found_by_region_tags_and_overlay(wanted: HubFilter, expected: str) -> None:
    assert found(HUBS, wanted) == {id_of(name) for name in expected.split()}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ServiceFilter(), "bill billing mail"),
        (ServiceFilter(name_prefix="bill"), "bill billing"),
        (ServiceFilter(name_prefix="ill"), ""),
        (ServiceFilter(method="refund"), "billing"),
        (ServiceFilter(method="charg"), ""),
        (ServiceFilter(overlay_id=RPC_OVERLAY), "bill mail"),
        (ServiceFilter(region="y"), "bill mail"),
        (ServiceFilter(tags_any=("beta", "public")), "bill billing"),
        (ServiceFilter("bill", "charge", KV_OVERLAY, None, ("beta",)), "billing"),
        (ServiceFilter("bill", "charge", KV_OVERLAY, "x", ("beta",)), ""),
    ],
)
def test_services_are_found_by_name_method_overlay_region_and_tags(wanted: ServiceFilter, expected: str) -> None:
    assert found(SERVICES, wanted) == {id_of(f"service {name}") for name in expected.split()}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (OverlayFilter(), "rpc rpc.two kv"),
        (OverlayFilter(name_prefix="rpc"), "rpc rpc.two"),
        (OverlayFilter(schema=id_of("s")), "rpc.two"),
        (OverlayFilter(tags_any=("stable",)), "rpc kv"),
        (OverlayFilter("rpc", id_of("rpc.v1"), ("stable",)), "rpc"),
        (OverlayFilter("kv", id_of("rpc.v1")), ""),
    ],
)
def test_overlays_are_found_by_name_schema_and_tags(wanted: OverlayFilter, expected: str) -> None:
    assert found(OVERLAYS, wanted) == {id_of(f"overlay {name}") for name in expected.split()}


def test_filters_agree_with_a_plain_reading_of_the_table() -> None:
    random = Random(5)
    for _ in range(300):
        tags = {name: tuple(random.sample(["p", "q", "r"], random.randrange(3))) for name in "abcd"}
        regions = {name: random.choice("xy") for name in "abcd"}
        states = directory(*(hub(name, tags=tags[name], region=regions[name]) for name in "abcd"))
        region, wanted = random.choice([None, "x", "y"]), random.choice([None, ("p",), ("q", "r")])
        expected = {
            id_of(name)
            for name in "abcd"
            if (region is None or regions[name] == region) and (wanted is None or any(t in wanted for t in tags[name]))
        }
        assert found(states, HubFilter(region, wanted)) == expected


MANY = directory(*(hub(f"h{number}") for number in range(MAX_RESULTS + 30)))
IN_ORDER = sorted(id_of(f"h{number}") for number in range(MAX_RESULTS + 30))


@pytest.mark.parametrize(
    ("limit", "offset", "first", "count", "more"),
    [
        (None, None, 0, MAX_RESULTS, True),
        (MAX_RESULTS + 20, None, 0, MAX_RESULTS, True),
        (10, 0, 0, 10, True),
        (10, 125, 125, 5, False),
        (5, 125, 125, 5, False),
        (4, 125, 125, 4, True),
        (None, 30, 30, MAX_RESULTS, False),
        (None, 500, 0, 0, False),
        (None, (1 << 64) - 1, 0, 0, False),
        (0, None, 0, 0, True),
        (0, 500, 0, 0, False),
    ],
)
def test_a_page_is_ordered_bounded_and_flags_more_results(
    limit: int | None, offset: int | None, first: int, count: int, more: bool
) -> None:
    answer = evaluate(MANY, DirectoryQuery.of(HubFilter(), limit, offset), NOW)
    assert [one.id for one in answer.results] == IN_ORDER[first : first + count]
    assert answer.more is more


def test_all_pages_together_are_the_complete_result() -> None:
    listed: list[bytes] = []
    while True:
        answer = evaluate(MANY, DirectoryQuery.of(HubFilter(), 7, len(listed)), NOW)
        listed += [one.id for one in answer.results]
        if not answer.more:
            break
    assert listed == IN_ORDER


def test_an_answer_fits_into_a_message_and_every_descriptor_can_be_had() -> None:
    large = [replace(one, version="v" * 15_000) for one in (hub(f"h{number}") for number in range(110))]
    assert all(len(one.encode()) <= MAX_DESCRIPTOR_BYTES for one in large)
    states, seen = directory(*large), 0
    while True:
        call = request(DirectoryQuery.of(HubFilter(), None, seen))
        (one,) = pending_queries(fold(RPC, log(call)).states, START)
        sent = reply(one.asked.request, states, NOW)
        assert len(sent.encode()) < MAX_BODY_BYTES
        answer = result_of(sent)
        assert answer.results
        seen += len(answer.results)
        if not answer.more:
            break
    assert seen == 110


def test_the_same_directory_gives_the_same_answer_whatever_the_order_it_came_in() -> None:
    events = [hub(f"h{number}") for number in range(20)]
    query = DirectoryQuery.of(HubFilter(), 5, 3)
    first = evaluate(directory(*events), query, NOW)
    assert first == evaluate(directory(*events[::-1]), query, NOW)
    assert first.encode() == evaluate(directory(*events[5:], *events[:5]), query, NOW).encode()


def test_bodies_have_the_listed_keys_in_the_listed_order() -> None:
    schemas = [DirectoryQuery.SCHEMA, QueryResult.SCHEMA]
    assert schemas == [sha256(name).digest() for name in (b"disc.query.v1", b"disc.query.res.v1")]
    query = DirectoryQuery.of(ServiceFilter("n", "m", bytes(32), "r", ("t",)), 5, 6)
    assert query.encode() == (
        b"\xa4\x64kind\x67service\x66filter\xa5\x6bname_prefix\x61n\x66method\x61m\x6aoverlay_id\x58\x20" + bytes(32)
        + b"\x66region\x61r\x68tags_any\x81\x61t\x65limit\x05\x66offset\x06"
    )  # fmt: skip
    assert DirectoryQuery.of(HubFilter()).encode() == b"\xa2\x64kind\x63hub\x66filter\xa0"
    failed = QueryResult(False, (), False, RpcError("c"))
    assert failed.encode() == b"\xa4\x62ok\xf4\x67results\x80\x64more\xf4\x65error\xa1\x64code\x61c"
    assert QueryResult(True, (hub(),), True).encode() == (
        b"\xa3\x62ok\xf5\x67results\x81" + hub().encode() + b"\x64more\xf5"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xa0",
        b"\xa1\x64kind\x63hub",
        b"\xa2\x66filter\xa0\x64kind\x63hub",
        b"\xa2\x64kind\x63hub\x66filter\xa1\x61x\x01",
        b"\xa2\x64kind\x63hub\x66filter\x80",
        b"\xa2\x64kind\x63hub\x66filter\xf6",
        b"\xa2\x64kind\x01\x66filter\xa0",
        b"\xa3\x64kind\x63hub\x66filter\xa0\x61x\x01",
        b"\xa3\x64kind\x63hub\x66filter\xa0\x66offset\x20",
        b"\xa2\x64kind\x63hub\x66filter\xa0\x00",
        b"\xa2\x64kind\x63hub\x66filter\xa1\x68tags_any\x80",
        b"\xa2\x64kind\x63hub\x66filter\xa2\x68tags_any\x81\x61t\x66region\x61r",
    ],
)
def test_a_query_in_another_encoding_does_not_decode(body: bytes) -> None:
    with pytest.raises(Malformed):
        DirectoryQuery.decode(body)


def test_a_success_has_no_error() -> None:
    with pytest.raises(ValueError, match="must not have an error"):
        QueryResult(True, (), False, RpcError("c")).encode()
    with pytest.raises(Malformed):
        QueryResult.decode(b"\xa4\x62ok\xf5\x67results\x80\x64more\xf4\x65error\xa1\x64code\x61c")


@pytest.mark.parametrize("filter_", [b"", b"\xa0\x00", b"\x80", b"\xa1\x61x\x01"])
def test_an_invalid_filter_cannot_be_sent(filter_: bytes) -> None:
    with pytest.raises(ValueError, match=r"filter|byte"):
        DirectoryQuery("hub", filter_).encode()


def test_a_query_of_an_unknown_kind_or_with_the_filter_of_another_is_answered_with_an_error() -> None:
    unknown = evaluate(HUBS, DirectoryQuery("printer", b"\xa0"), NOW)
    assert (unknown.ok, unknown.results, unknown.more, unknown.error) == (
        False,
        (),
        False,
        RpcError(UNKNOWN_KIND, "printer"),
    )
    other = evaluate(HUBS, DirectoryQuery("hub", ServiceFilter(method="m").encode()), NOW)
    assert other.error is not None
    assert (other.ok, other.results, other.error.code) == (False, (), BAD_QUERY)
    short = DirectoryQuery.decode(DirectoryQuery("hub", b"\xa1\x6aoverlay_id\x41x").encode())
    assert evaluate(HUBS, short, NOW).ok is False


def ask(*said: Event | LogLine, states: dict[bytes, DirectoryRecord] = HUBS) -> list[Reply]:
    """What a server sends for the calls of a stream."""
    pending = pending_queries(fold(RPC, log(*said)).states, START)
    return [one.known or reply(one.asked.request, states, NOW) for one in pending]


def test_a_query_is_a_call_and_its_answer_a_reply_to_it() -> None:
    query = DirectoryQuery.of(HubFilter(region="x"))
    call = request(query, timeout_ms=5000, idem=7)
    assert (call.method, cbor.decode(call.args), call.timeout_ms, call.idem) == (METHOD, query.encode(), 5000, 7)
    (one,) = pending_queries(fold(RPC, log(call)).states, START)
    answer = result_of(reply(one.asked.request, HUBS, NOW))
    assert answer == evaluate(HUBS, query, NOW)
    assert [one.id for one in answer.results] == [id_of("a")]


def test_a_descriptor_comes_out_of_an_answer_byte_for_byte() -> None:
    one: Descriptor = service()
    (answered,) = ask(request(DirectoryQuery.of(ServiceFilter())), states=directory(one))
    assert one.encode() in answered.encode()
    assert result_of(answered).results == (one,)


@pytest.mark.parametrize("args", [b"\xf6", b"\x40", b"\xa0", b"\x41\xa0", b"\x63abc"])
def test_a_call_whose_arguments_are_no_query_is_answered_with_an_error(args: bytes) -> None:
    (answered,) = ask(CallRequest(METHOD, args))
    assert answered.ok
    answer = result_of(answered)
    assert answer.error is not None
    assert (answer.ok, answer.results, answer.error.code) == (False, (), BAD_QUERY)


def test_a_server_of_queries_leaves_other_methods_and_answered_calls_alone() -> None:
    query = request(DirectoryQuery.of(HubFilter()))
    assert len(ask(CallRequest("add", b"\x80"), query)) == 1
    assert ask(query, LogLine(success(1), msg_id(1))) == []
    assert ask(replace(query, timeout_ms=0), LogLine(query, after=5000)) != []


def test_queries_are_answered_in_log_order_and_not_after_their_deadline() -> None:
    early, late = request(DirectoryQuery.of(HubFilter()), timeout_ms=1000), request(DirectoryQuery.of(OverlayFilter()))
    calls = fold(RPC, log(late, early, late)).states
    assert [one.call_id for one in pending_queries(calls, START)] == [msg_id(1), msg_id(2), msg_id(3)]
    assert [one.call_id for one in pending_queries(calls, START + 60)] == [msg_id(1), msg_id(3)]


def test_a_repeated_query_with_the_same_key_gets_the_same_answer() -> None:
    query = request(DirectoryQuery.of(HubFilter()), idem=3)
    (first,) = ask(query)
    (again,) = ask(query, LogLine(first, msg_id(1), client=2), query, states=MANY)
    assert again == first


@pytest.mark.parametrize(
    "answered",
    [success(1), success(None), success(b""), success(b"\xa0"), Reply(False, error=RpcError("RPC.UNKNOWN_METHOD"))],
)
def test_an_undecodable_reply_has_no_results(answered: Reply) -> None:
    result = result_of(answered)
    assert (result.ok, result.results) == (False, ())
    assert result.error is not None
