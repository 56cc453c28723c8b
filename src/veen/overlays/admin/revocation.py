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
from veen.overlays.admin.lasting import FOREVER, Lasting, LastingOverlay, holding
from veen.overlays.admin.records import Record, Records, States
from veen.overlays.entry import Entry
from veen.overlays.event import Event

__all__ = [
    "REVOCATIONS",
    "Revocation",
    "RevocationKind",
    "Revocations",
    "of_token",
    "part_of",
    "revoked",
    "revoked_at",
    "target_of_part",
    "token_target",
]


class Revocation(Wire, Lasting):
    """`veen.revocation.v1`."""

    __slots__ = ()


class Revocations(LastingOverlay[Revocation]):
    """One part per kind and target."""

    CLASS = "revocation"
    EVENTS = (Revocation,)

    def parts(self, entry: Entry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Revocation)
        return (part_of(event.kind, event.target),)

    def rank(self, record: Record[Revocation]) -> tuple[Any, ...]:
        """Of those that start together, the longest first: it says all that the others say."""
        said = record.said
        return said.ts, -(FOREVER if said.end is None else said.end), record.at

    def plain(self, part: bytes, state: Records[Revocation]) -> Mapping[str, cbor.Value]:
        kind, target = target_of_part(part)
        return {
            "kind": str(kind),
            "target": target,
            "revocations": [
                {"from": one.said.ts, "until": one.said.end, "reason": one.said.reason, **one.where()} for one in state
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


def revoked(states: States[Revocation], kind: str, target: bytes, now: int) -> Record[Revocation] | None:
    """The revocation that holds for a target at a time, None where none does."""
    return holding(states.get(part_of(kind, target), ()), now)


def of_token(states: States[Revocation], token: CapToken, now: int) -> Record[Revocation] | None:
    """The revocation that keeps a token from being used at a time: of itself, of its `auth_ref` or of its subject."""
    named = (
        (RevocationKind.CAP_TOKEN, token_target(token)),
        (RevocationKind.AUTH_REF, token.auth_ref()),
        (RevocationKind.CLIENT_ID, token.subject_pk),
    )
    return next((found for kind, target in named if (found := revoked(states, kind, target, now))), None)


def revoked_at(states: States[Revocation], now: int) -> Iterator[tuple[RevocationKind, bytes, Record[Revocation]]]:
    """All that is revoked at a time, by kind and target."""
    for part in sorted(states):
        record = holding(states[part], now)
        if record is not None:
            yield *target_of_part(part), record
