"""Derived ids and streams. id-spec §3, §4.

Realm and group names may be any text: where the specification writes `ascii(name)`, the UTF-8 bytes are used. As with
streams, a realm given as 64 hex digits is the id itself.
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
