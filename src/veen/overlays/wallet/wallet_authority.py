"""Approvals and authority: transfers with several signers, and the capabilities that events require. wallet-spec §9.

Approvers sign `approval_hash`; the signatures are in the transfer's metadata under `approvals`. The fold does not check
them: the executor of a transfer must check them before sending, and auditors check them again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from veen.core import CapToken, Malformed, SigningKey, cbor, signing
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.wallet.wallet_events import Adjust, Deposit, Freeze, Limit, Transfer, Unfreeze, approval_hash

KEY = "approvals"


def digest(transfer: Transfer) -> bytes:
    """The hash that approvers of a transfer sign. It does not cover the metadata."""
    return approval_hash(transfer.wallet_id, transfer.to_wallet_id, transfer.amount, transfer.ts, transfer.transfer_id)


def approve(transfer: Transfer, key: SigningKey) -> bytes:
    return key.sign(digest(transfer))


def signatures(transfer: Transfer) -> tuple[bytes, ...]:
    """The signatures in a transfer's metadata, possibly none.

    Raises `Malformed` if `approvals` is not a list of them.
    """
    found = cbor.decode(transfer.metadata, "metadata") if transfer.metadata is not None else {}
    listed = found.get(KEY, ()) if isinstance(found, Mapping) else ()  # type: ignore[call-overload]
    if not isinstance(listed, tuple) or not all(isinstance(one, bytes) for one in listed):
        raise Malformed("approvals", "not an array of signatures")
    return listed


def approvers(transfer: Transfer, among: Iterable[bytes]) -> frozenset[bytes]:
    """The keys of `among` that signed the transfer. Each key counts once."""
    signed, given = digest(transfer), signatures(transfer)
    return frozenset(key for key in among if any(signing.is_valid(key, signed, one) for one in given))


def approved(transfer: Transfer, among: Iterable[bytes], least: int) -> bool:
    """Whether at least `least` of these keys signed the transfer (m of n)."""
    return len(approvers(transfer, among)) >= least


PRIVILEGED: tuple[type[Event], ...] = (Deposit, Adjust, Limit, Freeze, Unfreeze)


class CapabilityHolder(StrEnum):
    """The kind of holder of a capability."""

    DEVICE = "device"  # of a person; issued by a principal key
    SERVICE = "service"  # of an institution; issued by its org_pk


@dataclass(frozen=True, slots=True)
class WalletGrant:
    """A capability that wallet events may use."""

    auth_ref: bytes
    subject_pk: bytes
    holder: CapabilityHolder


@dataclass(frozen=True, slots=True)
class WalletAuthority:
    """The capabilities of a deployment. An event without one of them is refused."""

    grants: tuple[WalletGrant, ...]
    _by_ref: dict[bytes, WalletGrant] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_ref = {grant.auth_ref: grant for grant in self.grants}
        if len(by_ref) != len(self.grants):
            raise ValueError("two grants have the same auth_ref")
        object.__setattr__(self, "_by_ref", by_ref)

    @classmethod
    def of(cls, tokens: Iterable[CapToken], org_pks: Iterable[bytes]) -> "WalletAuthority":
        """Build from verified tokens. A token issued by one of `org_pks` belongs to a service."""
        orgs = frozenset(org_pks)
        grants = {
            token.auth_ref(): WalletGrant(
                token.auth_ref(),
                token.subject_pk,
                CapabilityHolder.SERVICE if token.issuer_pk in orgs else CapabilityHolder.DEVICE,
            )
            for token in tokens
        }
        return cls(tuple(grants[ref] for ref in sorted(grants)))

    def allows(self, entry: FoldEntry, event: Event) -> bool:
        """Whether the entry's capability is known, belongs to its writer, and permits the event."""
        grant = self._by_ref.get(entry.auth_ref) if entry.auth_ref is not None else None
        if grant is None or grant.subject_pk != entry.client_id:
            return False
        return grant.holder is CapabilityHolder.SERVICE or not isinstance(event, PRIVILEGED)

    def value(self) -> cbor.Value:
        """The canonical value for the settings of a fold."""
        return tuple((one.auth_ref, one.subject_pk, str(one.holder)) for one in sorted(self.grants, key=_ref_of))


def _ref_of(grant: WalletGrant) -> bytes:
    return grant.auth_ref
