"""Revocation: client keys and capabilities that are not to be admitted, for a time or for good. 001, spec-2 §4.3.

A revocation is never taken back and never leaves the log: it ends when it says. Several may be for one target, which is
revoked while any of them holds.
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
        """Of those that start together, the longest first: it says all that the others say."""
        said = record.event
        return said.ts, -(FOREVER if said.end is None else said.end), record.at

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
    """The part in which the revocations of a target are."""
    return kind.encode() + b"\0" + target


def target_of_part(part: bytes) -> tuple[RevocationKind, bytes]:
    return RevocationKind(part[: -HASH_BYTES - 1].decode()), part[-HASH_BYTES:]


def token_target(token: CapToken) -> bytes:
    """What a revocation of a token itself names: the hash of its encoding."""
    return h(token.encode())


def revoked(states: States[RevocationEvent], kind: str, target: bytes, now: int) -> AdminRecord[RevocationEvent] | None:
    """The revocation that holds for a target at a time, None where none does."""
    return record_at(states.get(part_of(kind, target), ()), now)


def of_token(states: States[RevocationEvent], token: CapToken, now: int) -> AdminRecord[RevocationEvent] | None:
    """The revocation that keeps a token from being used at a time: of itself, of its `auth_ref` or of its subject."""
    named = (
        (RevocationKind.CAP_TOKEN, token_target(token)),
        (RevocationKind.AUTH_REF, token.auth_ref()),
        (RevocationKind.CLIENT_ID, token.subject_pk),
    )
    return next((found for kind, target in named if (found := revoked(states, kind, target, now))), None)


def revoked_at(
    states: States[RevocationEvent], now: int
) -> Iterator[tuple[RevocationKind, bytes, AdminRecord[RevocationEvent]]]:
    """All that is revoked at a time, by kind and target."""
    for part in sorted(states):
        record = record_at(states[part], now)
        if record is not None:
            yield *target_of_part(part), record
