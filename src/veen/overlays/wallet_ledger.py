"""The events of WAL, the state and rules of one wallet, and the authority to send events. wallet-spec §2 to §9, §13.

An event is first reduced to its `Effect` on one wallet: a transfer is a debit of one wallet and a credit of another.
Approvers of a transfer sign `approval_hash`; the signatures are in its metadata under `approvals`. The fold does not
check them: the executor of a transfer must check them before sending, and auditors check them again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, TypeAlias

from veen.core import CapToken, Malformed, SigningKey, cbor, signing
from veen.core.cbor import Bool, Bstr, Bytes, Uint, Wire, text_map
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event, FoldEntry, Int, Number, body_text, event, optional_map


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


@text_map("wallet event")
class WalletEvent(Event):
    """An event of one wallet."""

    wallet_id: Annotated[bytes, Bstr()]


@event("wallet.open.v1")
class Open(WalletEvent):
    """§5.1."""

    realm_id: Annotated[bytes, Bstr()]
    ctx_id: Annotated[bytes, Bstr()]
    currency: Annotated[str, body_text()]
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

    ts: Annotated[int, Uint()]


@event("wallet.deposit.v1")
class Deposit(WalletEvent):
    """§5.3. `ref` is an external reference and is not interpreted."""

    amount: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    ref: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None


@event("wallet.withdraw.v1")
class Withdraw(WalletEvent):
    """§5.4. A second event with the same `ref` is a copy of the first (§7)."""

    amount: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    ref: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None


@event("wallet.transfer.v1")
class Transfer(WalletEvent):
    """§5.5. A debit of one wallet and a credit of the other, applied in the fold of each."""

    to_wallet_id: Annotated[bytes, Bstr()]
    amount: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    transfer_id: Annotated[bytes, Bstr()]
    metadata: Annotated[bytes | None, optional_map()] = None


@event("wallet.adjust.v1")
class Adjust(WalletEvent):
    """§5.6. A positive or negative correction."""

    delta: Annotated[int, Int()]
    ts: Annotated[int, Uint()]
    reason: Annotated[str, body_text()]
    ref: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None


@event("wallet.limit.v1")
class Limit(WalletEvent):
    """§5.7. Without `daily_limit` the limit is removed."""

    daily_limit: Annotated[int | None, Uint(optional=True)]
    ts: Annotated[int, Uint()]


@event("wallet.freeze.v1")
class Freeze(WalletEvent):
    """§5.8."""

    ts: Annotated[int, Uint()]
    reason: Annotated[str | None, body_text(optional=True)] = None


@event("wallet.unfreeze.v1")
class Unfreeze(WalletEvent):
    """§5.9."""

    ts: Annotated[int, Uint()]
    reason: Annotated[str | None, body_text(optional=True)] = None


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
