"""The names that ID derives, and the streams its events are sent on. id-spec §3, §4.

Names of realms and groups are any text: what the specification writes as `ascii(name)` is the name's UTF-8 bytes. As
with streams, 64 hex digits for a realm are the id itself.
"""

from veen.core.hashing import ht
from veen.core.naming import realm_id

__all__ = [
    "ctx_id",
    "ctx_stream",
    "device_id",
    "group_id",
    "handle_stream",
    "org_id",
    "org_stream",
    "principal_id",
    "principal_stream",
    "realm_id",
    "scoped_org_id",
]


def principal_id(principal_pk: bytes) -> bytes:
    """A stable reference to a principal; no rule depends on it. §3.2."""
    return ht("id/principal", principal_pk)


def ctx_id(principal_pk: bytes, realm: bytes) -> bytes:
    """The account of a principal in one realm: nobody can tell from two of them that they are one's. §3.3."""
    return ht("id/ctx", principal_pk + realm)


def device_id(device_pk: bytes) -> bytes:
    """§3.4."""
    return ht("id/device", device_pk)


def org_id(org_pk: bytes) -> bytes:
    """§3.5."""
    return ht("id/org", org_pk)


def scoped_org_id(org: bytes, realm: bytes) -> bytes:
    """An organization within one realm: where it is used, groups and roles of that realm name it. §3.5."""
    return ht("id/org/realm", org + realm)


def group_id(org: bytes, group_local_name: str) -> bytes:
    """A group of an organization, scoped or not. Its local name never changes; what it is called may. §3.6."""
    return ht("id/group", org + group_local_name.encode())


def principal_stream(principal_pk: bytes) -> bytes:
    """Where a principal, its devices and its revocations are. §4.1."""
    return ht("id/stream/principal", principal_pk)


def ctx_stream(ctx: bytes, realm: bytes) -> bytes:
    """Where an account's profile and its external links are."""
    return ht("id/stream/ctx", ctx + realm)


def org_stream(org: bytes) -> bytes:
    """Where an organization, its groups, roles, links and revocations are; of a scoped one, under its scoped id."""
    return ht("id/stream/org", org)


def handle_stream(realm: bytes) -> bytes:
    """Where the handles of a realm are."""
    return ht("id/stream/handle", realm)
