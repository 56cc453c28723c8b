"""Descriptors for tests, and the folding rules of spec-5 §5.2 as they are written there."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from veen.core import cbor
from veen.overlays import Event
from veen.overlays.discovery import (
    AuthPolicy,
    DescriptorKind,
    HubAdvertise,
    HubRetire,
    Operator,
    OverlayAdvertise,
    OverlayRetire,
    ServiceAdvertise,
    ServiceEndpoint,
    ServiceRetire,
)

PROFILE, OTHER_PROFILE = b"\x0a" * 32, b"\x0b" * 32
RPC_OVERLAY, KV_OVERLAY = b"\x0c" * 32, b"\x0d" * 32


def id_of(name: str) -> bytes:
    return sha256(name.encode()).digest()


def hub(name: str = "h1", **given: Any) -> HubAdvertise:
    fields: dict[str, Any] = {
        "hub_id": id_of(name),
        "hub_pk": id_of(f"key of {name}"),
        "profile_id": PROFILE,
        "region": "ap-northeast-1",
        "tags": ("public",),
        "endpoints": (ServiceEndpoint("https", f"https://{name}.example"),),
        "overlays": (RPC_OVERLAY,),
        "ttl_sec": 3600,
        "version": "0.0.1",
    }
    return HubAdvertise(**{**fields, **given})


def overlay(name: str = "rpc", **given: Any) -> OverlayAdvertise:
    fields: dict[str, Any] = {
        "overlay_id": id_of(f"overlay {name}"),
        "name": name,
        "version": "1",
        "schemas": (id_of("rpc.v1"), id_of("rpc.res.v1")),
        "docs_url": None,
        "tags": ("stable",),
        "ttl_sec": 3600,
    }
    return OverlayAdvertise(**{**fields, **given})


def service(name: str = "billing", **given: Any) -> ServiceAdvertise:
    fields: dict[str, Any] = {
        "service_id": id_of(f"service {name}"),
        "name": name,
        "overlay_id": RPC_OVERLAY,
        "methods": ("charge", "refund"),
        "stream_ids": (id_of("requests"), id_of("replies")),
        "regions": ("ap-northeast-1",),
        "required_caps": ("write",),
        "auth_policy": AuthPolicy("cap_token", cbor.encode({"issuer_service": id_of("service desk")})),
        "operator": Operator("Example", "ops@example.org"),
        "tags": ("public",),
        "ttl_sec": 3600,
    }
    return ServiceAdvertise(**{**fields, **given})


NAMES = ("a", "b", "c")
TTLS = st.sampled_from([0, 1, 10, 3600, 50_000])
TAGS = st.lists(st.sampled_from(["public", "beta", "test"]), max_size=2, unique=True).map(tuple)
REGIONS = st.sampled_from(["x", "y"])
REASONS = st.sampled_from([None, "moved"])

directory_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(hub, st.sampled_from(NAMES), ttl_sec=TTLS, tags=TAGS, region=REGIONS),
    st.builds(overlay, st.sampled_from(NAMES), ttl_sec=TTLS, tags=TAGS),
    st.builds(service, st.sampled_from(NAMES), ttl_sec=TTLS, tags=TAGS, regions=st.lists(REGIONS).map(tuple)),
    st.builds(HubRetire, st.sampled_from(NAMES).map(id_of), REASONS),
    st.builds(OverlayRetire, st.sampled_from(NAMES).map(lambda name: id_of(f"overlay {name}")), REASONS),
    st.builds(ServiceRetire, st.sampled_from(NAMES).map(lambda name: id_of(f"service {name}")), REASONS),
)


@dataclass
class Maps:
    """§5.2, line by line: three maps, with expiry and retirement beside each entry."""

    entries: dict[tuple[DescriptorKind, bytes], Event] = field(default_factory=dict)
    expiry: dict[tuple[DescriptorKind, bytes], int] = field(default_factory=dict)
    retired: set[tuple[DescriptorKind, bytes]] = field(default_factory=set)

    def fold(self, event: Event, hub_ts: int) -> None:
        match event:
            case HubAdvertise() | OverlayAdvertise() | ServiceAdvertise():
                key = event.KIND, event.id
                self.entries[key] = event
                self.expiry[key] = hub_ts + event.ttl_sec
                self.retired.discard(key)
            case HubRetire() | OverlayRetire() | ServiceRetire():
                self.retired.add((event.KIND, event.id))

    def current(self, now: int) -> dict[tuple[DescriptorKind, bytes], Event]:
        return {
            key: event for key, event in self.entries.items() if key not in self.retired and now <= self.expiry[key]
        }
