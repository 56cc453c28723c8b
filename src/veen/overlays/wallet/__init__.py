"""WAL: account-based wallets as folds of their streams, with limits, freezes and bridging. 001, wallet-spec.

`wallet_events` defines ids and events, `ledger` the state and rules of one wallet. `transition` summarises a run of
events as a function from state to state, and `wallet_overlay` folds wallets. `wallet_authority` checks capabilities and
approvals. All events and WALBR0 are implemented: conformance level WAL v0.0.1 Bridge (§14).
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
from veen.overlays.wallet.wallet_overlay import WALLETS, Wallets, failure, violations

__all__ = [
    "Adjust",
    "CapabilityHolder",
    "Close",
    "Deposit",
    "Freeze",
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
    "failure",
    "transfer_id",
    "violations",
    "wallet_id",
    "wallet_stream",
]
