"""Bench reports, and the one-core limit of the cryptography of a submit."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from statistics import median
from time import thread_time

from veen.core import Msg, SigningKey, msg, signing
from veen.core.hashing import HASH_BYTES

LIMIT_MESSAGES = 256
_SLICES = 9
# Sizes hashed per message besides the message: leaf, one tree node, the peaks of a tree, the receipt.
_FIXED_HASHES = (170, 96, 320, 200)


class CryptoLimit:
    """The minimum cost of one submit on one core: a verify, a sign and the hashes.

    Submits per second times `seconds()` is 1 if a hub does as much as one core could with nothing else to do. It uses
    different messages, because the processor speeds up repeated verification of one signature.
    """

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self._signer, self._receipt = SigningKey.generate(), os.urandom(HASH_BYTES)
        self._needs = [_needs(one) for one in encoded]

    def seconds(self) -> float:
        """The current limit: the median of several short slices, because the load meets average conditions too.

        It is CPU time, not wall time: if other processes take the core, the limit must not look easier to reach.
        """
        return median(self._slice() for _ in range(_SLICES)) / len(self._needs)

    def _slice(self) -> float:
        start = thread_time()
        for signed, hashed in self._needs:
            signing.verify(*signed)
            self._signer.sign(self._receipt)
            for data in hashed:
                sha256(data).digest()
        return thread_time() - start


def _needs(encoded: bytes) -> tuple[tuple[bytes, bytes, bytes], tuple[bytes, ...]]:
    """The signature to verify and the bytes to hash for one message."""
    message = Msg.decode(encoded)
    # The ciphertext, the bytes that the client signs, and the entry in the log.
    whole = (message.ciphertext, encoded, encoded)
    signed = (message.client_id, msg.signing_digest(encoded), message.sig)
    return signed, (*whole, *(os.urandom(size) for size in _FIXED_HASHES))


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One figure: the median of several, their range, and its bounds if one was promised."""

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
        """The bound and whether it is kept; empty if nothing was promised."""
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
        """Every row with its bounds."""
        rows = [{**asdict(row), "kept": row.kept} for row in self.rows]
        return {"name": self.name, "kept": self.kept, "rows": rows, "notes": list(self.notes)}

    def text(self) -> str:
        """A line per row, with the spread if there is one."""
        width = max(len(row.what) for row in self.rows)
        unit = max(len(row.unit) for row in self.rows)
        lines = [self.name, *(f"  {note}" for note in self.notes)]
        for row in self.rows:
            spread = f"{_number(row.low)} – {_number(row.high)}" if row.low != row.high else ""
            line = f"  {row.what:<{width}}  {_number(row.value):>9} {row.unit:<{unit}}  {spread:<19}  {row.promise}"
            lines.append(line.rstrip())
        return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
