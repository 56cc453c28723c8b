"""Namespaces: the reserved numbers, and the local policy for objects in each. Spec §2.1, §8 and §9.3."""

from dataclasses import dataclass
from enum import IntEnum

from veil.veil_errors import Refused
from veil.veil_limits import MAX_UINT16

FIRST_APPLICATION = 32


class Namespace(IntEnum):
    """Assigned numbers of the reserved range."""

    SYSTEM = 0
    PUBLIC_FEED = 1
    PRIVATE = 2
    TRUST = 3
    RELAY = 4
    BUNDLES = 5


class ErasureMode(IntEnum):
    """Systematic: the first k shards are the blocks. Hardened: blocks pass the all-or-nothing transform first."""

    SYSTEMATIC = 0
    HARDENED = 1


def is_reserved(namespace: int) -> bool:
    return 0 <= namespace < FIRST_APPLICATION


def check_application(namespace: int) -> None:
    """Raise `Refused` unless the namespace is in the range for applications."""
    if not FIRST_APPLICATION <= namespace <= MAX_UINT16:
        raise Refused("namespace", f"{namespace} is not in the application range {FIRST_APPLICATION} to {MAX_UINT16}")


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """Local policy: the namespaces with systematic shards, and those that require a signature in clear.

    Public feeds are systematic, as the specification suggests, because their content is not secret. Public feeds,
    endorsements and relay announcements must be signed, because their meaning depends on the author.
    """

    systematic: frozenset[int] = frozenset({Namespace.PUBLIC_FEED})
    signed: frozenset[int] = frozenset({Namespace.PUBLIC_FEED, Namespace.TRUST, Namespace.RELAY})

    def erasure_mode(self, namespace: int) -> ErasureMode:
        return ErasureMode.SYSTEMATIC if namespace in self.systematic else ErasureMode.HARDENED

    def requires_signature(self, namespace: int) -> bool:
        return namespace in self.signed
