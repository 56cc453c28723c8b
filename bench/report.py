"""How a measurement is printed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measured ratio, and the most it may be where something was promised."""

    what: str
    value: float
    unit: str
    most: float | None = None

    @property
    def kept(self) -> bool:
        return self.most is None or self.value <= self.most


def microseconds(times: dict[str, float]) -> str:
    width = max(map(len, times))
    return "\n".join(f"  {name:<{width}}  {seconds * 1e6:8.2f} µs" for name, seconds in times.items())


def ratios(rows: list[Ratio]) -> str:
    width = max(len(row.what) for row in rows)
    lines = []
    for row in rows:
        bound = "" if row.most is None else f"   at most {row.most:g}   {'kept' if row.kept else 'MISSED'}"
        lines.append(f"  {row.what:<{width}}  {row.value:7.2f} {row.unit:<24}{bound}")
    return "\n".join(lines)
