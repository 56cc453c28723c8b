"""WAL: account-based wallets as folds of their streams, with limits, freezes and bridging. 001, wallet-spec.

All events and WALBR0 are implemented: conformance level WAL v0.0.1 Bridge (§14). `wallet_ledger` has the events, the
state and the rules of one wallet. A summary is a partial function on wallets; the functions form a monoid under
composition.

A wallet is in one of five controls: absent, open, frozen, closed, or closed and frozen. The control alone determines
which events apply, so for each initial control a `Path` gives the final control and the change of the balance: `delta`
is the total and `low` the smallest prefix sum. The run overdraws a wallet exactly if `balance + low` is negative.

The daily limit depends on more: whether there is a limit (`limited`), and whether the spent amount was last reset
never, on the day of the first counted debit, or on another day. `Spend` has one branch if the reset was on that day and
one if it was not. A branch holds the conditions under which none of its debits exceeds the limit.

A branch is None if some debit would always be refused. The function is undefined there, and the fold applies the events
one by one instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from veen.core import Malformed, cbor
from veen.core.cbor.value import read_value
from veen.overlays import wallet_ledger
from veen.overlays.event import Event, EventFault, FaultKind, FoldEntry, number_of, number_value, plain_wire
from veen.overlays.overlay import FoldStep, Overlay
from veen.overlays.wallet_ledger import (
    WALLET_EVENTS,
    Adjust,
    Close,
    Credit,
    Debit,
    Effect,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Wallet,
    WalletAuthority,
    WalletCode,
    WalletEvent,
    Withdraw,
    day,
    effect,
)


class Control(IntEnum):
    """The part of a wallet's state that determines which events apply."""

    ABSENT = 0
    OPEN = 1
    FROZEN = 2
    CLOSED = 3
    CLOSED_FROZEN = 4

    @classmethod
    def of(cls, state: Wallet) -> "Control":
        if not state.exists:
            return cls.ABSENT
        return cls(1 + 2 * state.closed + state.frozen)

    @property
    def takes_credit(self) -> bool:
        return self in (Control.OPEN, Control.FROZEN)

    @property
    def closed(self) -> "Control":
        return self if self is Control.ABSENT else Control(3 + (self - 1) % 2)

    def frozen(self, frozen: bool) -> "Control":
        return self if self is Control.ABSENT else Control(self - (self - 1) % 2 + frozen)


class Branch(NamedTuple):
    """The final values of the limit fields, and the conditions on their initial values.

    pending_daily_spent      becomes `add`, plus the initial value if `carried`
    last_limit_reset_ts      becomes `reset_ts`, or is unchanged if that is None
    daily_limit              must be at least `least_limit`
    daily_limit − pending    must be at least `least_room`
    pending_daily_spent      must be at most `most_spent`
    """

    reset_ts: int | None = None
    carried: bool = True
    add: int = 0
    least_limit: int = 0
    least_room: int | None = None
    most_spent: int | None = None


class Spend(NamedTuple):
    """Two branches: `same` applies if the last reset was on `first_day`, else `other`.

    If `first_day` is None, `same` always applies.
    """

    first_day: int | None
    same: Branch | None
    other: Branch | None = None


UNTOUCHED = Branch()
STAY = Spend(None, UNTOUCHED)
NEVER = Spend(None, None)
Spends: TypeAlias = tuple[Spend, Spend, Spend, Spend]  # by `spend_index`
STAYS: Spends = (STAY, STAY, STAY, STAY)


def spend_index(limited: bool, unset: bool) -> int:
    """The index into `Path.spends` for a wallet with or without a limit and with or without a reset."""
    return 2 * limited + unset


class Path(NamedTuple):
    """The effect of a run on a wallet in one initial control."""

    ends: Control
    delta: int = 0
    low: int = 0
    keeps_limit: bool = True
    limit: int | None = None  # the final limit if `keeps_limit` is false
    spends: Spends = STAYS


Function: TypeAlias = tuple[Path, Path, Path, Path, Path]  # by control
IDENTITY: Function = (
    Path(Control.ABSENT),
    Path(Control.OPEN),
    Path(Control.FROZEN),
    Path(Control.CLOSED),
    Path(Control.CLOSED_FROZEN),
)


def lift(done: Effect) -> Function:
    """One effect as a function."""
    absent, _, frozen, closed, both = IDENTITY
    match done:  # fast path: these change only the controls that accept them
        case Credit():
            return absent, _path(Control.OPEN, done), _path(Control.FROZEN, done), closed, both
        case Debit():
            return absent, _path(Control.OPEN, done), frozen, closed, both
    a, b, c, d, e = (_path(control, done) for control in Control)
    return a, b, c, d, e


def _path(control: Control, done: Effect) -> Path:
    stays = IDENTITY[control]
    match done:
        case Limit():
            return Path(control, keeps_limit=False, limit=done.daily_limit, spends=_limit_spends(done))
        case Open() if control is Control.ABSENT:
            opened = Spend(None, Branch(reset_ts=done.created_at, carried=False))
            return Path(Control.OPEN, keeps_limit=False, spends=(opened,) * 4)
        case Close():
            return IDENTITY[control.closed] if control.closed is control else Path(control.closed)
        case Freeze() | Unfreeze():
            ends = control.frozen(isinstance(done, Freeze))
            return stays if ends is control else Path(ends)
        case Credit() if control.takes_credit:
            return Path(control, done.amount)
        case Adjust() if control.takes_credit:
            return Path(control, done.delta, min(0, done.delta))
        case Debit() if control is Control.OPEN:
            return Path(control, -done.amount, -done.amount, spends=_debit_spends(done))
    return stays


def _limit_spends(done: Limit) -> Spends:
    if done.daily_limit is None:
        return STAYS
    first = Spend(None, Branch(reset_ts=done.ts))
    return STAY, first, STAY, first


def _debit_spends(done: Debit) -> Spends:
    same = Branch(add=done.amount, least_room=done.amount)
    other = Branch(done.ts, carried=False, add=done.amount, least_limit=done.amount)
    counted = Spend(day(done.ts), same, other)
    return STAY, STAY, counted, counted


def compose(first: Function, then: Function) -> Function:
    """The function of `first` followed by `then`."""
    if first is IDENTITY:
        return then
    a, b, c, d, e = first
    return (
        _then(a, then[a.ends]),
        _then(b, then[b.ends]),
        _then(c, then[c.ends]),
        _then(d, then[d.ends]),
        _then(e, then[e.ends]),
    )


def _then(path: Path, later: Path) -> Path:
    if later is IDENTITY[later.ends]:
        return path
    if path is IDENTITY[path.ends]:
        return later
    low = min(path.low, path.delta + later.low)
    keeps = path.keeps_limit and later.keeps_limit
    limit = path.limit if later.keeps_limit else later.limit
    return Path(later.ends, path.delta + later.delta, low, keeps, limit, _spends(path, later.spends))


def _spends(path: Path, later: Spends) -> Spends:
    if later is STAYS:
        return path.spends
    if path.spends is STAYS and path.keeps_limit:
        return later
    w, y = _spend(path, 0, later), _spend(path, 2, later)
    spends = path.spends
    if spends[0] is spends[1] and spends[2] is spends[3] and later[0] is later[1] and later[2] is later[3]:
        return w, w, y, y  # no limit was set in between, so an earlier reset makes no difference
    return w, _spend(path, 1, later), y, _spend(path, 3, later)


def _spend(path: Path, index: int, later: Spends) -> Spend:
    """One spend of a path, followed by the spend of the next path that then applies."""
    spend = path.spends[index]
    limited = bool(index & 2) if path.keeps_limit else path.limit is not None
    unset = bool(index & 1)
    if spend.first_day is not None:
        same = _follow(path, spend.same, limited, unset, spend.first_day, later)
        return Spend(spend.first_day, same, _follow(path, spend.other, limited, unset, None, later))
    if spend.same is None:
        return NEVER
    if spend.same.reset_ts is not None:
        return Spend(None, _follow(path, spend.same, limited, unset, None, later))
    then = later[spend_index(limited, unset)]
    if then is STAY:
        return spend
    other = None if then.first_day is None else _join(path, spend.same, then.other)
    return Spend(then.first_day, _join(path, spend.same, then.same), other)


def _follow(
    path: Path, branch: Branch | None, limited: bool, unset: bool, known_day: int | None, later: Spends
) -> Branch | None:
    """A branch whose last reset is on a known day, followed by the next path's branch for that day."""
    if branch is None:
        return None
    if branch.reset_ts is not None:
        unset, known_day = branch.reset_ts == 0, day(branch.reset_ts)
    then = later[spend_index(limited, unset)]
    return _join(path, branch, then.same if then.first_day in (None, known_day) else then.other)


def _join(path: Path, a: Branch, b: Branch | None) -> Branch | None:
    """Branch `a` followed by `b`, with the conditions of `b` on the input of `a`; None if they cannot hold."""
    if b is None:
        return None
    least_limit, least_room, most_spent = a.least_limit, a.least_room, a.most_spent
    if b.most_spent is not None:
        if not a.carried and a.add > b.most_spent:
            return None
        most_spent = _least(most_spent, b.most_spent - a.add) if a.carried else most_spent
    if path.keeps_limit:
        least_limit = max(least_limit, b.least_limit)
        if b.least_room is not None and a.carried:
            least_room = _most(least_room, b.least_room + a.add)
        elif b.least_room is not None:
            least_limit = max(least_limit, b.least_room + a.add)
    elif path.limit is not None:
        room = path.limit - a.add - (b.least_room or 0)
        if path.limit < b.least_limit or (b.least_room is not None and room < 0):
            return None
        most_spent = _least(most_spent, room) if b.least_room is not None and a.carried else most_spent
    if most_spent is not None and most_spent < 0:
        return None
    reset_ts = a.reset_ts if b.reset_ts is None else b.reset_ts
    add = b.add + a.add if b.carried else b.add
    return Branch(reset_ts, a.carried and b.carried, add, least_limit, least_room, most_spent)


def _least(a: int | None, b: int) -> int:
    return b if a is None else min(a, b)


def _most(a: int | None, b: int) -> int:
    return b if a is None else max(a, b)


def run(state: Wallet, function: Function) -> Wallet | None:
    """The wallet after the run, or None if the run would overdraw it or exceed its limit at some point."""
    path = function[Control.of(state)]
    limit, spent, reset_ts = state.daily_limit, state.pending_daily_spent, state.last_limit_reset_ts
    spend = path.spends[spend_index(limit is not None, reset_ts == 0)]
    branch = spend.same if spend.first_day in (None, day(reset_ts)) else spend.other
    if branch is None or state.balance + path.low < 0 or not _within(branch, limit, spent):
        return None
    return Wallet(
        exists=path.ends is not Control.ABSENT,
        closed=path.ends in (Control.CLOSED, Control.CLOSED_FROZEN),
        balance=state.balance + path.delta,
        frozen=path.ends in (Control.FROZEN, Control.CLOSED_FROZEN),
        daily_limit=limit if path.keeps_limit else path.limit,
        pending_daily_spent=branch.add + (spent if branch.carried else 0),
        last_limit_reset_ts=reset_ts if branch.reset_ts is None else branch.reset_ts,
    )


def _within(branch: Branch, limit: int | None, spent: int) -> bool:
    if branch.most_spent is not None and spent > branch.most_spent:
        return False
    if limit is None:
        return True
    return limit >= branch.least_limit and (branch.least_room is None or limit - spent >= branch.least_room)


_KEEPS = False  # encodes `Path.keeps_limit` in the place of the limit
Value: TypeAlias = cbor.Value


class Wallets(Overlay[Wallet, Function]):
    """One part per wallet. A transfer is a step of both wallets, and each applies or refuses it independently.

    `only` folds one wallet, for its own stream, and ignores the other side of transfers. `currencies` are the allowed
    codes; None allows all. `authority` has the capabilities that events require; None accepts every event that the hub
    admitted.
    """

    CLASS = "wallet.ledger"
    EVENTS = WALLET_EVENTS
    INITIAL = Wallet()
    EMPTY = IDENTITY

    def __init__(
        self,
        only: bytes | None = None,
        currencies: Iterable[str] | None = None,
        authority: WalletAuthority | None = None,
    ) -> None:
        self._only = only
        self._currencies = None if currencies is None else frozenset(currencies)
        self._authority = authority

    def settings(self) -> bytes:
        given = [self._only, None if self._currencies is None else sorted(self._currencies)]
        if self._authority is not None:
            return cbor.encode([*given, self._authority.value()])
        return b"" if given == [None, None] else cbor.encode(given)

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, WalletEvent)
        named = (event.wallet_id, event.to_wallet_id) if isinstance(event, Transfer) else (event.wallet_id,)
        return named if self._only is None else tuple(one for one in named if one == self._only)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """The origin, and for a transfer its id and direction, for a withdrawal its `ref`.

        An unauthorized event has no keys: otherwise an attacker could use up the id of a future transfer.
        """
        if self._static_refusal(step) is WalletCode.UNAUTHORIZED_OPERATION:
            return ()
        event, origin = step.event, b"origin" + step.entry.origin
        if isinstance(event, Transfer):
            direction = b"debit" if event.wallet_id == step.part else b"credit"
            return origin, direction + event.transfer_id
        if isinstance(event, Withdraw) and event.ref is not None:
            return origin, b"ref" + event.ref
        return (origin,)

    def refusal(self, state: Wallet, step: FoldStep) -> str | None:
        return self._static_refusal(step) or wallet_ledger.refusal(state, effect(step.part, step.event))

    def apply(self, state: Wallet, step: FoldStep) -> Wallet:
        return wallet_ledger.apply(state, effect(step.part, step.event))

    def lift(self, step: FoldStep) -> Function:
        return IDENTITY if self._static_refusal(step) else lift(effect(step.part, step.event))

    def merge(self, a: Function, b: Function) -> Function:
        return compose(a, b)

    def run(self, state: Wallet, summary: Function) -> Wallet | None:
        return run(state, summary)

    def encode_summary(self, summary: Function) -> bytes:
        return _HEAD + b"".join(
            same if path is stays else cbor.encode(_path_value(path))
            for path, stays, same in zip(summary, IDENTITY, _STAYING, strict=True)
        )

    def decode_summary(self, part: bytes, data: bytes) -> Function:
        if not data.startswith(_HEAD):
            raise Malformed("wallet function", "not a path for each control")
        paths, pos = [], len(_HEAD)
        for stays, same in zip(IDENTITY, _STAYING, strict=True):
            if data.startswith(same, pos):
                paths.append(stays)
                pos += len(same)
            else:
                found, pos = read_value(data, pos)
                paths.append(_path_of(stays, found))
        if pos != len(data):
            raise Malformed("wallet function", f"{len(data) - pos} bytes after the end")
        a, b, c, d, e = paths
        return a, b, c, d, e

    def plain(self, part: bytes, state: Wallet) -> Mapping[str, cbor.Value]:
        return {"wallet_id": part, **plain_wire(state, absent=True)}

    def _static_refusal(self, step: FoldStep) -> WalletCode | None:
        """Why an event is refused regardless of the wallet's state, or None."""
        event = step.event
        if self._authority is not None and not self._authority.allows(step.entry, event):
            return WalletCode.UNAUTHORIZED_OPERATION
        allowed = self._currencies is None or not isinstance(event, Open) or event.currency in self._currencies
        return None if allowed else WalletCode.INVALID_CURRENCY


WALLETS = Wallets()
POLICY = (WalletCode.INSUFFICIENT_FUNDS, WalletCode.DAILY_LIMIT_EXCEEDED)


def violations(faults: Iterable[EventFault]) -> Iterator[EventFault]:
    """The debits that exceeded balance or limit. Producers must not send them. §5.4, §5.6."""
    return (fault for fault in faults if fault.kind == FaultKind.REFUSED and fault.reason in POLICY)


def _path_value(path: Path) -> Value:
    limit = _KEEPS if path.keeps_limit else path.limit
    spends = [_spend_value(spend) for spend in path.spends]
    return (int(path.ends), number_value(path.delta), number_value(path.low), limit, spends)


def _spend_value(spend: Spend) -> Value:
    return None if spend == STAY else (spend.first_day, _branch_value(spend.same), _branch_value(spend.other))


def _branch_value(branch: Branch | None) -> Value:
    if branch is None:
        return None
    bounds = (branch.least_limit, branch.least_room, branch.most_spent)
    shown = [None if bound is None else number_value(bound) for bound in bounds]
    return (branch.reset_ts, branch.carried, number_value(branch.add), *shown)


# Most paths of a function are the identity; these are their encodings.
_HEAD = cbor.encode([None] * len(IDENTITY))[:1]
_STAYING = tuple(cbor.encode(_path_value(path)) for path in IDENTITY)


def _path_of(stays: Path, found: Value) -> Path:
    """Decode a path. The identity is encoded otherwise and does not come here."""
    match found:
        case (int() as ends, delta, low, limit, (s0, s1, s2, s3)) if 0 <= ends < len(Control):
            kept = limit is _KEEPS
            w, x, y, z = _spend_of(s0), _spend_of(s1), _spend_of(s2), _spend_of(s3)
            spends = (
                w,
                w if x == w else x,
                y,
                y if z == y else z,
            )  # equal spends must be one object, because compose() compares with `is`
            spends = STAYS if spends == STAYS else spends
            path = Path(Control(ends), number_of(delta), number_of(low), kept, None if kept else _number(limit), spends)
            if path != stays:
                return path
    raise Malformed("wallet function", "not a path")


def _spend_of(found: Value) -> Spend:
    match found:
        case None:
            return STAY
        case (first_day, same, other):
            spend = Spend(_number(first_day), _branch_of(same), _branch_of(other))
            if spend != STAY:
                return spend
    raise Malformed("wallet function", "not a spend")


def _branch_of(found: Value) -> Branch | None:
    match found:
        case None:
            return None
        case (reset_ts, bool() as carried, add, least_limit, least_room, most_spent):
            bounds = (number_of(least_limit), _number(least_room), _number(most_spent))
            return Branch(_number(reset_ts), carried, number_of(add), *bounds)
    raise Malformed("wallet function", "not a branch")


def _number(found: Value) -> int | None:
    return None if found is None else number_of(found)
