"""The events of ID. id-spec §5 to §11. Times are in Unix seconds.

Nine events are from the specification. `RoleRevoke` is the additional schema that §8.3 permits for role revocation.
"""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from veen.core import naming
from veen.core.cbor import Bool, Bstr, ListOf, Map, Nested, Text, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event, event
from veen.overlays.fields import body, optional_map
from veen.overlays.identity.identity_ids import device_id

MAX_LISTED = 1_024  # members or targets of one event; bounds the number of parts that one entry touches
MAX_HANDLE_BYTES = 254
CTX, ORG = "ctx", "org"  # target types of a handle
_WORD = r"[a-z0-9](?:[a-z0-9._+-]*[a-z0-9])?"
_HANDLE = re.compile(rf"@?{_WORD}(?:@{_WORD})?")


def _text(*, name: str = "", optional: bool = False) -> Text:
    return Text(MAX_BODY_BYTES, name=name, optional=optional)


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
    label: Annotated[str | None, _text(optional=True)]
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
    display_name: Annotated[str | None, _text(optional=True)]
    avatar_coid: Annotated[bytes | None, Bstr(optional=True)]
    prefs: Annotated[bytes | None, optional_map()]
    updated_at: Annotated[int, Uint()]


@event("id.org.profile.v1")
class OrgProfile(Event):
    """§8.1."""

    org_id: Annotated[bytes, Bstr()]
    display_name: Annotated[str | None, _text(optional=True)]
    metadata: Annotated[bytes | None, optional_map()]
    created_at: Annotated[int, Uint()]
    updated_at: Annotated[int, Uint()]


@event("id.group.v1")
class IdentityGroup(Event):
    """§8.2. A member in both lists is added, because a remove affects only earlier adds."""

    org_id: Annotated[bytes, Bstr()]
    realm_id: Annotated[bytes | None, Bstr(optional=True)]
    group_id: Annotated[bytes, Bstr()]
    name: Annotated[str, _text()]
    members_add: Annotated[tuple[bytes, ...] | None, _ids()]
    members_remove: Annotated[tuple[bytes, ...] | None, _ids()]
    updated_at: Annotated[int, Uint()]


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
        Bstr(name="org_id"),
        Bstr(name="realm_id", optional=True),
        _text(name="role"),
        _ids(name="targets_ctx"),
        _ids(name="targets_group"),
        Uint(name="ts"),
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


@event("id.handlemap.v1")
class HandleMap(Event):
    """§10.1."""

    realm_id: Annotated[bytes, Bstr()]
    handle: Annotated[str, _text()]
    target_type: Annotated[str, _text()]
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
    provider: Annotated[str, _text()]
    external_sub: Annotated[str, _text()]
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
    reason: Annotated[str | None, _text(optional=True)] = None
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
