"""WAL: account-based wallets as folds of their streams, with limits, freezes and bridging. 001, wallet-spec.

`ids` derives names, `events` has the nine events, `ledger` is the state and the rules of one wallet, `function` sums up
a run of events as a function from state to state, `overlay` joins them. `authority` says who may do what, `approvals`
has transfers signed by several, `conformance` lists the levels.
"""

from veen.overlays.wallet.ledger import Wallet, WalletCode
from veen.overlays.wallet.wallet_authority import (
    PRIVILEGED,
    CapabilityHolder,
    WalletAuthority,
    WalletGrant,
    approve,
    approved,
    approvers,
)
from veen.overlays.wallet.wallet_events import (
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Withdraw,
    approval_hash,
    transfer_id,
    wallet_id,
    wallet_stream,
)
from veen.overlays.wallet.wallet_overlay import WALLETS, Level, Wallets, events_of, failure, violations

__all__ = [
    "Adjust",
    "CapabilityHolder",
    "Close",
    "Deposit",
    "Freeze",
    "Level",
    "Limit",
    "Open",
    "PRIVILEGED",
    "Transfer",
    "Unfreeze",
    "WALLETS",
    "Wallet",
    "WalletAuthority",
    "WalletCode",
    "WalletGrant",
    "Wallets",
    "Withdraw",
    "approval_hash",
    "approve",
    "approved",
    "approvers",
    "events_of",
    "failure",
    "transfer_id",
    "violations",
    "wallet_id",
    "wallet_stream",
]
