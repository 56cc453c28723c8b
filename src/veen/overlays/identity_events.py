"""The ids, streams and events of ID, and the events that each stream accepts. id-spec §3 to §11.

Realm and group names may be any text: where the specification writes `ascii(name)`, the UTF-8 bytes are used. As with
streams, a realm given as 64 hex digits is the id itself. Times are in Unix seconds. Nine events are from the
specification. `RoleRevoke` is the additional schema that §8.3 permits for role revocation.

An entry does not contain its stream, so the caller of the fold passes its `Scope`. Without a scope every event is
applied, for a single stream that several logical streams were merged into.
"""

import re
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from veen.core import cbor
from veen.core.cbor import Bool, Bstr, ListOf, Nested, Uint, Wire, text_map
from veen.core.hashing import ht
from veen.overlays.event import Event, body_text, event, optional_map


def principal_id(principal_pk: bytes) -> bytes:
    """A stable reference to a principal. No rule depends on it. §3.2."""
    return ht("id/principal", principal_pk)


def ctx_id(principal_pk: bytes, realm: bytes) -> bytes:
    """The account of a principal in one realm. Accounts of one principal in two realms cannot be linked. §3.3."""
    return ht("id/ctx", principal_pk + realm)


def device_id(device_pk: bytes) -> bytes:
    """§3.4."""
    return ht("id/device", device_pk)


def org_id(org_pk: bytes) -> bytes:
    """§3.5."""
    return ht("id/org", org_pk)


def scoped_org_id(org: bytes, realm: bytes) -> bytes:
    """The id of an organization within one realm. If it is used, groups and roles of that realm name it. §3.5."""
    return ht("id/org/realm", org + realm)


def group_id(org: bytes, group_local_name: str) -> bytes:
    """A group of a scoped or unscoped organization. The local name is fixed; the display name may change. §3.6."""
    return ht("id/group", org + group_local_name.encode())


def principal_stream(principal_pk: bytes) -> bytes:
    """The stream of a principal, its devices and its revocations. §4.1."""
    return ht("id/stream/principal", principal_pk)


def ctx_stream(ctx: bytes, realm: bytes) -> bytes:
    """The stream of an account's profile and external links."""
    return ht("id/stream/ctx", ctx + realm)


def org_stream(org: bytes) -> bytes:
    """The stream of an organization's profile, groups, roles, links and revocations.

    Pass a scoped id if one is used.
    """
    return ht("id/stream/org", org)


def handle_stream(realm: bytes) -> bytes:
    """The stream of a realm's handles."""
    return ht("id/stream/handle", realm)


MAX_LISTED = 1_024  # members or targets of one event; bounds the number of parts that one entry touches
MAX_HANDLE_BYTES = 254
CTX, ORG = "ctx", "org"  # target types of a handle
_WORD = r"[a-z0-9](?:[a-z0-9._+-]*[a-z0-9])?"
_HANDLE = re.compile(rf"@?{_WORD}(?:@{_WORD})?")


def _ids(*, name: str = "") -> ListOf:
    return ListOf(Bstr(name="id"), name=name, most=MAX_LISTED, optional=True)


def handle_flaw(handle: str) -> str | None:
    """Why a text is not a handle (`@user`, `user` or `user@example.com`), or None.

    Handles are lower-case ASCII so that each has one spelling. §10.1.
    """
    if len(handle) > MAX_HANDLE_BYTES:
        return f"a handle has at most {MAX_HANDLE_BYTES} characters"
    if _HANDLE.fullmatch(handle) is None:
        return "a handle is @user, user or user@domain, with the characters a-z, 0-9, '.', '_', '+' and '-'"
    return None


@event("id.principal.v1")
class IdentityPrincipal(Event):
    """§6.1. A later record may change `info` but not `created_at`."""

    principal_pk: Annotated[bytes, Bstr()]
    created_at: Annotated[int, Uint()]
    info: Annotated[bytes | None, optional_map()] = None


@text_map("flags")
class Flags(Wire):
    """Flags of a device."""

    disabled: Annotated[bool | None, Bool(optional=True)] = None


@event("id.device.v1")
class Device(Event):
    """§6.2. The last record of a device counts."""

    principal_pk: Annotated[bytes, Bstr()]
    device_id: Annotated[bytes, Bstr()]
    device_pk: Annotated[bytes, Bstr()]
    dh_pk: Annotated[bytes, Bstr()]
    label: Annotated[str | None, body_text(optional=True)]
    created_at: Annotated[int, Uint()]
    expires_at: Annotated[int | None, Uint(optional=True)] = None
    flags: Annotated[Flags | None, Nested(Flags, optional=True)] = None

    def flaw(self) -> str | None:
        return None if self.device_id == device_id(self.device_pk) else "device_id does not match device_pk"

    def active(self, now: int) -> bool:
        """Whether the record is enabled and not expired at a time. Revocations are checked separately."""
        disabled = self.flags is not None and self.flags.disabled is True
        return not disabled and (self.expires_at is None or now <= self.expires_at)


@event("id.ctx.profile.v1")
class CtxProfile(Event):
    """§7.1."""

    ctx_id: Annotated[bytes, Bstr()]
    realm_id: Annotated[bytes, Bstr()]
    display_name: Annotated[str | None, body_text(optional=True)]
    avatar_coid: Annotated[bytes | None, Bstr(optional=True)]
    prefs: Annotated[bytes | None, optional_map()]
    updated_at: Annotated[int, Uint()]


@event("id.org.profile.v1")
class OrgProfile(Event):
    """§8.1."""

    org_id: Annotated[bytes, Bstr()]
    display_name: Annotated[str | None, body_text(optional=True)]
    metadata: Annotated[bytes | None, optional_map()]
    created_at: Annotated[int, Uint()]
    updated_at: Annotated[int, Uint()]


@event("id.group.v1")
class IdentityGroup(Event):
    """§8.2. A member in both lists is added, because a remove affects only earlier adds."""

    org_id: Annotated[bytes, Bstr()]
    realm_id: Annotated[bytes | None, Bstr(optional=True)]
    group_id: Annotated[bytes, Bstr()]
    name: Annotated[str, body_text()]
    members_add: Annotated[tuple[bytes, ...] | None, _ids()]
    members_remove: Annotated[tuple[bytes, ...] | None, _ids()]
    updated_at: Annotated[int, Uint()]


@text_map("role event")
class IdentityBinding(Event):
    """Base of role events: a role of an organization for some accounts and groups."""

    org_id: Annotated[bytes, Bstr()]
    realm_id: Annotated[bytes | None, Bstr(optional=True)]
    role: Annotated[str, body_text()]
    targets_ctx: Annotated[tuple[bytes, ...] | None, _ids()]
    targets_group: Annotated[tuple[bytes, ...] | None, _ids()]
    ts: Annotated[int, Uint()]


@event("id.role.v1")
class RoleBinding(IdentityBinding):
    """§8.3. Without `realm_id` the role applies in every realm."""


@event("id.role.revoke.v1")
class RoleRevoke(IdentityBinding):
    """`id.role.revoke.v1`: revokes earlier bindings of the role for the same targets in the same realm."""


@event("id.handlemap.v1")
class HandleMap(Event):
    """§10.1."""

    realm_id: Annotated[bytes, Bstr()]
    handle: Annotated[str, body_text()]
    target_type: Annotated[str, body_text()]
    target_id: Annotated[bytes, Bstr()]
    ts: Annotated[int, Uint()]

    def flaw(self) -> str | None:
        if self.target_type not in (CTX, ORG):
            return f"target_type is {self.target_type!r}, neither {CTX!r} nor {ORG!r}"
        return handle_flaw(self.handle)


@event("id.external.v1")
class ExternalLink(Event):
    """§10.2."""

    realm_id: Annotated[bytes, Bstr()]
    ctx_id: Annotated[bytes | None, Bstr(optional=True)]
    org_id: Annotated[bytes | None, Bstr(optional=True)]
    provider: Annotated[str, body_text()]
    external_sub: Annotated[str, body_text()]
    attributes: Annotated[bytes | None, optional_map()]
    ts: Annotated[int, Uint()]

    def flaw(self) -> str | None:
        return "neither ctx_id nor org_id is given" if self.ctx_id is None and self.org_id is None else None


@event("id.revoke.v1")
class IdentityRevocation(Event):
    """§11.1. `org_id` is the revoked target only if no other target is named; otherwise it is the revoking org."""

    principal_pk: Annotated[bytes | None, Bstr(optional=True)] = None
    org_id: Annotated[bytes | None, Bstr(optional=True)] = None
    device_id: Annotated[bytes | None, Bstr(optional=True)] = None
    revoked_auth_ref: Annotated[bytes | None, Bstr(optional=True)] = None
    realm_id: Annotated[bytes | None, Bstr(optional=True)] = None
    ctx_id: Annotated[bytes | None, Bstr(optional=True)] = None
    reason: Annotated[str | None, body_text(optional=True)] = None
    ts: Annotated[int, Uint()] = 0

    def flaw(self) -> str | None:
        named = (self.device_id, self.revoked_auth_ref, self.ctx_id, self.org_id)
        return None if any(one is not None for one in named) else "it names nothing to revoke"


EVENTS: tuple[type[Event], ...] = (
    IdentityPrincipal,
    Device,
    CtxProfile,
    OrgProfile,
    IdentityGroup,
    RoleBinding,
    RoleRevoke,
    HandleMap,
    ExternalLink,
    IdentityRevocation,
)


WRONG_STREAM = "this event belongs on another stream"


@dataclass(frozen=True, slots=True)
class PrincipalStream:
    """The stream of one principal: its record, devices and revocations."""

    principal_pk: bytes

    @property
    def stream_id(self) -> bytes:
        return principal_stream(self.principal_pk)

    def flaw(self, event: Event) -> str | None:
        if not isinstance(event, IdentityPrincipal | Device | IdentityRevocation):
            return WRONG_STREAM
        omitted = isinstance(event, IdentityRevocation) and event.principal_pk is None
        if event.principal_pk != self.principal_pk and not omitted:
            return "principal_pk does not match this stream"
        return None


@dataclass(frozen=True, slots=True)
class CtxStream:
    """The stream of one account: its profile and its external links."""

    ctx_id: bytes
    realm_id: bytes

    @classmethod
    def of(cls, principal_pk: bytes, realm_id: bytes) -> "CtxStream":
        return cls(ctx_id(principal_pk, realm_id), realm_id)

    @property
    def stream_id(self) -> bytes:
        return ctx_stream(self.ctx_id, self.realm_id)

    def flaw(self, event: Event) -> str | None:
        if not isinstance(event, CtxProfile | ExternalLink):
            return WRONG_STREAM
        if event.realm_id != self.realm_id:
            return "realm_id does not match this stream"
        return None if event.ctx_id == self.ctx_id else "ctx_id does not match this stream"


@dataclass(frozen=True, slots=True)
class OrgStream:
    """The stream of an organization, or of the organization scoped to one realm.

    On a scoped stream, groups and roles name the scoped id. On the unscoped stream, a group or role of a realm may name
    either id.
    """

    org_id: bytes
    realm_id: bytes | None = None

    @property
    def own_id(self) -> bytes:
        return self.org_id if self.realm_id is None else scoped_org_id(self.org_id, self.realm_id)

    @property
    def stream_id(self) -> bytes:
        return org_stream(self.own_id)

    def _ids(self, realm_id: bytes | None) -> tuple[bytes, ...]:
        """The organization ids that an event of a realm may name."""
        if self.realm_id is not None or realm_id is None:
            return (self.own_id,)
        return self.own_id, scoped_org_id(self.org_id, realm_id)

    def flaw(self, event: Event) -> str | None:
        if not isinstance(event, OrgProfile | IdentityGroup | IdentityBinding | ExternalLink | IdentityRevocation):
            return WRONG_STREAM
        omitted = isinstance(event, IdentityRevocation) and event.org_id is None
        named = None if isinstance(event, OrgProfile) else event.realm_id
        if event.org_id not in self._ids(named) and not omitted:
            return "org_id does not match this stream"
        if self.realm_id is not None and named not in (None, self.realm_id):
            return "realm_id does not match this stream"
        return None


@dataclass(frozen=True, slots=True)
class HandleStream:
    """The stream of the handles of one realm."""

    realm_id: bytes

    @property
    def stream_id(self) -> bytes:
        return handle_stream(self.realm_id)

    def flaw(self, event: Event) -> str | None:
        if not isinstance(event, HandleMap):
            return WRONG_STREAM
        return None if event.realm_id == self.realm_id else "realm_id does not match this stream"


Scope: TypeAlias = PrincipalStream | CtxStream | OrgStream | HandleStream


def encode_scope(scope: Scope) -> bytes:
    """The settings of a scope. The stream id is enough, because all fields of the scope determine it."""
    return cbor.encode(scope.stream_id)
