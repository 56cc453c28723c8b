"""One wallet: its state, its refusals, and the effect of each event. wallet-spec §4 to §6, §13.

An event is first reduced to its `Effect` on one wallet: a transfer is a debit of one wallet and a credit of another.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, TypeAlias

from veen.core.cbor import Bool, Uint, Wire, text_map
from veen.overlays.event import Event
from veen.overlays.fields import Number
from veen.overlays.wallet.wallet_events import Adjust, Close, Deposit, Freeze, Limit, Open, Transfer, Unfreeze, Withdraw

DAY_SEC = 86_400


class WalletCode(StrEnum):
    """Why a wallet refuses an event. §13."""

    NO_WALLET = "WAL.NO_WALLET"
    ALREADY_OPEN = "WAL.ALREADY_OPEN"
    CLOSED = "WAL.CLOSED"
    FROZEN = "WAL.FROZEN"
    DAILY_LIMIT_EXCEEDED = "WAL.DAILY_LIMIT_EXCEEDED"
    INSUFFICIENT_FUNDS = "WAL.INSUFFICIENT_FUNDS"
    INVALID_CURRENCY = "WAL.INVALID_CURRENCY"
    UNAUTHORIZED_OPERATION = "WAL.UNAUTHORIZED_OPERATION"


@text_map("wallet")
class Wallet(Wire):
    """The state of §4, in the order given there."""

    exists: Annotated[bool, Bool()] = False
    closed: Annotated[bool, Bool()] = False
    balance: Annotated[int, Number()] = 0
    frozen: Annotated[bool, Bool()] = False
    daily_limit: Annotated[int | None, Uint(optional=True)] = None
    pending_daily_spent: Annotated[int, Number()] = 0
    last_limit_reset_ts: Annotated[int, Uint()] = 0

    def flaw(self) -> str | None:
        return "an amount is negative" if min(self.balance, self.pending_daily_spent) < 0 else None


@dataclass(frozen=True, slots=True)
class Credit:
    """An increase: a deposit or an incoming transfer."""

    amount: int


@dataclass(frozen=True, slots=True)
class Debit:
    """A decrease that counts against the daily limit: a withdrawal or an outgoing transfer."""

    amount: int
    ts: int


Effect: TypeAlias = Open | Close | Limit | Freeze | Unfreeze | Credit | Debit | Adjust


def effect(wallet_id: bytes, event: Event) -> Effect:
    """The effect of an event on one of the wallets it names."""
    match event:
        case Deposit():
            return Credit(event.amount)
        case Withdraw():
            return Debit(event.amount, event.ts)
        case Transfer():
            return Debit(event.amount, event.ts) if event.wallet_id == wallet_id else Credit(event.amount)
        case Open() | Close() | Limit() | Freeze() | Unfreeze() | Adjust():
            return event
    raise AssertionError(event)


def day(ts: int) -> int:
    """The day of a timestamp. The daily limit resets when the day changes (`needs_reset`, §5.7)."""
    return ts // DAY_SEC


def spent_before(state: Wallet, ts: int) -> int:
    """The amount spent on the day of `ts`; 0 if the last reset was on another day."""
    return state.pending_daily_spent if day(ts) == day(state.last_limit_reset_ts) else 0


def refusal(state: Wallet, done: Effect) -> WalletCode | None:
    """Why a wallet refuses an effect, or None if it applies."""
    if isinstance(done, Limit):
        return None
    if isinstance(done, Open):
        return WalletCode.ALREADY_OPEN if state.exists else None
    if not state.exists:
        return WalletCode.NO_WALLET
    if isinstance(done, Close | Freeze | Unfreeze):
        return None
    if state.closed:
        return WalletCode.CLOSED
    if isinstance(done, Debit):
        if state.frozen:
            return WalletCode.FROZEN
        limit = state.daily_limit
        if limit is not None and spent_before(state, done.ts) + done.amount > limit:
            return WalletCode.DAILY_LIMIT_EXCEEDED
    return WalletCode.INSUFFICIENT_FUNDS if state.balance + _change(done) < 0 else None


def apply(state: Wallet, done: Effect) -> Wallet:
    """The state after an effect that `refusal` allows. §6."""
    match done:
        case Open():
            return Wallet(exists=True, last_limit_reset_ts=done.created_at)
        case Close():
            return replace(state, closed=True)
        case Freeze() | Unfreeze():
            return replace(state, frozen=isinstance(done, Freeze))
        case Limit():
            first = done.daily_limit is not None and state.last_limit_reset_ts == 0
            reset_ts = done.ts if first else state.last_limit_reset_ts
            return replace(state, daily_limit=done.daily_limit, last_limit_reset_ts=reset_ts)
        case Debit() if state.daily_limit is not None:
            same_day = day(done.ts) == day(state.last_limit_reset_ts)
            return replace(
                state,
                balance=state.balance - done.amount,
                pending_daily_spent=spent_before(state, done.ts) + done.amount,
                last_limit_reset_ts=state.last_limit_reset_ts if same_day else done.ts,
            )
    return replace(state, balance=state.balance + _change(done))


def _change(done: Effect) -> int:
    match done:
        case Credit():
            return done.amount
        case Debit():
            return -done.amount
        case Adjust():
            return done.delta
    raise AssertionError(done)
