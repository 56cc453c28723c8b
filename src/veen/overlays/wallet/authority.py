"""Who may say what of a wallet: the capability behind an event, and what its issuer may allow. wallet-spec §8, §15.

A capability names its issuer. Those of an institution, signed by an `org_pk`, are for its own services; all others are
for people's devices. Money made or corrected, limits and freezes are for services only. The fold of a deployment that
names its capabilities refuses the rest as `WAL.UNAUTHORIZED_OPERATION`.

A mirrored event came in under the bridge's capability: whether it was allowed is decided where it was written first,
and a replica names its bridge among the services.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from veen.core import CapToken, cbor
from veen.overlays.entry import Entry
from veen.overlays.event import Event
from veen.overlays.wallet.events import Adjust, Deposit, Freeze, Limit, Unfreeze

PRIVILEGED: tuple[type[Event], ...] = (Deposit, Adjust, Limit, Freeze, Unfreeze)


class Holder(StrEnum):
    """Whose hand a capability is in."""

    DEVICE = "device"  # of a person: issued by their principal key
    SERVICE = "service"  # of an institution: issued by its org_pk


@dataclass(frozen=True, slots=True)
class Grant:
    """A capability as a wallet sees it."""

    auth_ref: bytes
    subject_pk: bytes
    holder: Holder


@dataclass(frozen=True, slots=True)
class Authority:
    """The capabilities of a deployment. An event under none of them is allowed nothing."""

    grants: tuple[Grant, ...]
    _by_ref: dict[bytes, Grant] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_ref = {grant.auth_ref: grant for grant in self.grants}
        if len(by_ref) != len(self.grants):
            raise ValueError("a capability is named twice")
        object.__setattr__(self, "_by_ref", by_ref)

    @classmethod
    def of(cls, tokens: Iterable[CapToken], org_pks: Iterable[bytes]) -> "Authority":
        """From tokens whose signatures the caller has verified: those that an `org_pk` issued are for services."""
        orgs = frozenset(org_pks)
        grants = {
            token.auth_ref(): Grant(
                token.auth_ref(), token.subject_pk, Holder.SERVICE if token.issuer_pk in orgs else Holder.DEVICE
            )
            for token in tokens
        }
        return cls(tuple(grants[ref] for ref in sorted(grants)))

    def allows(self, entry: Entry, event: Event) -> bool:
        """Whether the capability an entry came in under is known, is its writer's, and is enough for the event."""
        grant = self._by_ref.get(entry.auth_ref) if entry.auth_ref is not None else None
        if grant is None or grant.subject_pk != entry.client_id:
            return False
        return grant.holder is Holder.SERVICE or not isinstance(event, PRIVILEGED)

    def value(self) -> cbor.Value:
        """One spelling of it, for the settings of a fold."""
        return tuple((one.auth_ref, one.subject_pk, str(one.holder)) for one in sorted(self.grants, key=_ref_of))


def _ref_of(grant: Grant) -> bytes:
    return grant.auth_ref
