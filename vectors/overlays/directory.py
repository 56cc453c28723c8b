"""Logs of a directory and of connections with golden states."""

from collections.abc import Callable
from dataclasses import replace

from vectors.form import Doc, secret
from vectors.overlays.logs import START, Line, folded, msg_id
from veen.core import cbor
from veen.core.hashing import U64_MAX
from veen.overlays.connect import CONNECT, Authorized, ConnectionEnded, HubChosen, Planned, ServiceBound, ServiceChosen
from veen.overlays.discovery import (
    DISCOVERY,
    MAX_DESCRIPTOR_BYTES,
    AuthPolicy,
    HubAdvertise,
    HubRetire,
    Operator,
    OverlayAdvertise,
    OverlayRetire,
    ServiceAdvertise,
    ServiceEndpoint,
    ServiceRetire,
)

HUB_ID, HUB_PK, PROFILE, OVERLAY_ID, SERVICE_ID, ISSUER, REQUESTS, REPLIES, AUTH_REF = (
    secret(f"directory {name}")
    for name in ("hub", "key", "profile", "overlay", "service", "issuer", "requests", "replies", "auth_ref")
)
HUB = HubAdvertise(
    HUB_ID, HUB_PK, PROFILE, "ap-northeast-1", ("public",), (ServiceEndpoint("https", "https://hub.example"),),
    (OVERLAY_ID,), 3600, "0.0.1",
)  # fmt: skip
OVERLAY = OverlayAdvertise(OVERLAY_ID, "rpc", "1", (secret("directory schema"),), "https://docs.example", (), 60)
SERVICE = ServiceAdvertise(
    SERVICE_ID, "billing", OVERLAY_ID, ("charge", "refund"), (REQUESTS, REPLIES), ("ap-northeast-1",), ("write",),
    AuthPolicy("cap_token", cbor.encode({"issuer_service": ISSUER})), Operator("Example", None), ("public", "beta"), 10,
)  # fmt: skip
DIRECTORY_LOG = (
    Line("a hub", HUB),
    Line("an overlay, whose header ends before its ttl", OVERLAY, expires_at=START + 30),
    Line("a service", SERVICE),
    Line("the service again, without what is optional", replace(SERVICE, auth_policy=None, operator=None)),
    Line("the hub is retired", HubRetire(HUB_ID, "moved")),
    Line("it is retired again", HubRetire(HUB_ID, "gone")),
    Line(
        "it is advertised again, for ever", replace(HUB, ttl_sec=U64_MAX, tags=(), endpoints=(), overlays=()), client=1
    ),
    Line("a mirrored copy of the first", HUB, msg_id(1), client=2),
    Line("a mirrored service whose original is not here", SERVICE, secret("elsewhere"), client=2),
    Line("what nobody advertised is retired", OverlayRetire(secret("directory other"))),
    Line("a service is retired without a reason", ServiceRetire(SERVICE_ID)),
    Line("a hub under the id of the service", replace(HUB, hub_id=SERVICE_ID)),
    Line("a descriptor with an unknown key", HubRetire(HUB_ID), body=b"\xa1\x61x\x01"),
    Line("a descriptor that is too large", replace(HUB, version="v" * MAX_DESCRIPTOR_BYTES)),
    Line("a payload that does not open", HUB, sealed=True),
)

LATER = START + 100
CHOSEN = HubChosen("work", HUB_ID, HUB_PK, PROFILE, ServiceEndpoint("https", "https://hub.example"), True, LATER)
SELECTED = ServiceChosen(
    "work", SERVICE_ID, OVERLAY_ID, ("charge",), (REQUESTS, REPLIES), ("write",), "cap_token", LATER
)
BOUND = ServiceBound("work", (REQUESTS,), (REPLIES,))
CONNECT_LOG = (
    Line("a service before there is a hub", SELECTED),
    Line("a hub is chosen", CHOSEN),
    Line("a plan before there is a service", Planned("work", "operator")),
    Line("a service is chosen", SELECTED),
    Line("a plan that does not fit the service", Planned("work", "none")),
    Line("a plan that names no issuer", Planned("work", "service")),
    Line("a plan that waits for a token", Planned("work", "service", ISSUER, START + 50)),
    Line("bound before there is a capability", BOUND),
    Line("a capability that has expired", Authorized("work", AUTH_REF, START)),
    Line("a capability", Authorized("work", AUTH_REF, START + 60)),
    Line("bound to a stream that is not the service's", ServiceBound("work", (ISSUER,), ())),
    Line("bound", BOUND),
    Line("another connection, whose hub is not trusted", replace(CHOSEN, name="play", trusted=False), client=1),
    Line("its service takes anyone", replace(SELECTED, name="play", auth_mode="none", methods=(), required_caps=())),
    Line("so no capability is planned", Planned("play", "none")),
    Line("nor taken", Authorized("play", AUTH_REF, LATER)),
    Line("bound without trust", replace(BOUND, name="play")),
    Line("the capability is renewed when it has run out", Authorized("work", AUTH_REF, LATER), after=50),
    Line("a mirrored copy of the hub that was chosen", CHOSEN, msg_id(2), client=2),
    Line("a hub whose advertisement has expired", replace(CHOSEN, name="late"), after=60),
    Line("the service is given up", ConnectionEnded("work", "done")),
    Line("and cannot be bound again", BOUND),
    Line("a hub that says nothing", CHOSEN, body=b"\xa0"),
    Line("a payload that does not open", CHOSEN, sealed=True),
)

GENERATED: dict[str, Callable[[], Doc]] = {
    "connect.json": lambda: folded(CONNECT, CONNECT_LOG),
    "discovery.json": lambda: folded(DISCOVERY, DIRECTORY_LOG),
}
