"""Paid operations: the balances that result from their payments, in stream order. 001, spec-3 §2.

By default balances may be negative and each account is its own part. If a domain forbids negative balances, a payment
must apply to payer and payee or to neither, so all accounts of a currency are one part.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from veen.core import Malformed, cbor
from veen.core.hashing import HASH_BYTES
from veen.overlays.event import Event, FoldEntry, ascending, number_of, number_value
from veen.overlays.operations.operation_events import Paid
from veen.overlays.operations.operation_index import LoggedOperation, of_kind
from veen.overlays.operations.rules import ExternalFacts, LogPlace, Rule, RuleFinding, open_finding, rule_finding
from veen.overlays.overlay import FoldStep, Overlay

Balances: TypeAlias = tuple[tuple[bytes, int], ...]  # by account, ascending
Flow: TypeAlias = tuple[int, int]  # total change of a run of payments, and the lowest intermediate change
Flows: TypeAlias = tuple[tuple[bytes, Flow], ...]

LATE = "it was ordered after it expired"
OVERDRAWN = "the payer's balance would be negative"


class Payments(Overlay[Balances, Flows]):
    """The balances of accounts, by currency.

    `default_unit` is the currency of a payment that names none. With `debtors`, only these accounts may have a negative
    balance; with None, every account may.
    """

    CLASS = "paid.operation"
    EVENTS = (Paid,)
    INITIAL: Balances = ()
    EMPTY: Flows = ()

    def __init__(self, default_unit: str = "", debtors: Iterable[bytes] | None = None) -> None:
        self._default_unit = default_unit
        self._debtors = None if debtors is None else frozenset(debtors)

    def settings(self) -> bytes:
        if not self._default_unit and self._debtors is None:
            return b""
        return cbor.encode([self._default_unit, None if self._debtors is None else sorted(self._debtors)])

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Paid)
        unit = self.unit(event).encode()
        return (unit,) if self._debtors is not None else (event.payer_account + unit, event.payee_account + unit)

    def refusal(self, state: Balances, step: FoldStep) -> str | None:
        if late(step.entry):
            return LATE
        held, debtors = dict(state), self._debtors
        for account, change in self._changes(step):
            if debtors is not None and account not in debtors and held.get(account, 0) + change < 0:
                return OVERDRAWN
        return None

    def apply(self, state: Balances, step: FoldStep) -> Balances:
        held = dict(state)
        for account, change in self._changes(step):
            held[account] = held.get(account, 0) + change
        return tuple(sorted(held.items()))

    def lift(self, step: FoldStep) -> Flows:
        if late(step.entry):
            return ()
        return tuple(sorted((account, (change, min(change, 0))) for account, change in self._changes(step)))

    def merge(self, a: Flows, b: Flows) -> Flows:
        flows = dict(a)
        for account, (change, low) in b:
            before, low_before = flows.get(account, (0, 0))
            flows[account] = (before + change, min(low_before, before + low))
        return tuple(sorted(flows.items()))

    def run(self, state: Balances, summary: Flows) -> Balances | None:
        held, debtors = dict(state), self._debtors
        for account, (change, low) in summary:
            before = held.get(account, 0)
            if debtors is not None and account not in debtors and before + low < 0:
                return None
            held[account] = before + change
        return tuple(sorted(held.items()))

    def encode_state(self, state: Balances) -> bytes:
        return cbor.encode([(account, number_value(balance)) for account, balance in state])

    def decode_state(self, part: bytes, data: bytes) -> Balances:
        return tuple((account, number_of(found)) for account, (found,) in _rows(data, 1))

    def encode_summary(self, summary: Flows) -> bytes:
        return cbor.encode([(account, *map(number_value, flow)) for account, flow in summary])

    def decode_summary(self, part: bytes, data: bytes) -> Flows:
        return tuple((account, (number_of(change), number_of(low))) for account, (change, low) in _rows(data, 2))

    def plain(self, part: bytes, state: Balances) -> Mapping[str, cbor.Value]:
        named = part if self._debtors is not None else part[HASH_BYTES:]
        balances = {account.hex(): number_value(balance) for account, balance in state}
        return {"currency_code": named.decode(), "balances": balances}

    def unit(self, event: Paid) -> str:
        """The currency of a payment."""
        return self._default_unit if event.currency_code is None else event.currency_code

    def _changes(self, step: FoldStep) -> tuple[tuple[bytes, int], ...]:
        """The change of each account of the step's part."""
        event = step.event
        assert isinstance(event, Paid)
        changes = {event.payer_account: -event.amount}
        changes[event.payee_account] = changes.get(event.payee_account, 0) + event.amount
        if self._debtors is None:
            account = step.part[:HASH_BYTES]
            return ((account, changes[account]),)
        return tuple(changes.items())


PAYMENTS = Payments()
States: TypeAlias = Mapping[bytes, Balances]


def late(entry: FoldEntry) -> bool:
    """Whether an operation was ordered after its header's `expires_at`, which is its creation plus `ttl_seconds`."""
    expires_at = entry.header.expires_at if entry.header else None
    return expires_at is not None and entry.hub_ts > expires_at


def balance(states: States, account: bytes, unit: str = "") -> int:
    """The balance of an account, with or without `debtors`."""
    named = unit.encode()
    return dict(states.get(account + named) or states.get(named) or ()).get(account, 0)


def check(known: Iterable[LoggedOperation], facts: ExternalFacts) -> Iterator[RuleFinding]:
    """Check P1 and P2 for every paid operation."""
    for one, _ in of_kind(known, Paid):
        yield rule_finding(Rule.PAID_P1, one, _processed(one, facts))
        if facts.effects is None:
            yield open_finding(Rule.PAID_P2, one, "the side effects of services are not known")
        else:
            yield rule_finding(Rule.PAID_P2, one, _repeatable(one, facts))


def _processed(one: LoggedOperation, facts: ExternalFacts) -> str | None:
    """Count how often services report the place as processed. The fold itself applies each place once."""
    times = (facts.processed or ()).count(LogPlace(one.entry.label, one.entry.stream_seq))
    return None if times <= 1 else f"a service processed it {times} times"


def _repeatable(one: LoggedOperation, facts: ExternalFacts) -> str | None:
    for effect in facts.effects or ():
        if effect.operation_id == one.operation_id and not effect.idempotent and effect.key != one.operation_id:
            return "a side effect is neither idempotent nor keyed by its operation id"
    return None


def _rows(data: bytes, width: int) -> Iterator[tuple[bytes, tuple[cbor.Value, ...]]]:
    found = cbor.decode(data, "balances")
    accounts = []
    for row in found if isinstance(found, tuple) else (None,):
        if not isinstance(row, tuple) or len(row) != 1 + width or not isinstance(row[0], bytes):
            raise Malformed("balances", "not a list of accounts with numbers")
        accounts.append(row[0])
        yield row[0], row[1:]
    if not ascending(accounts):
        raise Malformed("balances", "accounts are not in ascending order")
