"""Revocation: client keys and capabilities that a hub must not admit, for a period or forever. 001, spec-2 §4.3.

A revocation cannot be withdrawn; it ends at its own end time. A target may have several revocations and is revoked
while any of them is valid.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from veen.core import CapToken, cbor
from veen.core.admin import Revocation as Wire
from veen.core.admin import RevocationKind
from veen.core.hashing import HASH_BYTES, h
from veen.overlays.admin.admin_records import FOREVER, AdminRecord, Records, States, TimedEvent, TimedOverlay, record_at
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event

__all__ = [
    "REVOCATIONS",
    "RevocationEvent",
    "RevocationKind",
    "Revocations",
    "of_token",
    "part_of",
    "revoked",
    "revoked_at",
    "target_of_part",
    "token_target",
]


class RevocationEvent(Wire, TimedEvent):
    """`veen.revocation.v1`."""

    __slots__ = ()


class Revocations(TimedOverlay[RevocationEvent]):
    """One part per kind and target."""

    CLASS = "revocation"
    EVENTS = (RevocationEvent,)

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, RevocationEvent)
        return (part_of(event.kind, event.target),)

    def rank(self, record: AdminRecord[RevocationEvent]) -> tuple[Any, ...]:
        """Among revocations with the same start, the longest comes first because it covers the others."""
        event = record.event
        return event.ts, -(FOREVER if event.end is None else event.end), record.at

    def plain(self, part: bytes, state: Records[RevocationEvent]) -> Mapping[str, cbor.Value]:
        kind, target = target_of_part(part)
        return {
            "kind": str(kind),
            "target": target,
            "revocations": [
                {"from": one.event.ts, "until": one.event.end, "reason": one.event.reason, **one.where()}
                for one in state
            ],
        }


REVOCATIONS = Revocations()


def part_of(kind: str, target: bytes) -> bytes:
    return kind.encode() + b"\0" + target


def target_of_part(part: bytes) -> tuple[RevocationKind, bytes]:
    return RevocationKind(part[: -HASH_BYTES - 1].decode()), part[-HASH_BYTES:]


def token_target(token: CapToken) -> bytes:
    """The target of a token revocation: the hash of the token's encoding."""
    return h(token.encode())


def revoked(states: States[RevocationEvent], kind: str, target: bytes, now: int) -> AdminRecord[RevocationEvent] | None:
    """The revocation of a target in effect at a time, or None."""
    return record_at(states.get(part_of(kind, target), ()), now)


def of_token(states: States[RevocationEvent], token: CapToken, now: int) -> AdminRecord[RevocationEvent] | None:
    """The revocation in effect for a token at a time: of the token, its `auth_ref` or its subject."""
    named = (
        (RevocationKind.CAP_TOKEN, token_target(token)),
        (RevocationKind.AUTH_REF, token.auth_ref()),
        (RevocationKind.CLIENT_ID, token.subject_pk),
    )
    return next((found for kind, target in named if (found := revoked(states, kind, target, now))), None)


def revoked_at(
    states: States[RevocationEvent], now: int
) -> Iterator[tuple[RevocationKind, bytes, AdminRecord[RevocationEvent]]]:
    """Every revocation in effect at a time, by kind and target."""
    for part in sorted(states):
        record = record_at(states[part], now)
        if record is not None:
            yield *target_of_part(part), record
