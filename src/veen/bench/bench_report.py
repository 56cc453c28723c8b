"""Bench reports: figures, their spread and whether they keep what was promised."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median


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
