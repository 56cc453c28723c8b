"""Derived ids and the nine events of WAL. wallet-spec §2.3, §3.1, §5, §9."""

from dataclasses import dataclass
from typing import ClassVar

from veen.core import naming
from veen.core.cbor import Bstr, Bytes, Text, Uint
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event
from veen.overlays.fields import Int, body, optional_map


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


def _text(name: str, *, optional: bool = False) -> Text:
    return Text(name, MAX_BODY_BYTES, optional=optional)


def _ref() -> Bytes:
    return Bytes("ref", MAX_BODY_BYTES, optional=True)


class WalletEvent(Event):
    """An event of one wallet."""

    __slots__ = ()
    wallet_id: bytes


@dataclass(frozen=True, slots=True)
class Open(WalletEvent):
    """§5.1."""

    wallet_id: bytes
    realm_id: bytes
    ctx_id: bytes
    currency: str
    created_at: int

    SCHEMA: ClassVar = naming.schema_id("wallet.open.v1")
    LAYOUT: ClassVar = body(
        "wallet.open.v1",
        Bstr("wallet_id"),
        Bstr("realm_id"),
        Bstr("ctx_id"),
        _text("currency"),
        Uint("created_at"),
    )

    def flaw(self) -> str | None:
        if not self.currency.isascii():
            return "the currency is not ASCII"
        if self.wallet_id != wallet_id(self.realm_id, self.ctx_id, self.currency):
            return "wallet_id does not match its realm, owner and currency"
        return None


@dataclass(frozen=True, slots=True)
class Close(WalletEvent):
    """§5.2."""

    wallet_id: bytes
    ts: int

    SCHEMA: ClassVar = naming.schema_id("wallet.close.v1")
    LAYOUT: ClassVar = body("wallet.close.v1", Bstr("wallet_id"), Uint("ts"))


@dataclass(frozen=True, slots=True)
class Deposit(WalletEvent):
    """§5.3. `ref` is an external reference and is not interpreted."""

    wallet_id: bytes
    amount: int
    ts: int
    ref: bytes | None = None

    SCHEMA: ClassVar = naming.schema_id("wallet.deposit.v1")
    LAYOUT: ClassVar = body("wallet.deposit.v1", Bstr("wallet_id"), Uint("amount"), Uint("ts"), _ref())


@dataclass(frozen=True, slots=True)
class Withdraw(WalletEvent):
    """§5.4. A second event with the same `ref` is a copy of the first (§7)."""

    wallet_id: bytes
    amount: int
    ts: int
    ref: bytes | None = None

    SCHEMA: ClassVar = naming.schema_id("wallet.withdraw.v1")
    LAYOUT: ClassVar = body("wallet.withdraw.v1", Bstr("wallet_id"), Uint("amount"), Uint("ts"), _ref())


@dataclass(frozen=True, slots=True)
class Transfer(WalletEvent):
    """§5.5. A debit of one wallet and a credit of the other, applied in the fold of each."""

    wallet_id: bytes
    to_wallet_id: bytes
    amount: int
    ts: int
    transfer_id: bytes
    metadata: bytes | None = None

    SCHEMA: ClassVar = naming.schema_id("wallet.transfer.v1")
    LAYOUT: ClassVar = body(
        "wallet.transfer.v1",
        Bstr("wallet_id"),
        Bstr("to_wallet_id"),
        Uint("amount"),
        Uint("ts"),
        Bstr("transfer_id"),
        optional_map("metadata"),
    )


@dataclass(frozen=True, slots=True)
class Adjust(WalletEvent):
    """§5.6. A positive or negative correction."""

    wallet_id: bytes
    delta: int
    ts: int
    reason: str
    ref: bytes | None = None

    SCHEMA: ClassVar = naming.schema_id("wallet.adjust.v1")
    LAYOUT: ClassVar = body("wallet.adjust.v1", Bstr("wallet_id"), Int("delta"), Uint("ts"), _text("reason"), _ref())


@dataclass(frozen=True, slots=True)
class Limit(WalletEvent):
    """§5.7. Without `daily_limit` the limit is removed."""

    wallet_id: bytes
    daily_limit: int | None
    ts: int

    SCHEMA: ClassVar = naming.schema_id("wallet.limit.v1")
    LAYOUT: ClassVar = body("wallet.limit.v1", Bstr("wallet_id"), Uint("daily_limit", optional=True), Uint("ts"))


@dataclass(frozen=True, slots=True)
class Freeze(WalletEvent):
    """§5.8."""

    wallet_id: bytes
    ts: int
    reason: str | None = None

    SCHEMA: ClassVar = naming.schema_id("wallet.freeze.v1")
    LAYOUT: ClassVar = body("wallet.freeze.v1", Bstr("wallet_id"), Uint("ts"), _text("reason", optional=True))


@dataclass(frozen=True, slots=True)
class Unfreeze(WalletEvent):
    """§5.9."""

    wallet_id: bytes
    ts: int
    reason: str | None = None

    SCHEMA: ClassVar = naming.schema_id("wallet.unfreeze.v1")
    LAYOUT: ClassVar = body("wallet.unfreeze.v1", Bstr("wallet_id"), Uint("ts"), _text("reason", optional=True))


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
