"""Scopes: the events that are allowed on each kind of stream. id-spec §4.1, §6 to §11.

An entry does not contain its stream, so the caller of the fold passes the scope. Without a scope every event is
applied, for a single stream that several logical streams were merged into.
"""

from dataclasses import dataclass
from typing import TypeAlias

from veen.core import cbor
from veen.overlays.event import Event
from veen.overlays.identity import identity_ids
from veen.overlays.identity.identity_events import (
    CtxProfile,
    Device,
    ExternalLink,
    HandleMap,
    IdentityBinding,
    IdentityGroup,
    IdentityPrincipal,
    IdentityRevocation,
    OrgProfile,
)

WRONG_STREAM = "this event belongs on another stream"


@dataclass(frozen=True, slots=True)
class PrincipalStream:
    """The stream of one principal: its record, devices and revocations."""

    principal_pk: bytes

    @property
    def stream_id(self) -> bytes:
        return identity_ids.principal_stream(self.principal_pk)

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
        return cls(identity_ids.ctx_id(principal_pk, realm_id), realm_id)

    @property
    def stream_id(self) -> bytes:
        return identity_ids.ctx_stream(self.ctx_id, self.realm_id)

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
        return self.org_id if self.realm_id is None else identity_ids.scoped_org_id(self.org_id, self.realm_id)

    @property
    def stream_id(self) -> bytes:
        return identity_ids.org_stream(self.own_id)

    def _ids(self, realm_id: bytes | None) -> tuple[bytes, ...]:
        """The organization ids that an event of a realm may name."""
        if self.realm_id is not None or realm_id is None:
            return (self.own_id,)
        return self.own_id, identity_ids.scoped_org_id(self.org_id, realm_id)

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
        return identity_ids.handle_stream(self.realm_id)

    def flaw(self, event: Event) -> str | None:
        if not isinstance(event, HandleMap):
            return WRONG_STREAM
        return None if event.realm_id == self.realm_id else "realm_id does not match this stream"


Scope: TypeAlias = PrincipalStream | CtxStream | OrgStream | HandleStream


def encode_scope(scope: Scope) -> bytes:
    """The settings of a scope. The stream id is enough, because all fields of the scope determine it."""
    return cbor.encode(scope.stream_id)
