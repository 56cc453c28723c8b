"""Authority over streams: which hub orders which stream of a realm, and who caused a contradiction.

FED1 and AUTH1, 001, spec-2 §2 and §3. At any time at most one record of a stream is in effect: the active record with
the lowest (`ts`, `primary_hub`), then with the lowest encoding. A later record therefore waits until an active one
ends. `classify` names the cause of two contradicting receipts; the caller must have verified both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from veen.core import Receipt, cbor
from veen.core.admin import Authority as Wire
from veen.core.admin import AuthorityPolicy
from veen.core.envelopes import Equivocation
from veen.core.hashing import HASH_BYTES
from veen.overlays.admin_records import AdminRecord, Records, States, TimedEvent, TimedOverlay, record_at, slots
from veen.overlays.event import Event, FoldEntry


class AuthorityEvent(Wire, TimedEvent):
    """`veen.fed.authority.v1`."""

    __slots__ = ()


class Authorities(TimedOverlay[AuthorityEvent]):
    """One part per realm and stream. With `realm_id`, records of other realms are malformed."""

    CLASS = "fed.authority"
    EVENTS = (AuthorityEvent,)

    def __init__(self, realm_id: bytes | None = None) -> None:
        self._realm_id = realm_id

    def settings(self) -> bytes:
        return self._realm_id or b""

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        assert isinstance(event, AuthorityEvent)
        return None if self._realm_id in (None, event.realm_id) else "the record is for another realm"

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, AuthorityEvent)
        return (part_of(event.realm_id, event.stream_id),)

    def rank(self, record: AdminRecord[AuthorityEvent]) -> tuple[Any, ...]:
        return *record.event.rank(), record.at

    def plain(self, part: bytes, state: Records[AuthorityEvent]) -> Mapping[str, cbor.Value]:
        return {
            "realm_id": part[:HASH_BYTES],
            "stream_id": part[HASH_BYTES:],
            "records": [
                {
                    "from": slot.start,
                    "until": slot.end,
                    "primary_hub": slot.record.event.primary_hub,
                    "replica_hubs": slot.record.event.replica_hubs,
                    "policy": slot.record.event.policy,
                    "ts": slot.record.event.ts,
                    "ttl": slot.record.event.ttl,
                    **slot.record.where(),
                }
                for slot in slots(state)
            ],
        }


AUTHORITIES = Authorities()


def part_of(realm_id: bytes, stream_id: bytes) -> bytes:
    return realm_id + stream_id


def active(states: States[AuthorityEvent], realm_id: bytes, stream_id: bytes, now: int) -> AuthorityEvent | None:
    """The authority record of a stream in effect at a time, or None."""
    record = record_at(states.get(part_of(realm_id, stream_id), ()), now)
    return record.event if record else None


def contested(state: Records[AuthorityEvent], now: int) -> Records[AuthorityEvent]:
    """The records that are active at a time but not in effect. There should be none."""
    return tuple(record for record in state if record.event.active_at(now))[1:]


@dataclass(frozen=True, slots=True)
class LabelAuthority:
    """§3.2: the hub that may order a label, as far as it is known."""

    stream_id: bytes
    realm_id: bytes | None = None
    primary_hub: bytes | None = None
    policy: AuthorityPolicy = AuthorityPolicy.UNSPECIFIED


def label_authority(
    states: States[AuthorityEvent],
    label: bytes,
    now: int,
    stream_id_for_label: Callable[[bytes], bytes],
    realm_id_for_label: Callable[[bytes], bytes | None] = lambda label: None,
) -> LabelAuthority:
    """The authority over a label at a time.

    The deployment provides the two functions. Their results must not change over time.
    """
    stream_id, realm_id = stream_id_for_label(label), realm_id_for_label(label)
    found = None if realm_id is None else active(states, realm_id, stream_id, now)
    if found is None:
        return LabelAuthority(stream_id, realm_id)
    return LabelAuthority(stream_id, realm_id, found.primary_hub, AuthorityPolicy(found.policy))


@dataclass(frozen=True, slots=True)
class ConflictStatement:
    """A receipt, the hub that signed it, and the authority over its label at its `hub_ts`."""

    receipt: Receipt
    hub_id: bytes
    authority: LabelAuthority


class Cause(StrEnum):
    """The cause of a contradiction."""

    PRIMARY = "primary"  # the label's only primary hub signed both
    INTRUDER = "intruder"  # a hub signed that is not the label's primary: it or the authority record is wrong
    HANDOVER = "handover"  # a new primary did not continue the log of the previous one
    HUB = "hub"  # one hub signed both without being the only primary: misbehaviour under any policy
    DIVERGENCE = "divergence"  # two hubs wrote, as multi-primary allows
    UNDECLARED = "undeclared"  # two hubs wrote and no record declares which may


class FaultSeverity(StrEnum):
    HIGH = "high"  # log it, anchor the evidence, rotate or isolate the hub
    NOTICE = "notice"  # two logs must be reconciled; no hub misbehaved


_NOTICES = (Cause.DIVERGENCE, Cause.UNDECLARED)


@dataclass(frozen=True, slots=True)
class EquivocationFinding:
    """The cause of a contradiction and the hubs to investigate."""

    cause: Cause
    suspects: tuple[bytes, ...]

    @property
    def severity(self) -> FaultSeverity:
        return FaultSeverity.NOTICE if self.cause in _NOTICES else FaultSeverity.HIGH


def classify(first: ConflictStatement, second: ConflictStatement) -> EquivocationFinding | None:
    """Classify two receipts; None if they do not contradict each other. The order does not matter."""
    if Equivocation(first.receipt, second.receipt).flaw() is not None:
        return None
    both = (first, second)
    signers = tuple(sorted({one.hub_id for one in both}))
    single = [one for one in both if one.authority.policy is AuthorityPolicy.SINGLE_PRIMARY]
    intruders = tuple(sorted({one.hub_id for one in single if one.hub_id != one.authority.primary_hub}))
    if intruders:
        return EquivocationFinding(Cause.INTRUDER, intruders)
    if len(signers) == 1:
        return EquivocationFinding(Cause.PRIMARY if single else Cause.HUB, signers)
    if single:
        return EquivocationFinding(Cause.HANDOVER, signers)
    declared = all(one.authority.policy is AuthorityPolicy.MULTI_PRIMARY for one in both)
    return EquivocationFinding(Cause.DIVERGENCE if declared else Cause.UNDECLARED, signers)
