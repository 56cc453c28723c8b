"""Connect: from a directory entry to a usable service, in four phases. 001, spec-5 §7.

`selection` proposes hubs, overlays and services. `connect_plan` determines the capability a service needs and its
source. `connect_events` and `connect_overlay` log and fold the phase of each connection. `binding` builds calls.
Nothing here sends messages or makes trust decisions.
"""

from veen.overlays.connect.binding import CallRoute, NotBound, binding, call, call_route
from veen.overlays.connect.connect_events import (
    Authorized,
    ConnectionEnded,
    HubChosen,
    Planned,
    ServiceBound,
    ServiceChosen,
)
from veen.overlays.connect.connect_overlay import CONNECT, NO_CONNECTION, Connect, Phase, ServiceConnection, States
from veen.overlays.connect.connect_plan import (
    ISSUE_METHOD,
    AuthorizationPlan,
    CapabilityRoute,
    auth_mode,
    check_token,
    issuance,
    issued,
    plan,
    written_streams,
)
from veen.overlays.connect.selection import (
    GUARDED_TAGS,
    Choice,
    Excluded,
    FoundService,
    HubCriteria,
    ServiceCriteria,
    choose_hubs,
    choose_overlays,
    choose_services,
    found_by,
    found_in,
    hub_query,
    overlay_query,
    service_query,
)

__all__ = [
    "AuthorizationPlan",
    "Authorized",
    "CONNECT",
    "CallRoute",
    "CapabilityRoute",
    "Choice",
    "Connect",
    "ConnectionEnded",
    "Excluded",
    "FoundService",
    "GUARDED_TAGS",
    "HubChosen",
    "HubCriteria",
    "ISSUE_METHOD",
    "NO_CONNECTION",
    "NotBound",
    "Phase",
    "Planned",
    "ServiceBound",
    "ServiceChosen",
    "ServiceConnection",
    "ServiceCriteria",
    "States",
    "auth_mode",
    "binding",
    "call",
    "call_route",
    "check_token",
    "choose_hubs",
    "choose_overlays",
    "choose_services",
    "found_by",
    "found_in",
    "hub_query",
    "issuance",
    "issued",
    "overlay_query",
    "plan",
    "service_query",
    "written_streams",
]
