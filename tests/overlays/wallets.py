"""Wallet histories, and the folding algorithm of wallet-spec §6 as it is written there."""

from dataclasses import dataclass, replace
from random import Random

from tests.overlays.logs import LogLine, log, msg_id
from veen.overlays import Event, Fold, FoldEntry, FoldStep
from veen.overlays.wallet import Wallets
from veen.overlays.wallet_ledger import (
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Wallet,
    WalletCode,
    Withdraw,
    wallet_id,
)

REALM, OWNER, OTHER = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
MINE = wallet_id(REALM, OWNER, "JPY")
THEIRS = wallet_id(REALM, OTHER, "JPY")
ONLY_MINE = Wallets(only=MINE)
MONEY = (WalletCode.INSUFFICIENT_FUNDS, WalletCode.DAILY_LIMIT_EXCEEDED)
DAY = 86_400
TIMES = (0, 1, DAY - 1, DAY, DAY + 1, 2 * DAY, 40 * DAY + 7)
AMOUNTS = (0, 1, 2, 3, 5, 8, 40, 100)


@dataclass
class Pseudocode:
    """§6, line by line."""

    wallet_id: bytes
    exists: bool = False
    closed: bool = False
    balance: int = 0
    frozen: bool = False
    daily_limit: int | None = None
    pending_daily_spent: int = 0
    last_limit_reset_ts: int = 0

    def fold(self, e: Event) -> None:
        match e:
            case Open():
                if not self.exists:
                    self.exists = True
                    self.closed = False
                    self.balance = 0
                    self.frozen = False
                    self.daily_limit = None
                    self.pending_daily_spent = 0
                    self.last_limit_reset_ts = e.created_at
            case Close():
                if self.exists:
                    self.closed = True
            case Limit():
                if e.daily_limit is None:
                    self.daily_limit = None
                else:
                    self.daily_limit = e.daily_limit
                    if self.last_limit_reset_ts == 0:
                        self.last_limit_reset_ts = e.ts
            case Freeze():
                if self.exists:
                    self.frozen = True
            case Unfreeze():
                if self.exists:
                    self.frozen = False
            case Deposit():
                if self.exists and not self.closed:
                    self.balance += e.amount
            case Withdraw():
                if self.exists and not self.closed and not self.frozen:
                    self._spend(e.amount, e.ts)
            case Transfer():
                if self.exists and not self.closed:
                    if e.wallet_id == self.wallet_id:
                        if not self.frozen:
                            self._spend(e.amount, e.ts)
                    elif e.to_wallet_id == self.wallet_id:
                        self.balance += e.amount
            case Adjust():
                if self.exists and not self.closed:
                    self.balance = self.balance + e.delta

    def _spend(self, amount: int, ts: int) -> None:
        if self.daily_limit is not None:
            if self.needs_reset(self.last_limit_reset_ts, ts):
                self.pending_daily_spent = 0
                self.last_limit_reset_ts = ts
            self.pending_daily_spent += amount
        self.balance -= amount

    @staticmethod
    def needs_reset(last_limit_reset_ts: int, ts_now: int) -> bool:
        return ts_now // DAY != last_limit_reset_ts // DAY

    def overspent(self) -> bool:
        """Whether what validation upstream must have kept out is there."""
        over_limit = self.daily_limit is not None and self.pending_daily_spent > self.daily_limit
        return self.balance < 0 or over_limit

    def state(self) -> Wallet:
        return Wallet(
            self.exists,
            self.closed,
            self.balance,
            self.frozen,
            self.daily_limit,
            self.pending_daily_spent,
            self.last_limit_reset_ts,
        )


def random_event(random: Random) -> Event:
    """Any event of our wallet, mostly money; few times and amounts, so that limits and balances are often met."""
    ts, amount = random.choice(TIMES), random.choice(AMOUNTS)
    transfer = bytes([random.randrange(6)]) * 32
    return random.choices(
        [
            Open(MINE, REALM, OWNER, "JPY", ts),
            Close(MINE, ts),
            Deposit(MINE, amount, ts, random.choice([None, b"a"])),
            Withdraw(MINE, amount, ts, random.choice([None, None, None, b"a", b"b"])),
            Transfer(MINE, THEIRS, amount, ts, transfer),
            Transfer(THEIRS, MINE, amount, ts, transfer),
            Transfer(MINE, MINE, amount, ts, transfer),
            Adjust(MINE, amount - 5, ts, "because"),
            Limit(MINE, random.choice([None, *AMOUNTS]), ts),
            Freeze(MINE, ts),
            Unfreeze(MINE, ts, "enough"),
        ],
        weights=[2, 0.4, 6, 5, 4, 3, 0.3, 2, 3, 1, 2],
    )[0]


def random_history(random: Random, most: int = 14) -> list[FoldEntry]:
    """A history that anything may have written: refused events, copies and bodies that do not decode among it."""
    said = []
    for _ in range(random.randrange(most + 1)):
        parent = msg_id(random.randrange(1, 10)) if random.random() < 0.15 else None
        said.append(LogLine(random_event(random), parent, spoil=b"\x00" if random.random() < 0.05 else b""))
    opened = LogLine(Open(MINE, REALM, OWNER, "JPY", random.choice(TIMES)))
    return log(*([opened] if random.random() < 0.8 else []), *said)


def obedient_history(random: Random, most: int = 14) -> list[FoldEntry]:
    """A history of producers that ask before they send: no debit beyond balance or limit, no transfer or ref twice."""
    asked, sent = Fold(ONLY_MINE), []
    for number in range(random.randrange(most + 1)):
        event = random_event(random)
        if isinstance(event, Transfer):
            event = replace(event, transfer_id=msg_id(1000 + number))
        elif isinstance(event, Withdraw):
            event = replace(event, ref=b"%d" % number)
        (draft,) = log(event, start=1 if asked.upto is None else asked.upto.stream_seq + 1)
        if all(ONLY_MINE.refusal(asked.state(step.part), step) not in MONEY for step in steps_of(draft)):
            asked.add(draft)
            sent.append(draft)
    return sent


def steps_of(entry: FoldEntry) -> tuple[FoldStep, ...]:
    """The steps an entry takes in our wallet."""
    found = ONLY_MINE.read(entry)
    return found if isinstance(found, tuple) else ()
