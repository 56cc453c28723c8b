"""Counts over time: as bars on a terminal, and as a picture in SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from terminalface.command import Misuse

_TIMES = ("hub_commit_time", "event_time")
_STEPS_S = (1, 5, 15, 60, 300, 900, 3_600, 10_800, 43_200, 86_400, 604_800, 2_592_000, 31_536_000)
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_MOST_BARS = 48
_WIDEST = 40.0  # of a bar, so that few of them are not one slab
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 800, 320, 56, 44, 36, 12
_LABEL = 130  # about as wide as the longest label is
_MS = 1_000


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows there are in each step of time."""

    field: str
    step_s: int
    start_s: int
    bars: tuple[int, ...]

    def name(self, at: int) -> str:
        from veen.query import times

        text = times.write((self.start_s + at * self.step_s) * _MS)
        return text[:10] if self.step_s >= 86_400 else text[:16].replace("T", " ") if self.step_s >= 60 else text[:19]


def counted(rows: Sequence[dict[str, Any]], over: str | None) -> Counts:
    """Rows by a field that has times. A row that was counted already, by `count`, counts for that many."""
    from veen.query import times

    names = dict.fromkeys(name for row in rows for name in row)
    field = over or next((name for name in (*_TIMES, *names) if name in names and _has_times(rows, name)), None)
    if field is None or not _has_times(rows, field):
        raise Misuse("the rows have no times to count over", "ask for hub_commit_time, and name it with --over")
    found = [(times.parse(row[field]) // _MS, _weight(row)) for row in rows if row.get(field) is not None]
    first, last = min(at for at, _ in found), max(at for at, _ in found)
    step = next((one for one in _STEPS_S if (last // one - first // one) < _MOST_BARS), _STEPS_S[-1])
    start = first // step * step
    bars = [0] * (last // step - first // step + 1)
    for at, weight in found:
        bars[(at - start) // step] += weight
    return Counts(field, step, start, tuple(bars))


def _weight(row: dict[str, Any]) -> int:
    given = row.get("count", 1)
    return given if isinstance(given, int) and not isinstance(given, bool) else 1


def _has_times(rows: Sequence[dict[str, Any]], name: str) -> bool:
    from veen.query import times

    found = [row[name] for row in rows if row.get(name) is not None]
    try:
        return bool(found) and all(times.parse(one) >= 0 for one in found)
    except (TypeError, ValueError):
        return False


def _length(seconds: int) -> str:
    """A step in the largest unit that it is a whole number of."""
    unit, size = next((unit, size) for unit, size in _UNITS if seconds % size == 0)
    return f"{seconds // size} {unit}"


def bars(counts: Counts) -> None:
    """For a terminal or a pipe: a line for each step."""
    from rich.bar import Bar
    from rich.table import Table

    from veen.cli import output

    most = max(counts.bars)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(counts.field, style="cyan", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("", ratio=1, min_width=20)
    for at, count in enumerate(counts.bars):
        table.add_row(counts.name(at), str(count), Bar(max(1, most), 0, count, color="green"))
    output.console().print(table)


def svg(counts: Counts) -> str:
    """A picture, with nothing in it that needs anything else."""
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    most, each = max(1, *counts.bars), (_WIDTH - _LEFT - _RIGHT) / len(counts.bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f"<title>{escape(f'count by {counts.field}')}</title>",
        f'<text x="{_LEFT}" y="20">{escape(f"count by {counts.field} (UTC), {_length(counts.step_s)} a bar")}</text>',
        f'<line x1="{_LEFT}" y1="{_TOP + high}" x2="{_LEFT + wide}" y2="{_TOP + high}" stroke="black"/>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 6}" text-anchor="end">{most}</text>',
        f'<text x="{_LEFT - 6}" y="{_TOP + high}" text-anchor="end">0</text>',
    ]
    thick = min(_WIDEST, max(1.0, each - 1))
    for at, count in enumerate(counts.bars):
        tall = high * count / most
        name = escape(f"{counts.name(at)}: {count}")
        lines.append(
            f'<rect x="{_LEFT + (at + 0.5) * each - thick / 2:.2f}" y="{_TOP + high - tall:.2f}" width="{thick:.2f}" '
            f'height="{tall:.2f}" fill="#2e7d32"><title>{name}</title></rect>'
        )
    shown = sorted({0, len(counts.bars) // 2, len(counts.bars) - 1})
    for at in shown:
        place = _LEFT + (at + 0.5) * each
        near = each < _LABEL  # a label in the middle of it would leave the picture
        anchor = "start" if near and at == 0 else "end" if near and at == shown[-1] else "middle"
        lines.append(
            f'<text x="{place:.2f}" y="{_TOP + high + 20}" text-anchor="{anchor}">{escape(counts.name(at))}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
