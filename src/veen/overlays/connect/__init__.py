"""Connect: from a directory to a service that can be used, in four phases. 001, spec-5 §7.

`choosing` proposes hubs, overlays and services, `planning` says which capability is needed and whence, `events` and
`overlay` keep how far each connection has come, `binding` makes calls. Nothing here sends, and nothing here trusts.
"""

from veen.overlays.connect.binding import NotBound, Way, binding, call, way
from veen.overlays.connect.choosing import (
    GUARDED_TAGS,
    Choice,
    Found,
    HubWish,
    LeftOut,
    ServiceWish,
    choose_hubs,
    choose_overlays,
    choose_services,
    found_by,
    found_in,
    hub_query,
    overlay_query,
    service_query,
)
from veen.overlays.connect.events import Authorized, Bound, Ended, HubChosen, Planned, ServiceChosen
from veen.overlays.connect.overlay import CONNECT, NO_CONNECTION, Connect, Connection, Phase, States
from veen.overlays.connect.planning import (
    ISSUE_METHOD,
    Plan,
    Route,
    check_token,
    issuance,
    issued,
    mode_of,
    plan,
    writes,
)

__all__ = [
    "Authorized",
    "Bound",
    "CONNECT",
    "Choice",
    "Connect",
    "Connection",
    "Ended",
    "Found",
    "GUARDED_TAGS",
    "HubChosen",
    "HubWish",
    "ISSUE_METHOD",
    "LeftOut",
    "NO_CONNECTION",
    "NotBound",
    "Phase",
    "Plan",
    "Planned",
    "Route",
    "ServiceChosen",
    "ServiceWish",
    "States",
    "Way",
    "binding",
    "call",
    "check_token",
    "choose_hubs",
    "choose_overlays",
    "choose_services",
    "found_by",
    "found_in",
    "hub_query",
    "issuance",
    "issued",
    "mode_of",
    "overlay_query",
    "plan",
    "service_query",
    "way",
    "writes",
]
