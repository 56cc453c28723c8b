"""The events of ID. id-spec §5 to §11. Times are in Unix seconds.

Nine events are from the specification. `RoleRevoke` is the additional schema that §8.3 permits for role revocation.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from veen.core import naming
from veen.core.cbor import Bool, Bstr, ListOf, Map, Nested, Text, Uint, Wire
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event
from veen.overlays.fields import body, optional_map
from veen.overlays.identity.identity_ids import device_id

MAX_LISTED = 1_024  # members or targets of one event; bounds the number of parts that one entry touches
MAX_HANDLE_BYTES = 254
CTX, ORG = "ctx", "org"  # target types of a handle
_WORD = r"[a-z0-9](?:[a-z0-9._+-]*[a-z0-9])?"
_HANDLE = re.compile(rf"@?{_WORD}(?:@{_WORD})?")


def _text(name: str, *, optional: bool = False) -> Text:
    return Text(name, MAX_BODY_BYTES, optional=optional)


def _ids(name: str) -> ListOf:
    return ListOf(name, Bstr("id"), most=MAX_LISTED, optional=True)


def handle_flaw(handle: str) -> str | None:
    """Why a text is not a handle (`@user`, `user` or `user@example.com`), or None.

    Handles are lower-case ASCII so that each has one spelling. §10.1.
    """
    if len(handle) > MAX_HANDLE_BYTES:
        return f"a handle has at most {MAX_HANDLE_BYTES} characters"
    if _HANDLE.fullmatch(handle) is None:
        return "a handle is @user, user or user@domain, with the characters a-z, 0-9, '.', '_', '+' and '-'"
    return None


@dataclass(frozen=True, slots=True)
class IdentityPrincipal(Event):
    """§6.1. A later record may change `info` but not `created_at`."""

    principal_pk: bytes
    created_at: int
    info: bytes | None = None

    SCHEMA: ClassVar = naming.schema_id("id.principal.v1")
    LAYOUT: ClassVar = body("id.principal.v1", Bstr("principal_pk"), Uint("created_at"), optional_map("info"))


@dataclass(frozen=True, slots=True)
class Flags(Wire):
    """Flags of a device."""

    disabled: bool | None = None

    LAYOUT: ClassVar = body("flags", Bool("disabled", optional=True))


@dataclass(frozen=True, slots=True)
class Device(Event):
    """§6.2. The last record of a device counts."""

    principal_pk: bytes
    device_id: bytes
    device_pk: bytes
    dh_pk: bytes
    label: str | None
    created_at: int
    expires_at: int | None = None
    flags: Flags | None = None

    SCHEMA: ClassVar = naming.schema_id("id.device.v1")
    LAYOUT: ClassVar = body(
        "id.device.v1",
        Bstr("principal_pk"),
        Bstr("device_id"),
        Bstr("device_pk"),
        Bstr("dh_pk"),
        _text("label", optional=True),
        Uint("created_at"),
        Uint("expires_at", optional=True),
        Nested("flags", Flags, optional=True),
    )

    def flaw(self) -> str | None:
        return None if self.device_id == device_id(self.device_pk) else "device_id does not match device_pk"

    def active(self, now: int) -> bool:
        """Whether the record is enabled and not expired at a time. Revocations are checked separately."""
        disabled = self.flags is not None and self.flags.disabled is True
        return not disabled and (self.expires_at is None or now <= self.expires_at)


@dataclass(frozen=True, slots=True)
class CtxProfile(Event):
    """§7.1."""

    ctx_id: bytes
    realm_id: bytes
    display_name: str | None
    avatar_coid: bytes | None
    prefs: bytes | None
    updated_at: int

    SCHEMA: ClassVar = naming.schema_id("id.ctx.profile.v1")
    LAYOUT: ClassVar = body(
        "id.ctx.profile.v1",
        Bstr("ctx_id"),
        Bstr("realm_id"),
        _text("display_name", optional=True),
        Bstr("avatar_coid", optional=True),
        optional_map("prefs"),
        Uint("updated_at"),
    )


@dataclass(frozen=True, slots=True)
class OrgProfile(Event):
    """§8.1."""

    org_id: bytes
    display_name: str | None
    metadata: bytes | None
    created_at: int
    updated_at: int

    SCHEMA: ClassVar = naming.schema_id("id.org.profile.v1")
    LAYOUT: ClassVar = body(
        "id.org.profile.v1",
        Bstr("org_id"),
        _text("display_name", optional=True),
        optional_map("metadata"),
        Uint("created_at"),
        Uint("updated_at"),
    )


@dataclass(frozen=True, slots=True)
class IdentityGroup(Event):
    """§8.2. A member in both lists is added, because a remove affects only earlier adds."""

    org_id: bytes
    realm_id: bytes | None
    group_id: bytes
    name: str
    members_add: tuple[bytes, ...] | None
    members_remove: tuple[bytes, ...] | None
    updated_at: int

    SCHEMA: ClassVar = naming.schema_id("id.group.v1")
    LAYOUT: ClassVar = body(
        "id.group.v1",
        Bstr("org_id"),
        Bstr("realm_id", optional=True),
        Bstr("group_id"),
        _text("name"),
        _ids("members_add"),
        _ids("members_remove"),
        Uint("updated_at"),
    )


class IdentityBinding(Event):
    """Base of role events: a role of an organization for some accounts and groups."""

    __slots__ = ()
    org_id: bytes
    realm_id: bytes | None
    role: str
    targets_ctx: tuple[bytes, ...] | None
    targets_group: tuple[bytes, ...] | None
    ts: int


def _binding(schema: str) -> Map:
    return body(
        schema,
        Bstr("org_id"),
        Bstr("realm_id", optional=True),
        _text("role"),
        _ids("targets_ctx"),
        _ids("targets_group"),
        Uint("ts"),
    )


@dataclass(frozen=True, slots=True)
class RoleBinding(IdentityBinding):
    """§8.3. Without `realm_id` the role applies in every realm."""

    org_id: bytes
    realm_id: bytes | None
    role: str
    targets_ctx: tuple[bytes, ...] | None
    targets_group: tuple[bytes, ...] | None
    ts: int

    SCHEMA: ClassVar = naming.schema_id("id.role.v1")
    LAYOUT: ClassVar = _binding("id.role.v1")


@dataclass(frozen=True, slots=True)
class RoleRevoke(IdentityBinding):
    """`id.role.revoke.v1`: revokes earlier bindings of the role for the same targets in the same realm."""

    org_id: bytes
    realm_id: bytes | None
    role: str
    targets_ctx: tuple[bytes, ...] | None
    targets_group: tuple[bytes, ...] | None
    ts: int

    SCHEMA: ClassVar = naming.schema_id("id.role.revoke.v1")
    LAYOUT: ClassVar = _binding("id.role.revoke.v1")


@dataclass(frozen=True, slots=True)
class HandleMap(Event):
    """§10.1."""

    realm_id: bytes
    handle: str
    target_type: str
    target_id: bytes
    ts: int

    SCHEMA: ClassVar = naming.schema_id("id.handlemap.v1")
    LAYOUT: ClassVar = body(
        "id.handlemap.v1", Bstr("realm_id"), _text("handle"), _text("target_type"), Bstr("target_id"), Uint("ts")
    )

    def flaw(self) -> str | None:
        if self.target_type not in (CTX, ORG):
            return f"target_type is {self.target_type!r}, neither {CTX!r} nor {ORG!r}"
        return handle_flaw(self.handle)


@dataclass(frozen=True, slots=True)
class ExternalLink(Event):
    """§10.2."""

    realm_id: bytes
    ctx_id: bytes | None
    org_id: bytes | None
    provider: str
    external_sub: str
    attributes: bytes | None
    ts: int

    SCHEMA: ClassVar = naming.schema_id("id.external.v1")
    LAYOUT: ClassVar = body(
        "id.external.v1",
        Bstr("realm_id"),
        Bstr("ctx_id", optional=True),
        Bstr("org_id", optional=True),
        _text("provider"),
        _text("external_sub"),
        optional_map("attributes"),
        Uint("ts"),
    )

    def flaw(self) -> str | None:
        return "neither ctx_id nor org_id is given" if self.ctx_id is None and self.org_id is None else None


@dataclass(frozen=True, slots=True)
class IdentityRevocation(Event):
    """§11.1. `org_id` is the revoked target only if no other target is named; otherwise it is the revoking org."""

    principal_pk: bytes | None = None
    org_id: bytes | None = None
    device_id: bytes | None = None
    revoked_auth_ref: bytes | None = None
    realm_id: bytes | None = None
    ctx_id: bytes | None = None
    reason: str | None = None
    ts: int = 0

    SCHEMA: ClassVar = naming.schema_id("id.revoke.v1")
    LAYOUT: ClassVar = body(
        "id.revoke.v1",
        Bstr("principal_pk", optional=True),
        Bstr("org_id", optional=True),
        Bstr("device_id", optional=True),
        Bstr("revoked_auth_ref", optional=True),
        Bstr("realm_id", optional=True),
        Bstr("ctx_id", optional=True),
        _text("reason", optional=True),
        Uint("ts"),
    )

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
