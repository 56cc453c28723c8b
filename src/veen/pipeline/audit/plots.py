"""Plots as SVG text: a few shapes, no library, readable in light and in dark."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 860, 220
_LEFT, _BOTTOM, _TOP, _RIGHT = 64, 28, 12, 8
_MOST_BARS = 240
_WIDEST = 40.0  # of a bar, so that few of them are not one slab


def over_time(points: Sequence[tuple[int, int]], title: str) -> str:
    """Bars over time: seconds since 1970, and how many."""
    if not points:
        return _empty(title)
    low, high = points[0][0], points[-1][0]
    span = min((later - at for (at, _), (later, _) in pairwise(points)), default=1)
    step = span * max(1, -(-(high - low + span) // (span * _MOST_BARS)))
    bars: dict[int, int] = {}
    for at, count in points:
        bars[(at - low) // step] = bars.get((at - low) // step, 0) + count
    slots = (high - low) // step + 1
    labels = [(0.0, date(low)), (1.0, date(high))] if high > low else [(0.5, date(low))]
    return _bars(title, [bars.get(slot, 0) for slot in range(slots)], labels)


def spread(values: Sequence[int], title: str) -> str:
    """How often values occur, in bins."""
    if not values:
        return _empty(title)
    low, high = min(values), max(values)
    count = min(40, max(1, high - low + 1))
    bins = [0] * count
    for value in values:
        bins[min(count - 1, (value - low) * count // max(1, high - low))] += 1
    return _bars(title, bins, [(0.0, f"{low:,}"), (1.0, f"{high:,}")])


def ranked(rows: Sequence[tuple[str, int, int]], title: str) -> str:
    """Horizontal bars: a name, how many, and how many of those failed."""
    if not rows:
        return _empty(title)
    most, row_height = max(total for _, total, _ in rows) or 1, 22
    height = row_height * len(rows) + 8
    parts = []
    for number, (name, total, failed) in enumerate(rows):
        y, room = 4 + number * row_height, WIDTH - 320
        parts.append(f'<text x="150" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="160" y="{y + 3}" width="{room * total / most:.1f}" height="15"/>')
        if failed:
            parts.append(f'<rect class="bad" x="160" y="{y + 3}" width="{room * failed / most:.1f}" height="15"/>')
        told = f"{total:,}" + (f", {failed:,} failed" if 0 < failed < total else "")
        parts.append(f'<text x="{166 + room * total / most:.1f}" y="{y + 15}">{told}</text>')
    return _svg(title, height, parts)


def _bars(title: str, values: Sequence[int], labels: Sequence[tuple[float, str]]) -> str:
    most = max(values) or 1
    room, tall = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    wide = room / len(values)
    thick = min(_WIDEST, max(0.5, wide * 0.9))
    floor = HEIGHT - _BOTTOM
    parts = [
        f'<line x1="{_LEFT}" y1="{floor}" x2="{WIDTH - _RIGHT}" y2="{floor}"/>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 10}" text-anchor="end">{most:,}</text>',
        f'<text x="{_LEFT - 8}" y="{floor}" text-anchor="end">0</text>',
    ]
    for slot, value in enumerate(values):
        if value:
            height, x = tall * value / most, _LEFT + (slot + 0.5) * wide - thick / 2
            shape = f'x="{x:.2f}" y="{floor - height:.2f}" width="{thick:.2f}" height="{height:.2f}"'
            parts.append(f'<rect class="bar" {shape}><title>{value:,}</title></rect>')
    for at, text in labels:
        anchor = {0.0: "start", 1.0: "end"}.get(at, "middle")
        parts.append(f'<text x="{_LEFT + at * room:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(text)}</text>')
    return _svg(title, HEIGHT, parts)


def _empty(title: str) -> str:
    return _svg(title, 40, ['<text x="8" y="24">nothing to show</text>'])


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    shown = escape(title)
    body = "".join(parts)
    return f'<svg role="img" aria-label="{shown}" viewBox="0 0 {WIDTH} {height}"><title>{shown}</title>{body}</svg>'


def date(seconds: int) -> str:
    """To the minute, in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):  # beyond any calendar
        return str(seconds)
