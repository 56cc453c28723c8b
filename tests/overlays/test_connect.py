"""Connections: each phase stands on the one before it, and nothing is sent to a hub that is not trusted."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.directories import PROFILE, RPC_OVERLAY, id_of
from tests.overlays.logs import START, LogLine, log, logs, msg_id
from veen.core import cbor
from veen.overlays import Event, FaultKind, Fold, FoldEntry, check_laws, fold
from veen.overlays.connect import (
    CONNECT,
    NO_CONNECTION,
    Authorized,
    CallRoute,
    CapabilityRoute,
    ConnectionEnded,
    HubChosen,
    NotBound,
    Phase,
    Planned,
    ServiceBound,
    ServiceChosen,
    ServiceConnection,
    binding,
    call,
    call_route,
)
from veen.overlays.discovery import ServiceEndpoint

LATER = START + 10_000
REQUESTS, REPLIES = id_of("requests"), id_of("replies")
HUB = HubChosen("w", id_of("h1"), id_of("key"), PROFILE, ServiceEndpoint("https", "https://h1.example"), True, LATER)
SERVICE = ServiceChosen("w", id_of("s"), RPC_OVERLAY, ("charge",), (REQUESTS, REPLIES), ("write",), "cap_token", LATER)
PLAN = Planned("w", CapabilityRoute.OPERATOR)
AUTH = Authorized("w", id_of("cap"), LATER)
BOUND = ServiceBound("w", (REQUESTS,), (REPLIES,))
PHASES = (HUB, SERVICE, PLAN, AUTH, BOUND)
FREE = replace(SERVICE, auth_mode="none")
FREE_PLAN = Planned("w", CapabilityRoute.NONE)


def after(*said: Event | LogLine) -> ServiceConnection:
    state = fold(CONNECT, log(*said)).state(b"w")
    assert isinstance(state, ServiceConnection)
    return state


def refused(*said: Event | LogLine) -> str:
    """Why the last of these changes nothing."""
    folded = fold(CONNECT, log(*said))
    (fault,) = folded.faults
    assert (fault.kind, fault.stream_seq) == (FaultKind.REFUSED, len(said))
    assert folded.states == fold(CONNECT, log(*said[:-1])).states
    return fault.reason


TIMES = st.sampled_from([START - 1, START + 1, START + 50, LATER])
NAMES = st.sampled_from(["w", "v"])
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(lambda name, trusted, ends: replace(HUB, name=name, trusted=trusted, expires_at=ends),
              NAMES, st.sampled_from([True, True, False]), TIMES),
    st.builds(lambda name, mode, ends: replace(SERVICE, name=name, auth_mode=mode, expires_at=ends),
              NAMES, st.sampled_from(["cap_token", "none", "mtls"]), TIMES),
    st.builds(Planned, NAMES, st.sampled_from([*CapabilityRoute, "x"]), st.sampled_from([None, None, id_of("s")]),
              st.one_of(st.none(), TIMES)),
    st.builds(Authorized, NAMES, st.just(id_of("cap")), TIMES),
    st.builds(ServiceBound, NAMES, st.sampled_from([(REQUESTS,), (), (bytes(32),)]), st.just((REPLIES,))),
    st.builds(ConnectionEnded, NAMES, st.sampled_from([None, "done"])),
)  # fmt: skip


@given(logs(events))
def test_connections_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(CONNECT, entries)


@given(logs(events, most=40))
def test_no_connection_is_bound_without_trust_and_its_requirements(entries: list[FoldEntry]) -> None:
    folded = Fold(CONNECT)
    for entry in entries:
        folded.add(entry)
        for state in folded.states.values():
            reached = [state.hub, state.service, state.plan]
            assert reached == [one for one in reached if one] + [None] * reached.count(None)
            if state.bound is not None:
                assert state.hub is not None
                assert state.hub.trusted
                assert state.plan is not None
                assert (state.authorized is not None) is state.needs_token


def test_the_four_phases_lead_to_a_service_that_can_be_called() -> None:
    phases = [after(*PHASES[:count]).phase for count in range(6)]
    assert phases == [Phase.ABSENT, Phase.HUB, Phase.SERVICE, Phase.PLANNED, Phase.AUTHORIZED, Phase.BOUND]
    assert fold(CONNECT, log(*PHASES)).faults == []
    state = after(*PHASES)
    assert [state.usable(now) for now in (START, LATER, LATER + 1)] == [True, True, False]


def test_a_service_without_capabilities_needs_only_a_plan() -> None:
    state = after(HUB, FREE, FREE_PLAN, BOUND)
    assert state.phase is Phase.BOUND
    assert state.usable(LATER + 1)
    assert refused(HUB, FREE, FREE_PLAN, AUTH) == "the service needs no capability"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((SERVICE,), "choose a hub first"),
        ((PLAN,), "choose a hub first"),
        ((ConnectionEnded("w"),), "choose a hub first"),
        ((HUB, PLAN), "no service is chosen"),
        ((HUB, AUTH), "there is no authorization plan yet"),
        ((HUB, BOUND), "there is no authorization plan yet"),
        ((HUB, SERVICE, AUTH), "there is no authorization plan yet"),
        ((HUB, SERVICE, BOUND), "there is no authorization plan yet"),
        ((HUB, SERVICE, PLAN, BOUND), "has not accepted a capability"),
        ((HUB, ConnectionEnded("w"), SERVICE), "choose a hub first"),
        ((HUB, ConnectionEnded("w"), ConnectionEnded("w")), "choose a hub first"),
        ((HUB, replace(SERVICE, stream_ids=())), "lists no stream"),
        ((HUB, SERVICE, Planned("w", CapabilityRoute.NONE)), "route none does not fit"),
        ((HUB, SERVICE, Planned("w", CapabilityRoute.OUTSIDE)), "route outside does not fit"),
        ((HUB, SERVICE, Planned("w", "x")), "route x does not fit"),
        ((HUB, FREE, PLAN), "does not fit auth mode none"),
        ((HUB, replace(SERVICE, auth_mode="mtls"), PLAN), "does not fit auth mode mtls"),
        ((HUB, SERVICE, Planned("w", CapabilityRoute.SERVICE)), "issuer_service is required with route service"),
        (
            (HUB, SERVICE, Planned("w", CapabilityRoute.OPERATOR, id_of("desk"))),
            "issuer_service is required with route service",
        ),
        ((HUB, SERVICE, PLAN, AUTH, ServiceBound("w", (), (REPLIES,))), "request_streams is empty"),
        ((HUB, SERVICE, PLAN, AUTH, ServiceBound("w", (bytes(32),), (REPLIES,))), "does not belong to the service"),
        ((HUB, SERVICE, PLAN, AUTH, ServiceBound("w", (REQUESTS,), (bytes(32),))), "does not belong to the service"),
    ],
)
def test_a_step_out_of_order_or_against_the_choice_is_refused(said: tuple[Event, ...], reason: str) -> None:
    assert reason in refused(*said)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((replace(HUB, trusted=False), SERVICE, PLAN, AUTH), "not trusted"),
        ((replace(HUB, trusted=False), FREE, FREE_PLAN, BOUND), "not trusted"),
    ],
)
def test_an_untrusted_hub_gets_no_token_and_no_messages(said: tuple[Event, ...], reason: str) -> None:
    assert reason in refused(*said)


@pytest.mark.parametrize(
    ("before", "last", "reason"),
    [
        ((), lambda ends: replace(HUB, expires_at=ends), "hub's advertisement"),
        ((HUB,), lambda ends: replace(SERVICE, expires_at=ends), "service's advertisement"),
        ((HUB, SERVICE, PLAN), lambda ends: replace(AUTH, expires_at=ends), "capability has expired"),
    ],
)
def test_an_expired_advertisement_cannot_be_chosen(
    before: tuple[Event, ...], last: Callable[[int], Event], reason: str
) -> None:
    now = START + len(before) + 1
    assert reason in refused(*before, last(now - 1))
    assert fold(CONNECT, log(*before, last(now))).faults == []


@pytest.mark.parametrize(
    ("said", "last", "reason"),
    [
        ((replace(HUB, expires_at=START + 50),), SERVICE, "hub's advertisement"),
        ((HUB, replace(SERVICE, expires_at=START + 50)), PLAN, "service's advertisement"),
        ((HUB, replace(FREE, expires_at=START + 50), FREE_PLAN), BOUND, "service's advertisement"),
        ((HUB, SERVICE, replace(PLAN, wait_until=START + 50)), AUTH, "has timed out"),
        ((HUB, SERVICE, PLAN, replace(AUTH, expires_at=START + 50)), BOUND, "capability has expired"),
    ],
)
def test_a_step_requires_that_earlier_phases_are_still_valid(said: tuple[Event, ...], last: Event, reason: str) -> None:
    gone = 50 - len(said)
    assert fold(CONNECT, log(*said, LogLine(last, after=gone))).faults == []
    assert reason in refused(*said, LogLine(last, after=gone + 1))


def test_a_repeated_choice_resets_later_phases() -> None:
    assert after(*PHASES, HUB) == after(HUB)
    assert after(*PHASES, SERVICE) == after(HUB, SERVICE)
    assert after(*PHASES, PLAN) == after(HUB, SERVICE, PLAN)


def test_authorising_again_renews_and_keeps_the_binding() -> None:
    short = replace(AUTH, expires_at=START + 50)
    bound = (HUB, SERVICE, replace(PLAN, wait_until=START + 60), short, BOUND)
    renewed = after(*bound, LogLine(AUTH, after=5000))
    assert (renewed.phase, renewed.authorized) == (Phase.BOUND, AUTH)
    assert list(after(*bound).lapsed(START + 51)) == ["the capability has expired"]
    assert not after(*bound).usable(START + 51)
    assert renewed.usable(START + 51)


def test_an_ended_connection_is_over_until_a_hub_is_chosen_again() -> None:
    ended = after(*PHASES, ConnectionEnded("w", "done"))
    assert (ended.phase, ended.hub, ended.ended) == (Phase.ENDED, None, ConnectionEnded("w", "done"))
    assert not CONNECT.live(ended)
    assert after(*PHASES, ConnectionEnded("w"), HUB) == after(HUB)


def test_a_connection_lists_what_has_expired() -> None:
    state = after(HUB, SERVICE, replace(PLAN, wait_until=START + 60))
    assert list(state.lapsed(START + 60)) == []
    assert list(state.lapsed(START + 61)) == ["the wait for a token has timed out"]
    assert len(list(state.lapsed(LATER + 1))) == 3
    assert list(NO_CONNECTION.lapsed(LATER)) == []


def test_connections_with_different_names_are_independent() -> None:
    other = replace(HUB, name="v", hub_id=id_of("h2"))
    states = fold(CONNECT, log(HUB, other, replace(SERVICE, name="v"))).states
    assert [states[name].phase for name in (b"w", b"v")] == [Phase.HUB, Phase.SERVICE]


def test_a_mirrored_step_counts_once() -> None:
    folded = fold(CONNECT, log(HUB, SERVICE, LogLine(HUB, msg_id(1), client=2)))
    assert folded.state(b"w").phase is Phase.SERVICE
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY]


def test_a_service_with_methods_has_requests_on_the_first_stream_and_replies_on_the_others() -> None:
    third = id_of("third")
    assert binding("w", SERVICE) == BOUND
    assert binding("w", replace(SERVICE, stream_ids=(REQUESTS,))) == ServiceBound("w", (REQUESTS,), (REQUESTS,))
    assert binding("w", replace(SERVICE, stream_ids=(REQUESTS, REPLIES, third))).reply_streams == (REPLIES, third)
    assert binding("w", replace(SERVICE, methods=())) == ServiceBound("w", (REQUESTS, REPLIES), ())


def test_a_call_goes_to_the_chosen_hub_under_the_capability() -> None:
    state = after(*PHASES)
    assert call_route(state, START) == CallRoute(
        id_of("h1"), id_of("key"), "https://h1.example", REQUESTS, REPLIES, id_of("cap")
    )
    made = call(state, "charge", cbor.encode(5), START, timeout_ms=9, idem=4)
    assert (made.method, made.args, made.timeout_ms, made.reply_to, made.idem) == ("charge", b"\x05", 9, REPLIES, 4)
    one = after(HUB, replace(SERVICE, stream_ids=(REQUESTS,)), PLAN, AUTH, ServiceBound("w", (REQUESTS,), (REQUESTS,)))
    assert call(one, "charge", b"\xf6", START).reply_to is None
    assert call_route(after(HUB, FREE, FREE_PLAN, BOUND), START).auth_ref is None


@pytest.mark.parametrize(
    ("state", "method", "now", "reason"),
    [
        (NO_CONNECTION, "charge", START, "absent, not bound"),
        (after(*PHASES[:4]), "charge", START, "authorized, not bound"),
        (after(*PHASES, ConnectionEnded("w")), "charge", START, "ended, not bound"),
        (after(*PHASES), "charge", LATER + 1, "capability has expired"),
        (after(*PHASES), "steal", START, "no method steal"),
        (
            after(HUB, replace(FREE, methods=()), FREE_PLAN, ServiceBound("w", (REQUESTS,), ())),
            "",
            START,
            "no methods",
        ),
    ],
)
def test_a_call_that_the_connection_does_not_allow_raises(
    state: ServiceConnection, method: str, now: int, reason: str
) -> None:
    with pytest.raises(NotBound, match=reason):
        call(state, method, b"\xf6", now)


def test_the_plain_form_of_a_connection_has_its_phase() -> None:
    shown = CONNECT.plain(b"w", after(*PHASES))
    assert (shown["name"], shown["phase"]) == ("w", "bound")
    assert shown["bound"] == {"request_streams": (REQUESTS,), "reply_streams": (REPLIES,)}
    assert cbor.encode(shown)
