"""Queries on the identity state of one or several streams. id-spec §6 to §11.

A view takes states from a fold or a cache. `merge_states` joins the states of the streams that an application trusts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from veen.overlays import identity, identity_events
from veen.overlays.identity import (
    E,
    GroupName,
    Latest,
    LatestCtx,
    LatestDevice,
    LatestHandle,
    LatestLink,
    LatestOrg,
    Marks,
    PrincipalState,
    Revoked,
    State,
    join,
)
from veen.overlays.identity_events import CtxProfile, Device, ExternalLink, HandleMap, OrgProfile

States: TypeAlias = Mapping[bytes, State]


def merge_states(*streams: States) -> dict[bytes, State]:
    """Join the states of several streams. The order does not matter."""
    whole: dict[bytes, State] = {}
    for states in streams:
        for part in states:
            whole[part] = join(whole.get(part), states[part])
    return whole


def principal(states: States, principal_pk: bytes) -> PrincipalState | None:
    found = states.get(identity.part_key(identity.PRINCIPAL, principal_pk))
    return found if isinstance(found, PrincipalState) else None


def device(states: States, principal_pk: bytes, device_id: bytes) -> Device | None:
    """The last record of a principal's device."""
    return _record(states, identity.part_key(identity.DEVICE, principal_pk, device_id), LatestDevice)


def devices(states: States, principal_pk: bytes) -> Iterator[Device]:
    """The devices of a principal, active or not, by id."""
    for part in _parts(states, identity.DEVICE + principal_pk):
        found = _record(states, part, LatestDevice)
        if found is not None:
            yield found


def inactive_reason(states: States, principal_pk: bytes, device_pk: bytes, now: int) -> str | None:
    """Why a key is not an ACTIVE device of a principal at a time, or None if it is. §6.2, §11.1."""
    device_id = identity_events.device_id(device_pk)
    record = device(states, principal_pk, device_id)
    if record is None:
        return "it is not a device of this principal"
    revoked = device_revocation(states, principal_pk, device_id)
    if revoked is not None:
        return f"it was revoked at {revoked.ts}"
    if record.active(now):
        return None
    expired = record.expires_at is not None and now > record.expires_at
    return f"it expired at {record.expires_at}" if expired else "it is disabled"


def device_revocation(states: States, principal_pk: bytes, device_id: bytes) -> Revoked | None:
    """The revocation by the principal, or by a revocation that names no principal."""
    return _earliest(
        states, *(identity.part_key(identity.REVOKED_DEVICE, device_id, one) for one in (principal_pk, None))
    )


def auth_ref_revocation(states: States, auth_ref: bytes) -> Revoked | None:
    return _earliest(states, identity.part_key(identity.REVOKED_AUTH_REF, auth_ref))


def ctx_revocation(states: States, ctx_id: bytes, realm_id: bytes) -> Revoked | None:
    """The revocation in this realm, or one that names no realm."""
    return _earliest(states, *(identity.part_key(identity.REVOKED_CTX, ctx_id, one) for one in (realm_id, None)))


def org_revocation(states: States, org_id: bytes, realm_id: bytes | None = None) -> Revoked | None:
    """The revocation in this realm, or one that names no realm."""
    return _earliest(states, *{identity.part_key(identity.REVOKED_ORG, org_id, one) for one in (realm_id, None)})


def ctx_profile(states: States, ctx_id: bytes, realm_id: bytes) -> CtxProfile | None:
    return _record(states, identity.part_key(identity.CTX, ctx_id, realm_id), LatestCtx)


def org_profile(states: States, org_id: bytes) -> OrgProfile | None:
    return _record(states, identity.part_key(identity.ORG, org_id), LatestOrg)


@dataclass(frozen=True, slots=True)
class GroupView:
    group_id: bytes
    name: str
    realm_id: bytes | None
    members: tuple[bytes, ...]


def groups(states: States, org_id: bytes) -> Iterator[GroupView]:
    """The groups of an organization with their members, by id."""
    members: dict[bytes, list[bytes]] = {}
    for part in _parts(states, identity.GROUPS_OF + org_id):
        for group_id in _names(states, part):
            members.setdefault(group_id, []).append(part[-identity.ID :])
    for part in _parts(states, identity.GROUP + org_id):
        found, group_id = states[part], part[-identity.ID :]
        if isinstance(found, GroupName):
            yield GroupView(group_id, found.name, found.realm_id, tuple(members.get(group_id, ())))


def groups_of(states: States, org_id: bytes, ctx_id: bytes) -> tuple[bytes, ...]:
    """The groups of an organization that an account is in."""
    return tuple(_names(states, identity.part_key(identity.GROUPS_OF, org_id, ctx_id)))


def roles(states: States, org_id: bytes, ctx_id: bytes, realm_id: bytes | None = None) -> frozenset[str]:
    """The roles of an account and of its groups, in a realm and in all realms. §8.3."""
    found: set[bytes] = set()
    for realm in {realm_id, None}:
        found.update(_names(states, identity.part_key(identity.ROLES_OF_CTX, org_id, ctx_id, realm)))
        for group_id in groups_of(states, org_id, ctx_id):
            found.update(_names(states, identity.part_key(identity.ROLES_OF_GROUP, org_id, group_id, realm)))
    return frozenset(name.decode() for name in found)


def handle(states: States, realm_id: bytes, name: str) -> HandleMap | None:
    """The target of a handle in a realm, or None."""
    return _record(states, identity.handle(realm_id, name), LatestHandle)


def link(states: States, realm_id: bytes, provider: str, external_sub: str) -> ExternalLink | None:
    """The link of an external subject in a realm, or None."""
    return _record(states, identity.link(realm_id, provider, external_sub), LatestLink)


def links(states: States) -> Iterator[ExternalLink]:
    """All links, by part."""
    for part in _parts(states, identity.LINK):
        found = _record(states, part, LatestLink)
        if found is not None:
            yield found


def conflicting_links(*streams: States) -> tuple[tuple[str, str], ...]:
    """The (provider, external_sub) pairs with more than one target in one realm. §10.2."""
    targets: dict[tuple[bytes, str, str], set[tuple[bytes | None, bytes | None]]] = {}
    for states in streams:
        for found in links(states):
            key = (found.realm_id, found.provider, found.external_sub)
            targets.setdefault(key, set()).add((found.ctx_id, found.org_id))
    return tuple(sorted({key[1:] for key, linked in targets.items() if len(linked) > 1}))


def _record(states: States, part: bytes, kind: type[Latest[E]]) -> E | None:
    found = states.get(part)
    return found.record if isinstance(found, kind) else None


def _parts(states: States, start: bytes) -> list[bytes]:
    return sorted(part for part in states if part.startswith(start))


def _names(states: States, part: bytes) -> Iterable[bytes]:
    found = states.get(part)
    return tuple(found.names()) if isinstance(found, Marks) else ()


def _earliest(states: States, *named: bytes) -> Revoked | None:
    earliest: State = None
    for part in named:
        found = states.get(part)
        earliest = join(earliest, found if isinstance(found, Revoked) else None)
    return earliest if isinstance(earliest, Revoked) else None
