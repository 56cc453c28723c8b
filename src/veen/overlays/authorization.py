"""Capabilities that a hub has accepted, revocations, and the validity of a capability at any time.

Spec §6; 001, spec-2 §4.2 and §4.3. A hub logs each capability it accepts on its control stream. The `hub_ts` of that
entry is `issued_at`; presenting a capability again does not renew it. The revocations of a realm are on another stream,
those of the hub's operator on the control stream too; `capability_status` joins all. A revocation cannot be withdrawn;
it ends at its own end time. A target may have several revocations and is revoked while any of them is valid.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from veen.core import CapPresentation, CapToken, Unverified, cbor, control_stream
from veen.core.admin import OperatorRevocation, RevocationKind
from veen.core.admin import Revocation as Wire
from veen.core.cap_token import capability_type, decode_capability, token_of
from veen.core.cbor import DeferredFaults, FieldType
from veen.core.hashing import HASH_BYTES, h
from veen.overlays.admin_records import (
    FOREVER,
    AdminRecord,
    RecordOverlay,
    Records,
    States,
    TimedEvent,
    TimedOverlay,
    only,
    record_at,
)
from veen.overlays.event import Event, FoldEntry
from veen.overlays.overlay import FoldStep


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


class OperatorRevocationEvent(RevocationEvent):
    """`veen.control.revocation.v1`."""

    __slots__ = ()
    NAME: ClassVar = OperatorRevocation.NAME
    SCHEMA: ClassVar = OperatorRevocation.SCHEMA


class OperatorRevocations(Revocations):
    """The revocations on a hub's control stream. They count at that hub."""

    CLASS = "operator.revocation"
    EVENTS = (OperatorRevocationEvent,)


OPERATOR_REVOCATIONS = OperatorRevocations()


def joined(a: States[RevocationEvent], b: States[RevocationEvent]) -> States[RevocationEvent]:
    """The revocations of a realm and of an operator together."""
    return {part: REVOCATIONS.merge(a.get(part, ()), b.get(part, ())) for part in {**a, **b}}


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


class ShownToken(CapToken, Event):
    """`veen.control.cap.v1`: the body is the token itself."""

    __slots__ = ()
    NAME: ClassVar = control_stream.CAP.name
    SCHEMA: ClassVar = control_stream.CAP.schema


class ShownPresentation(CapPresentation, Event):
    """`veen.control.presentation.v1`: the body is the presentation itself."""

    __slots__ = ()
    NAME: ClassVar = control_stream.PRESENTATION.name
    SCHEMA: ClassVar = control_stream.PRESENTATION.schema


ShownCapability: TypeAlias = ShownToken | ShownPresentation


class _Shown(FieldType):
    """A logged token or presentation."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[ShownCapability, int]:
        if capability_type(data, pos) is CapPresentation:
            return ShownPresentation.read(data, pos, late)
        return ShownToken.read(data, pos, late)

    def write(self, field: ShownCapability) -> bytes:
        return field.encode()


class Authorizations(RecordOverlay[ShownCapability]):
    """One part per `auth_ref`."""

    CLASS = "authorization"
    VERSION = 2  # 2: presentations
    EVENTS = (ShownToken, ShownPresentation)
    BODY = _Shown(name="event")

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        assert isinstance(event, ShownToken | ShownPresentation)
        return _unsigned(event.encode())

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, ShownToken | ShownPresentation)
        return (event.auth_ref(),)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """No keys: only the first record of a capability counts anyway."""
        return ()

    def effective(self, records: Records[ShownCapability]) -> Records[ShownCapability]:
        return (min(records, key=lambda record: record.at),) if records else ()

    def ignored_reason(self, effective: Records[ShownCapability], record: AdminRecord[ShownCapability]) -> str:
        return f"entry {effective[0].stream_seq} already authorized this capability"

    def plain(self, part: bytes, state: Records[ShownCapability]) -> Mapping[str, cbor.Value]:
        (record,) = state
        token = token_of(record.event)
        rate = token.allow.rate
        presented = record.event if isinstance(record.event, ShownPresentation) else None
        return {
            "auth_ref": part,
            "token_hash": h(token.encode()),
            "issuer_pk": token.issuer_pk,
            "subject_pk": token.subject_pk,
            "stream_ids": token.allow.stream_ids,
            "ttl": token.allow.ttl,
            "rate": None if rate is None else (rate.per_sec, rate.burst),
            "issued_at": record.hub_ts,
            "expires_at": record.event.expires_at(record.hub_ts),
            **({"hub_id": presented.hub_id, "not_after": presented.not_after} if presented else {}),
            **record.where(),
        }


AUTHORIZATIONS = Authorizations()


@lru_cache(maxsize=1024)
def _unsigned(encoded: bytes) -> str | None:
    """Why a capability's signature is invalid, or None. Cached because a fold meets the same one many times."""
    try:
        decode_capability(encoded).verify()
    except Unverified as error:
        return str(error)
    return None


class Validity(StrEnum):
    """The validity of a capability at one time."""

    UNKNOWN = "unknown"  # the hub has not logged it
    LATER = "later"  # the hub logged it after that time
    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class CapabilityStatus:
    """The validity of a capability at one time, the entry that logged it and the revocation in effect."""

    validity: Validity
    logged: AdminRecord[ShownCapability] | None = None
    revoked: AdminRecord[RevocationEvent] | None = None

    @property
    def issued_at(self) -> int | None:
        return self.logged.hub_ts if self.logged else None

    @property
    def expires_at(self) -> int | None:
        """The last second in which the capability admits messages, unless it is revoked."""
        return self.logged.event.expires_at(self.logged.hub_ts) if self.logged else None


def capability_status(
    logged: States[ShownCapability],
    revocations: States[RevocationEvent],
    auth_ref: bytes,
    now: int,
    token: CapToken | None = None,
) -> CapabilityStatus:
    """The status of a capability at a time. With `token`, a capability that the hub has not logged is checked as well.

    A capability is valid in each second up to and including `issued_at + ttl`, or `not_after` if that is earlier, in
    which neither it nor its subject is revoked.
    """
    record = only(logged, auth_ref)
    known = token_of(record.event) if record else token
    found = (
        revoked(revocations, RevocationKind.AUTH_REF, auth_ref, now)
        if known is None
        else of_token(revocations, known, now)
    )
    if found is not None:
        return CapabilityStatus(Validity.REVOKED, record, found)
    if record is None:
        return CapabilityStatus(Validity.UNKNOWN)
    if now < record.hub_ts:
        return CapabilityStatus(Validity.LATER, record)
    return CapabilityStatus(Validity.EXPIRED if record.event.expired(record.hub_ts, now) else Validity.VALID, record)


def of_client(
    logged: States[ShownCapability], revocations: States[RevocationEvent], client_id: bytes, now: int
) -> Iterator[tuple[bytes, CapabilityStatus]]:
    """The capabilities of a client key, by `auth_ref`, with their status at a time."""
    for auth_ref in sorted(logged):
        record = only(logged, auth_ref)
        if record is not None and token_of(record.event).subject_pk == client_id:
            yield auth_ref, capability_status(logged, revocations, auth_ref, now)
