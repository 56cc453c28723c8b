"""WAL: account-based wallets as folds of their streams, with limits, freezes and bridging. 001, wallet-spec.

`ids` derives names, `events` has the nine events, `ledger` is the state and the rules of one wallet, `function` sums up
a run of events as a function from state to state, `overlay` joins them. `authority` says who may do what, `approvals`
has transfers signed by several, `conformance` lists the levels.
"""

from veen.overlays.wallet.approvals import approve, approved, approvers
from veen.overlays.wallet.authority import PRIVILEGED, Authority, Grant, Holder
from veen.overlays.wallet.conformance import Level, events_of
from veen.overlays.wallet.events import (
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Withdraw,
)
from veen.overlays.wallet.ids import approval_hash, transfer_id, wallet_id, wallet_stream
from veen.overlays.wallet.ledger import Code, Wallet
from veen.overlays.wallet.overlay import WALLETS, Wallets, failure, violations

__all__ = [
    "Adjust",
    "Authority",
    "Close",
    "Code",
    "Deposit",
    "Freeze",
    "Grant",
    "Holder",
    "Level",
    "Limit",
    "Open",
    "PRIVILEGED",
    "Transfer",
    "Unfreeze",
    "WALLETS",
    "Wallet",
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
