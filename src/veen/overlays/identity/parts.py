"""The parts of ID's state: one letter for the kind, and the ids that name it. The letter says how a state decodes."""

from collections.abc import Mapping

from veen.core.hashing import u32be
from veen.overlays.identity.state import (
    Founded,
    Held,
    LatestCtx,
    LatestDevice,
    LatestHandle,
    LatestLink,
    LatestOrg,
    Marks,
    Named,
    Revoked,
)

PRINCIPAL, DEVICE, CTX, ORG, GROUP, GROUPS_OF, ROLES_OF_CTX, ROLES_OF_GROUP, HANDLE, LINK, REVOKED = (
    b"p", b"d", b"c", b"o", b"g", b"m", b"r", b"s", b"h", b"l", b"x",
)  # fmt: skip
REVOKED_DEVICE, REVOKED_AUTH_REF, REVOKED_CTX, REVOKED_ORG = b"xd", b"xa", b"xc", b"xo"

KINDS: Mapping[bytes, type[Held]] = {
    PRINCIPAL: Founded,
    DEVICE: LatestDevice,
    CTX: LatestCtx,
    ORG: LatestOrg,
    GROUP: Named,
    GROUPS_OF: Marks,
    ROLES_OF_CTX: Marks,
    ROLES_OF_GROUP: Marks,
    HANDLE: LatestHandle,
    LINK: LatestLink,
    REVOKED: Revoked,
}
ID = 32


def principal(principal_pk: bytes) -> bytes:
    return PRINCIPAL + principal_pk


def device(principal_pk: bytes, device_id: bytes) -> bytes:
    """Under its principal: another's record of the same key changes nothing here."""
    return DEVICE + principal_pk + device_id


def ctx(ctx_id: bytes, realm_id: bytes) -> bytes:
    return CTX + ctx_id + realm_id


def org(org_id: bytes) -> bytes:
    return ORG + org_id


def group(org_id: bytes, group_id: bytes) -> bytes:
    """What a group is called."""
    return GROUP + org_id + group_id


def groups_of(org_id: bytes, ctx_id: bytes) -> bytes:
    """The groups of an organization that an account is in, or was."""
    return GROUPS_OF + org_id + ctx_id


def roles_of_ctx(org_id: bytes, ctx_id: bytes, realm_id: bytes | None) -> bytes:
    return ROLES_OF_CTX + org_id + ctx_id + (realm_id or b"")


def roles_of_group(org_id: bytes, group_id: bytes, realm_id: bytes | None) -> bytes:
    return ROLES_OF_GROUP + org_id + group_id + (realm_id or b"")


def handle(realm_id: bytes, name: str) -> bytes:
    return HANDLE + realm_id + name.encode()


def link(realm_id: bytes, provider: str, external_sub: str) -> bytes:
    """An outside subject in one realm: in another realm the same person has another account."""
    named = provider.encode()
    return LINK + realm_id + u32be(len(named)) + named + external_sub.encode()


def revoked_device(device_id: bytes, principal_pk: bytes | None) -> bytes:
    return REVOKED_DEVICE + device_id + (principal_pk or b"")


def revoked_auth_ref(auth_ref: bytes) -> bytes:
    return REVOKED_AUTH_REF + auth_ref


def revoked_ctx(ctx_id: bytes, realm_id: bytes | None) -> bytes:
    return REVOKED_CTX + ctx_id + (realm_id or b"")


def revoked_org(org_id: bytes, realm_id: bytes | None) -> bytes:
    return REVOKED_ORG + org_id + (realm_id or b"")


def names(part: bytes) -> dict[str, bytes | str]:
    """What a part is of, by name."""
    layout = _NAMES.get(part[:2]) or _NAMES[part[:1]]
    rest = part[2 if part[:2] in _NAMES else 1 :]
    found: dict[str, bytes | str] = {}
    for name in layout:
        found[name], rest = rest[:ID], rest[ID:]
    if part[:1] == HANDLE:
        found["handle"] = rest.decode()
    elif part[:1] == LINK:
        cut = 4 + int.from_bytes(rest[:4], "big")
        found |= {"provider": rest[4:cut].decode(), "external_sub": rest[cut:].decode()}
    return {name: value for name, value in found.items() if value != b""}


_NAMES: Mapping[bytes, tuple[str, ...]] = {
    PRINCIPAL: ("principal_pk",),
    DEVICE: ("principal_pk", "device_id"),
    CTX: ("ctx_id", "realm_id"),
    ORG: ("org_id",),
    GROUP: ("org_id", "group_id"),
    GROUPS_OF: ("org_id", "ctx_id"),
    ROLES_OF_CTX: ("org_id", "ctx_id", "realm_id"),
    ROLES_OF_GROUP: ("org_id", "group_id", "realm_id"),
    HANDLE: ("realm_id",),
    LINK: ("realm_id",),
    REVOKED_DEVICE: ("device_id", "principal_pk"),
    REVOKED_AUTH_REF: ("auth_ref",),
    REVOKED_CTX: ("ctx_id", "realm_id"),
    REVOKED_ORG: ("org_id", "realm_id"),
}
