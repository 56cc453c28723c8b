"""The names that WAL derives. wallet-spec §2.3, §3.1, §5.5, §9."""

from veen.core.hashing import ht, u64be


def wallet_id(realm_id: bytes, ctx_id: bytes, currency: str) -> bytes:
    """The wallet of an owner in a realm, for one currency. The code is ASCII."""
    return ht("wallet/id", realm_id + ctx_id + currency.encode("ascii"))


def wallet_stream(of_wallet: bytes) -> bytes:
    """The stream on which everything that changes a wallet is sent."""
    return ht("wallet/stream", of_wallet)


def transfer_id(msg_id: bytes) -> bytes:
    """A transfer's id from a message that came before it, such as the request for it.

    The transfer's own message cannot be the one: its `msg_id` depends on the body that holds the `transfer_id`.
    """
    return ht("wallet/xfer", msg_id)


def approval_hash(of_wallet: bytes, to_wallet: bytes, amount: int, ts: int, transfer: bytes) -> bytes:
    """What approvers of a transfer sign, before one of them sends it."""
    return ht("wallet/approval", of_wallet + to_wallet + u64be(amount) + u64be(ts) + transfer)
