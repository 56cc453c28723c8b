"""ID: principals, devices, accounts per realm, organizations, handles and external ids as folds. 001, id-spec.

`identity_ids` derives ids and streams, `identity_events` defines the events, `scope` defines which events belong on
which stream, `identity_state` is the state, and `identity_overlay` folds it. `views` answers queries on the state,
`auth` authenticates keys, `gateway` accepts logins of external providers.
"""

from veen.overlays.identity.auth import (
    AuthPolicy,
    Challenge,
    ChallengeAnswer,
    IdentityGrant,
    Session,
    authenticate,
    delegate,
)
from veen.overlays.identity.identity_events import (
    CtxProfile,
    Device,
    ExternalLink,
    Flags,
    HandleMap,
    IdentityGroup,
    IdentityPrincipal,
    IdentityRevocation,
    OrgProfile,
    RoleBinding,
    RoleRevoke,
)
from veen.overlays.identity.identity_ids import (
    ctx_id,
    ctx_stream,
    device_id,
    group_id,
    handle_stream,
    org_id,
    org_stream,
    principal_id,
    principal_stream,
    realm_id,
    scoped_org_id,
)
from veen.overlays.identity.identity_overlay import IDENTITY, IdentityOverlay, mirrored, union
from veen.overlays.identity.scope import CtxStream, HandleStream, OrgStream, PrincipalStream, Scope

__all__ = [
    "AuthPolicy",
    "Challenge",
    "ChallengeAnswer",
    "CtxProfile",
    "CtxStream",
    "Device",
    "ExternalLink",
    "Flags",
    "HandleMap",
    "HandleStream",
    "IDENTITY",
    "IdentityGrant",
    "IdentityGroup",
    "IdentityOverlay",
    "IdentityPrincipal",
    "IdentityRevocation",
    "OrgProfile",
    "OrgStream",
    "PrincipalStream",
    "RoleBinding",
    "RoleRevoke",
    "Scope",
    "Session",
    "authenticate",
    "ctx_id",
    "ctx_stream",
    "delegate",
    "device_id",
    "group_id",
    "handle_stream",
    "mirrored",
    "org_id",
    "org_stream",
    "principal_id",
    "principal_stream",
    "realm_id",
    "scoped_org_id",
    "union",
]
