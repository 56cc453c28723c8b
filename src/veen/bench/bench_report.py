"""Timing on machines that are shared and noisy."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from statistics import median
from time import perf_counter, thread_time

from veen.core import Msg, SigningKey, msg, signing
from veen.core.hashing import HASH_BYTES

Action = Callable[[], object]

LIMIT_MESSAGES = 256
_SLICES = 9
# Hashed once for each message whatever its size: leaf, one tree node, the peaks of a tree, the receipt.
_FIXED_HASHES = (170, 96, 320, 200)


def per_call(actions: dict[str, Action], rounds: int = 40, calls: int = 100) -> dict[str, float]:
    """Seconds per call: the best of many short rounds, taken in turn so that all actions meet the same weather."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            best[name] = min(best[name], _seconds(action, calls, perf_counter))
    return best


class CryptoLimit:
    """What one submit cannot do without on one core: a verify, a sign and the hashes, and nothing around them.

    A hub whose submits a second times this is 1 does as much as one core could if everything else were free. It takes
    as many messages as a slice has calls: the same signature over and over is one that the processor learns by heart.
    """

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self._signer, self._receipt = SigningKey.generate(), os.urandom(HASH_BYTES)
        self._needs = [_needs(one) for one in encoded]

    def seconds(self) -> float:
        """Now: the middle of several short slices, as load too meets the middle of the weather.

        Of CPU, not of the wall clock: where others take the core away, the limit must not look easier to reach.
        """
        return median(_seconds(self._all, 1, thread_time) for _ in range(_SLICES)) / len(self._needs)

    def _all(self) -> None:
        for signed, hashed in self._needs:
            signing.verify(*signed)
            self._signer.sign(self._receipt)
            for data in hashed:
                sha256(data).digest()


def _needs(encoded: bytes) -> tuple[tuple[bytes, bytes, bytes], tuple[bytes, ...]]:
    """What is verified of a message, and what is hashed."""
    message = Msg.decode(encoded)
    # The ciphertext, what the client signs, and the entry as it stands in the log.
    whole = (message.ciphertext, encoded, encoded)
    signed = (message.client_id, msg.signing_digest(encoded), message.sig)
    return signed, (*whole, *(os.urandom(size) for size in _FIXED_HASHES))


def _seconds(action: Action, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        action()
    return (clock() - start) / calls


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One figure: the median of several, the least and the greatest of them, and its bounds where one was promised."""

    what: str
    value: float
    unit: str
    low: float
    high: float
    least: float | None = None
    most: float | None = None

    @classmethod
    def of(
        cls, what: str, values: Sequence[float], unit: str, *, least: float | None = None, most: float | None = None
    ) -> "BenchRow":
        return cls(what, median(values), unit, min(values), max(values), least, most)

    @property
    def kept(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def promise(self) -> str:
        """The bound and whether it is kept; empty where nothing was promised."""
        bounds = [
            f"at {word} {bound:g}" for word, bound in (("least", self.least), ("most", self.most)) if bound is not None
        ]
        return f"{', '.join(bounds)}: {'kept' if self.kept else 'MISSED'}" if bounds else ""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """One measurement."""

    name: str
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        return all(row.kept for row in self.rows)

    def row(self, what: str) -> BenchRow:
        return next(row for row in self.rows if row.what == what)

    def as_json(self) -> dict[str, object]:
        """For machines: every row with its bounds."""
        rows = [{**asdict(row), "kept": row.kept} for row in self.rows]
        return {"name": self.name, "kept": self.kept, "rows": rows, "notes": list(self.notes)}

    def text(self) -> str:
        """For people: a line a row; the spread where there is one."""
        width = max(len(row.what) for row in self.rows)
        unit = max(len(row.unit) for row in self.rows)
        lines = [self.name, *(f"  {note}" for note in self.notes)]
        for row in self.rows:
            spread = f"{_number(row.low)} – {_number(row.high)}" if row.low != row.high else ""
            line = f"  {row.what:<{width}}  {_number(row.value):>9} {row.unit:<{unit}}  {spread:<19}  {row.promise}"
            lines.append(line.rstrip())
        return "\n".join(lines)


def microseconds(times: Mapping[str, float]) -> tuple[BenchRow, ...]:
    """A row for each time, given in seconds."""
    return tuple(BenchRow.of(what, [seconds * 1e6], "µs") for what, seconds in times.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
