"""Namespaces: which numbers are spoken for, and what a node asks of objects in each. Spec §2.1, §8 and §9.3."""

from dataclasses import dataclass
from enum import IntEnum

from veil.veil_errors import Refused
from veil.veil_limits import MAX_UINT16

FIRST_APPLICATION = 32


class Namespace(IntEnum):
    """The assignments of the reserved range."""

    SYSTEM = 0
    PUBLIC_FEED = 1
    PRIVATE = 2
    TRUST = 3
    RELAY = 4
    BUNDLES = 5


class ErasureMode(IntEnum):
    """How blocks become shards: as they are, or after a transform that leaves none of them in plain."""

    SYSTEMATIC = 0
    HARDENED = 1


def is_reserved(namespace: int) -> bool:
    return 0 <= namespace < FIRST_APPLICATION


def check_application(namespace: int) -> None:
    """Raise `Refused` unless an application may use the namespace for its own."""
    if not FIRST_APPLICATION <= namespace <= MAX_UINT16:
        raise Refused(
            "namespace", f"{namespace} is not one of {FIRST_APPLICATION} to {MAX_UINT16}, those of applications"
        )


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """What is local: which namespaces travel systematic, and in which an object must be signed.

    A public feed travels systematic, as the specification suggests, since what it says is no secret. It must be
    signed, as must endorsements and relay announcements: in all three, who says it is what it means.
    """

    systematic: frozenset[int] = frozenset({Namespace.PUBLIC_FEED})
    signed: frozenset[int] = frozenset({Namespace.PUBLIC_FEED, Namespace.TRUST, Namespace.RELAY})

    def erasure_mode(self, namespace: int) -> ErasureMode:
        return ErasureMode.SYSTEMATIC if namespace in self.systematic else ErasureMode.HARDENED

    def requires_signature(self, namespace: int) -> bool:
        return namespace in self.signed
