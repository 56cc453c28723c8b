"""Approvals: a transfer that several people signed before one key sends it. wallet-spec §9.

The signatures are over `approval_hash` and travel in the transfer's metadata, under `approvals`. The fold does not look
at them: whoever executes a transfer asks here first, and whoever audits one asks again.
"""

from collections.abc import Iterable, Mapping

from veen.core import Malformed, SigningKey, cbor, signing
from veen.overlays.wallet.events import Transfer
from veen.overlays.wallet.ids import approval_hash

KEY = "approvals"


def digest(transfer: Transfer) -> bytes:
    """What approvers of this transfer sign. Metadata is no part of it."""
    return approval_hash(transfer.wallet_id, transfer.to_wallet_id, transfer.amount, transfer.ts, transfer.transfer_id)


def approve(transfer: Transfer, key: SigningKey) -> bytes:
    """One approver's signature."""
    return key.sign(digest(transfer))


def signatures(transfer: Transfer) -> tuple[bytes, ...]:
    """The signatures that a transfer carries, none where its metadata has none. Raises `Malformed` for all else."""
    found = cbor.decode(transfer.metadata, "metadata") if transfer.metadata is not None else {}
    listed = found.get(KEY, ()) if isinstance(found, Mapping) else ()  # type: ignore[call-overload]
    if not isinstance(listed, tuple) or not all(isinstance(one, bytes) for one in listed):
        raise Malformed("approvals", "not an array of signatures")
    return listed


def approvers(transfer: Transfer, among: Iterable[bytes]) -> frozenset[bytes]:
    """Which of these keys signed the transfer. A key counts once, however often it signed."""
    signed, given = digest(transfer), signatures(transfer)
    return frozenset(key for key in among if any(signing.is_valid(key, signed, one) for one in given))


def approved(transfer: Transfer, among: Iterable[bytes], least: int) -> bool:
    """Whether at least so many of these keys signed it: m of n."""
    return len(approvers(transfer, among)) >= least
