"""Derived ids and the nine events of WAL. wallet-spec §2.3, §3.1, §5, §9."""

from typing import Annotated

from veen.core.cbor import Bstr, Bytes, Text, Uint
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event, event
from veen.overlays.fields import Int, optional_map


def wallet_id(realm_id: bytes, ctx_id: bytes, currency: str) -> bytes:
    """The wallet id of an owner in a realm for one currency, which must be ASCII."""
    return ht("wallet/id", realm_id + ctx_id + currency.encode("ascii"))


def wallet_stream(of_wallet: bytes) -> bytes:
    """The stream of a wallet's events."""
    return ht("wallet/stream", of_wallet)


def transfer_id(msg_id: bytes) -> bytes:
    """Derive a transfer's id from an earlier message, such as the request for it.

    The transfer's own message cannot be used: its `msg_id` depends on the body that contains the `transfer_id`.
    """
    return ht("wallet/xfer", msg_id)


def approval_hash(of_wallet: bytes, to_wallet: bytes, amount: int, ts: int, transfer: bytes) -> bytes:
    """The hash that approvers of a transfer sign."""
    return ht("wallet/approval", of_wallet + to_wallet + u64be(amount) + u64be(ts) + transfer)


def _text(*, name: str = "", optional: bool = False) -> Text:
    return Text(MAX_BODY_BYTES, name=name, optional=optional)


def _ref() -> Bytes:
    return Bytes(MAX_BODY_BYTES, name="ref", optional=True)


class WalletEvent(Event):
    """An event of one wallet."""

    __slots__ = ()
    wallet_id: bytes


@event("wallet.open.v1")
class Open(WalletEvent):
    """§5.1."""

    wallet_id: Annotated[bytes, Bstr()]
    realm_id: Annotated[bytes, Bstr()]
    ctx_id: Annotated[bytes, Bstr()]
    currency: Annotated[str, _text()]
    created_at: Annotated[int, Uint()]

    def flaw(self) -> str | None:
        if not self.currency.isascii():
            return "the currency is not ASCII"
        if self.wallet_id != wallet_id(self.realm_id, self.ctx_id, self.currency):
            return "wallet_id does not match its realm, owner and currency"
        return None


@event("wallet.close.v1")
class Close(WalletEvent):
    """§5.2."""

    wallet_id: Annotated[bytes, Bstr()]
    ts: Annotated[int, Uint()]


@event("wallet.deposit.v1")
class Deposit(WalletEvent):
    """§5.3. `ref` is an external reference and is not interpreted."""

    wallet_id: Annotated[bytes, Bstr()]
    amount: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    ref: Annotated[bytes | None, _ref()] = None


@event("wallet.withdraw.v1")
class Withdraw(WalletEvent):
    """§5.4. A second event with the same `ref` is a copy of the first (§7)."""

    wallet_id: Annotated[bytes, Bstr()]
    amount: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    ref: Annotated[bytes | None, _ref()] = None


@event("wallet.transfer.v1")
class Transfer(WalletEvent):
    """§5.5. A debit of one wallet and a credit of the other, applied in the fold of each."""

    wallet_id: Annotated[bytes, Bstr()]
    to_wallet_id: Annotated[bytes, Bstr()]
    amount: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    transfer_id: Annotated[bytes, Bstr()]
    metadata: Annotated[bytes | None, optional_map()] = None


@event("wallet.adjust.v1")
class Adjust(WalletEvent):
    """§5.6. A positive or negative correction."""

    wallet_id: Annotated[bytes, Bstr()]
    delta: Annotated[int, Int()]
    ts: Annotated[int, Uint()]
    reason: Annotated[str, _text()]
    ref: Annotated[bytes | None, _ref()] = None


@event("wallet.limit.v1")
class Limit(WalletEvent):
    """§5.7. Without `daily_limit` the limit is removed."""

    wallet_id: Annotated[bytes, Bstr()]
    daily_limit: Annotated[int | None, Uint(optional=True)]
    ts: Annotated[int, Uint()]


@event("wallet.freeze.v1")
class Freeze(WalletEvent):
    """§5.8."""

    wallet_id: Annotated[bytes, Bstr()]
    ts: Annotated[int, Uint()]
    reason: Annotated[str | None, _text(optional=True)] = None


@event("wallet.unfreeze.v1")
class Unfreeze(WalletEvent):
    """§5.9."""

    wallet_id: Annotated[bytes, Bstr()]
    ts: Annotated[int, Uint()]
    reason: Annotated[str | None, _text(optional=True)] = None


WALLET_EVENTS: tuple[type[Event], ...] = (
    Open,
    Close,
    Deposit,
    Withdraw,
    Transfer,
    Adjust,
    Limit,
    Freeze,
    Unfreeze,
)
