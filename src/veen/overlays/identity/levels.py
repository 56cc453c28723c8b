"""What an implementation may claim, and what each claim rests on here. id-spec §14."""

from collections.abc import Mapping

from veen.overlays.event import Event
from veen.overlays.identity.events import (
    CtxProfile,
    Device,
    ExternalLink,
    Group,
    HandleMap,
    OrgProfile,
    RoleBinding,
)

# The schemas of each level; each builds on the first.
LEVELS: Mapping[str, tuple[type[Event], ...]] = {
    "ID v0.0.1 Core": (CtxProfile, Device),  # with `ids`, `auth` and `challenge`
    "ID v0.0.1 Orgs": (OrgProfile, Group, RoleBinding),
    "ID v0.0.1 Handles": (HandleMap,),  # with `views.handle`
    "ID v0.0.1 External": (ExternalLink,),  # with `gateway`
    "ID v0.0.1 Bridge": (),  # with `mirror`
}
