"""The wallet overlay: folds wallet events, and encodes the summaries of runs of events."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from veen.core import Malformed, cbor
from veen.core.cbor.value import read_value
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event, EventFault, FaultKind
from veen.overlays.fields import number_of, number_value
from veen.overlays.overlay import FoldStep, Overlay
from veen.overlays.rpc import Reply, RpcError
from veen.overlays.wallet import ledger, transition
from veen.overlays.wallet.ledger import Wallet, WalletCode, effect
from veen.overlays.wallet.transition import IDENTITY, STAY, STAYS, Branch, Control, Function, Path, Spend
from veen.overlays.wallet.wallet_authority import WalletAuthority
from veen.overlays.wallet.wallet_events import (
    WALLET_EVENTS,
    Open,
    Transfer,
    WalletEvent,
    Withdraw,
)

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
        return self._static_refusal(step) or ledger.refusal(state, effect(step.part, step.event))

    def apply(self, state: Wallet, step: FoldStep) -> Wallet:
        return ledger.apply(state, effect(step.part, step.event))

    def lift(self, step: FoldStep) -> Function:
        return IDENTITY if self._static_refusal(step) else transition.lift(effect(step.part, step.event))

    def merge(self, a: Function, b: Function) -> Function:
        return transition.compose(a, b)

    def run(self, state: Wallet, summary: Function) -> Wallet | None:
        return transition.run(state, summary)

    def encode_state(self, state: Wallet) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> Wallet:
        return Wallet.decode(data)

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
        return {
            "wallet_id": part,
            "exists": state.exists,
            "closed": state.closed,
            "balance": number_value(state.balance),
            "frozen": state.frozen,
            "daily_limit": state.daily_limit,
            "pending_daily_spent": number_value(state.pending_daily_spent),
            "last_limit_reset_ts": state.last_limit_reset_ts,
        }

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


def failure(refused: EventFault) -> Reply:
    """A refusal as the RPC reply with its error code. §13."""
    return Reply(False, error=RpcError(refused.reason))


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
    """Decode a path that is not the identity, which has its own encoding."""
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
