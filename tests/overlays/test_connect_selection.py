"""Phases 1 to 3 of connecting: what is proposed, what is left out and why, and which capability is needed."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from tests.overlays.directories import (
    KV_OVERLAY,
    OTHER_PROFILE,
    PROFILE,
    RPC_OVERLAY,
    hub,
    id_of,
    overlay,
    service,
)
from tests.overlays.logs import START, log
from veen.core import Malformed, SigningKey, Unverified, cap_token, cbor
from veen.overlays import fold
from veen.overlays.connect import (
    GUARDED_TAGS,
    ISSUE_METHOD,
    CapabilityRoute,
    Choice,
    FoundService,
    HubCriteria,
    ServiceCriteria,
    auth_mode,
    check_capability,
    choose_hubs,
    choose_overlays,
    choose_services,
    found_in,
    issuance,
    issued,
    plan,
    written_streams,
)
from veen.overlays.discovery import DISCOVERY, AuthPolicy, DescriptorKind, HubAdvertise, live_advertisements
from veen.overlays.discovery_query import DirectoryQuery, HubFilter, evaluate
from veen.overlays.rpc import Reply, RpcError, success

WISH = HubCriteria(frozenset({PROFILE}))
SERVICE_WISH = ServiceCriteria(frozenset({RPC_OVERLAY}))
IMPLEMENTED = {"rpc": frozenset({id_of("rpc.v1"), id_of("rpc.res.v1")})}


def of(descriptors: Iterable[Any]) -> list[FoundService[Any]]:
    return [FoundService(one, START + 10) for one in descriptors]


def names(choice: Choice[HubAdvertise]) -> list[str]:
    return [one.descriptor.endpoints[0].url.removeprefix("https://").partition(".")[0] for one in choice.candidates]


def test_a_hub_in_the_region_comes_first_then_one_with_the_overlays_then_the_nearer() -> None:
    wish = replace(WISH, region="x", overlays=(RPC_OVERLAY, KV_OVERLAY))
    hubs = [
        hub("best", region="x", overlays=(RPC_OVERLAY, KV_OVERLAY)),
        hub("near", region="x", overlays=(RPC_OVERLAY,)),
        hub("far", region="x", overlays=(KV_OVERLAY,)),
        hub("silent", region="x", overlays=(KV_OVERLAY,)),
        hub("abroad", region="y", overlays=(RPC_OVERLAY, KV_OVERLAY)),
    ]
    latency = {id_of("near"): 5, id_of("far"): 500, id_of("abroad"): 1}
    for listed in permutations(hubs):
        choice = choose_hubs(of(listed), wish, latency)
        assert names(choice) == ["best", "near", "far", "silent", "abroad"]
    assert choice.left_out == ()


@pytest.mark.parametrize(
    ("one", "wish", "reason"),
    [
        (hub(profile_id=OTHER_PROFILE), WISH, "profile"),
        (hub(), replace(WISH, profiles=frozenset()), "profile"),
        (hub(), replace(WISH, hub_pk=bytes(32)), "pinned"),
        (hub(endpoints=()), WISH, "no endpoint"),
        (hub(tags=("public", "test")), WISH, "tagged test"),
        (hub(tags=("private",)), WISH, "tagged private"),
        (hub(tags=("public",)), replace(WISH, tags_any=("fast", "cheap")), "none of the tags fast, cheap"),
        (hub(), replace(WISH, max_latency_ms=50), "did not answer"),
    ],
)
def test_an_unsuitable_hub_is_excluded_with_the_reason(one: HubAdvertise, wish: HubCriteria, reason: str) -> None:
    choice = choose_hubs(of([one]), wish)
    assert choice.candidates == ()
    (left,) = choice.left_out
    assert left.id == one.hub_id
    assert reason in left.reason


@pytest.mark.parametrize(("took", "fits"), [(49, True), (50, True), (51, False)])
def test_a_hub_above_the_latency_limit_is_excluded(took: int, fits: bool) -> None:
    choice = choose_hubs(of([hub()]), replace(WISH, max_latency_ms=50), {id_of("h1"): took})
    assert bool(choice.candidates) is fits


@pytest.mark.parametrize("tag", sorted(GUARDED_TAGS))
def test_a_guarded_tag_is_proposed_only_on_request(tag: str) -> None:
    asked = replace(WISH, tags_any=(tag,))
    assert names(choose_hubs(of([hub(tags=(tag,))]), asked)) == ["h1"]
    assert choose_services(of([service(tags=(tag,))]), SERVICE_WISH).candidates == ()
    assert choose_services(of([service(tags=(tag,))]), replace(SERVICE_WISH, tags_any=(tag,))).candidates != ()
    other = next(one for one in sorted(GUARDED_TAGS) if one != tag)
    assert choose_hubs(of([hub(tags=(tag, other))]), asked).candidates == ()


def test_a_pinned_key_finds_its_hub() -> None:
    assert names(choose_hubs(of([hub("a"), hub("b")]), replace(WISH, hub_pk=id_of("key of b")))) == ["b"]


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (overlay(schemas=(id_of("rpc.v1"),)), "lacks 1 of the schemas"),
        (overlay(schemas=()), "lacks 2 of the schemas"),
        (overlay(schemas=(id_of("rpc.v1"), id_of("rpc.res.v1"), id_of("rpc.more.v1"))), "1 schemas that this client"),
        (overlay("kv"), "no overlay kv"),
        (overlay(tags=("experimental",)), "tagged experimental"),
    ],
)
def test_an_overlay_with_other_schemas_is_excluded(one: Any, reason: str) -> None:
    choice = choose_overlays(of([one]), IMPLEMENTED)
    assert choice.candidates == ()
    assert reason in choice.left_out[0].reason


def test_an_overlay_whose_schemas_match_in_any_order_is_a_candidate() -> None:
    turned = overlay(schemas=(id_of("rpc.res.v1"), id_of("rpc.v1")))
    choice = choose_overlays(of([turned, overlay("rpc.two")]), IMPLEMENTED, "rpc")
    assert [one.descriptor for one in choice.candidates] == [turned]
    assert "is rpc.two, not rpc" in choice.left_out[0].reason


@pytest.mark.parametrize(
    ("one", "wish", "reason"),
    [
        (service(overlay_id=KV_OVERLAY), SERVICE_WISH, "was not verified"),
        (service(), replace(SERVICE_WISH, overlay_ids=frozenset()), "was not verified"),
        (service(), replace(SERVICE_WISH, method="print"), "no method print"),
        (service(), replace(SERVICE_WISH, name_prefix="mail"), "does not start with mail"),
        (service(stream_ids=()), SERVICE_WISH, "no stream"),
        (service(tags=("internal",)), SERVICE_WISH, "tagged internal"),
    ],
)
def test_an_unsuitable_service_is_excluded_with_the_reason(one: Any, wish: ServiceCriteria, reason: str) -> None:
    choice = choose_services(of([one]), wish)
    assert choice.candidates == ()
    assert reason in choice.left_out[0].reason


def test_a_service_that_prefers_the_region_comes_first() -> None:
    far, near = service("a", regions=("y",)), service("b", regions=("y", "x"))
    choice = choose_services(of([far, near]), replace(SERVICE_WISH, region="x"))
    assert [one.descriptor for one in choice.candidates] == [near, far]


def test_a_fold_and_a_query_answer_give_the_same_candidates() -> None:
    states = fold(DISCOVERY, log(hub("a", region="x"), hub("b"), service(), hub("c", tags=("test",)))).states
    now = START + 20
    folded = choose_hubs(found_in(live_advertisements(states, DescriptorKind.HUB, now), HubAdvertise), WISH)
    results = evaluate(states, DirectoryQuery.of(HubFilter()), now).results
    asked = [FoundService(one, now + one.ttl_sec) for one in results if isinstance(one, HubAdvertise)]
    told = choose_hubs(asked, WISH)
    assert [one.descriptor for one in told.candidates] == [one.descriptor for one in folded.candidates]
    assert told.left_out == folded.left_out
    assert folded.candidates[0].expires_at <= told.candidates[0].expires_at == now + 3600


DESK = service("desk", methods=(ISSUE_METHOD,))


def test_a_service_that_takes_tokens_names_the_service_that_issues_them() -> None:
    found = plan(service(), [service("other"), DESK])
    assert (found.route, found.issuer) == (CapabilityRoute.SERVICE, DESK)
    assert (found.required_caps, found.stream_ids) == (("write",), (id_of("requests"),))


@pytest.mark.parametrize(
    "services",
    [[], [service("other")], [service("desk")], [service("desk", methods=(ISSUE_METHOD,), stream_ids=())]],
)
def test_without_a_live_issuer_the_token_comes_from_the_operator(services: list[Any]) -> None:
    found = plan(service(), services)
    assert (found.route, found.issuer, found.operator) == (CapabilityRoute.OPERATOR, None, service().operator)


@pytest.mark.parametrize("details", [None, cbor.encode(7), cbor.encode({}), cbor.encode({"issuer_service": "desk"})])
def test_details_without_an_issuer_lead_to_the_operator(details: bytes | None) -> None:
    assert plan(service(auth_policy=AuthPolicy("cap_token", details)), [DESK]).route is CapabilityRoute.OPERATOR


@pytest.mark.parametrize(
    ("given", "mode", "route"),
    [
        ({"auth_policy": AuthPolicy("none")}, "none", CapabilityRoute.NONE),
        ({"auth_policy": AuthPolicy("mtls")}, "mtls", CapabilityRoute.OUTSIDE),
        ({"auth_policy": AuthPolicy("other")}, "other", CapabilityRoute.OUTSIDE),
        ({"auth_policy": AuthPolicy("never heard of")}, "never heard of", CapabilityRoute.OUTSIDE),
        ({"auth_policy": None}, "cap_token", CapabilityRoute.OPERATOR),
        ({"auth_policy": None, "required_caps": ()}, "none", CapabilityRoute.NONE),
    ],
)
def test_the_auth_policy_of_a_service_determines_the_route(
    given: dict[str, Any], mode: str, route: CapabilityRoute
) -> None:
    assert auth_mode(service(**given)) == mode
    assert plan(service(**given), [DESK]).route is route


def test_a_caller_writes_only_to_the_request_stream() -> None:
    assert written_streams(service()) == (id_of("requests"),)
    assert written_streams(service(methods=())) == (id_of("requests"), id_of("replies"))


ISSUER, CLIENT = SigningKey(bytes(32)), SigningKey(b"\x01" * 32)
PLAN = plan(service(), [DESK])
TOKEN = cap_token.mint(ISSUER, CLIENT.public_key, [id_of("requests")], 3600)


def test_an_issuance_call_has_subject_streams_and_ttl() -> None:
    call = issuance(PLAN, CLIENT.public_key, ttl=60, timeout_ms=5)
    assert (call.method, call.timeout_ms) == (ISSUE_METHOD, 5)
    assert cbor.decode(call.args) == {
        "ttl": 60,
        "caps": ("write",),
        "stream_ids": (id_of("requests"),),
        "subject_pk": CLIENT.public_key,
    }
    assert b"ttl" not in issuance(PLAN, CLIENT.public_key).args


def test_the_token_of_an_issuance_is_checked_before_use() -> None:
    assert issued(success(TOKEN.encode()), PLAN, CLIENT.public_key) == TOKEN
    wider = cap_token.mint(ISSUER, CLIENT.public_key, [id_of("requests"), bytes(32)], 3600)
    check_capability(wider, PLAN, CLIENT.public_key)


@pytest.mark.parametrize(
    "token",
    [
        cap_token.mint(ISSUER, ISSUER.public_key, [id_of("requests")], 3600),
        cap_token.mint(ISSUER, CLIENT.public_key, [id_of("replies")], 3600),
        replace(TOKEN, sig_chain=(bytes(64),)),
        replace(TOKEN, issuer_pk=CLIENT.public_key),
    ],
    ids=["of another client", "for other streams", "not signed", "of another issuer"],
)
def test_a_token_that_does_not_meet_the_plan_is_rejected(token: cap_token.CapToken) -> None:
    with pytest.raises(Unverified):
        issued(success(token.encode()), PLAN, CLIENT.public_key)


@pytest.mark.parametrize(
    "answered", [success(None), success(7), success(b"\xa0"), Reply(False, error=RpcError("NO")), success("token")]
)
def test_an_issuance_without_a_token_is_refused(answered: Reply) -> None:
    with pytest.raises((Unverified, Malformed)):
        issued(answered, PLAN, CLIENT.public_key)
