"""Charts of simulation results as SVG, without dependencies."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from veil.sim import Result, Scenario, Sweep

WIDTH, PANEL_HEIGHT = 720, 190
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 64, 24, 44, 56, 44
_TICKS = 5
_INK, _GRID, _BLUE, _GREEN, _BROWN = "#333333", "#dddddd", "#1b6ca8", "#3d7d3a", "#b5541c"


@dataclass(frozen=True, slots=True)
class _Series:
    """One value per x position. Values that are not finite are not drawn."""

    values: Sequence[float]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class _Panel:
    """One chart with its scale."""

    heading: str
    colour: str
    low: float
    high: float
    format_value: Callable[[float], str]
    series: tuple[_Series, ...]


def plot_svg(sweep: Sweep, title: str = "Delivery over loss") -> str:
    """Delivery rate, latency, and bytes sent per delivered byte and hop, by loss rate."""
    points = sweep.points
    costs = [point.cost for point in points]
    half, most = ([point.latency(part) for point in points] for part in (0.5, 0.99))
    slowest, dearest = (max(filter(math.isfinite, values), default=1.0) for values in (most, costs))
    least = min(0.95, math.floor(20 * min(point.worst_rate for point in points)) / 20)
    panels = (
        _Panel(
            "delivered, all seeds; dashed: the worst seed", _BLUE, least, 1.0, "{:.1%}".format,
            (_Series([point.worst_rate for point in points], True), _Series([point.rate for point in points])),
        ),
        _Panel(
            "median latency; dashed: 99th percentile", _GREEN, 0.0, 5.0 * math.ceil(slowest / 5), "{:.0f} s".format,
            (_Series(most, True), _Series(half)),
        ),
        _Panel(
            "bytes sent per delivered byte and hop", _BROWN, 0.0, float(math.ceil(dearest)), "{:.1f}".format,
            (_Series(costs),),
        ),
    )  # fmt: skip
    seeds = len(points[0].results)
    below = f"frames lost; {_describe(sweep.scenario)}, {seeds} seed{'s' if seeds != 1 else ''}"
    losses = [point.loss for point in points]
    return _draw(title, below, losses, [(loss, f"{loss:.0%}") for loss in losses], panels)


def plot_run_svg(scenario: Scenario, result: Result, title: str = "Delivery over time") -> str:
    """Fraction delivered by time since publication."""
    times = [0.0, *sorted(result.latencies_s)]
    parts = [number / max(result.wanted, 1) for number in range(len(times))]
    last = max(times[-1], 1.0)
    ticks = [(last * step / 6, f"{last * step / 6:.1f}") for step in range(7)]
    below = f"seconds after publication; {_describe(scenario)}, {scenario.loss:.0%} of frames lost, seed {result.seed}"
    panel = _Panel("delivered", _BLUE, 0.0, 1.0, "{:.0%}".format, (_Series(parts),))
    return _draw(title, below, times, ticks, (panel,), has_dots=False)


def _describe(scenario: Scenario) -> str:
    return f"{scenario.nodes} nodes, {scenario.objects} objects of {scenario.payload_bytes} bytes"


def _draw(
    title: str,
    below: str,
    places: Sequence[float],
    ticks: Sequence[tuple[float, str]],
    panels: Sequence[_Panel],
    *,
    has_dots: bool = True,
) -> str:
    height = _TOP + len(panels) * PANEL_HEIGHT + _BOTTOM
    last = max(places[-1], ticks[-1][0], 0.01)

    def x(place: float) -> float:
        return _LEFT + place / last * (WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 26, title, _INK, "middle", size=16),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, [x(place) for place in places], _TOP + number * PANEL_HEIGHT, has_dots)
    end = height - _BOTTOM
    parts += [_text(x(place), end + 18, text, _INK, "middle") for place, text in ticks]
    parts.append(_text(WIDTH / 2, height - 14, below, _INK, "middle"))
    return "\n".join((*parts, "</svg>\n"))


def _panel(panel: _Panel, xs: Sequence[float], top: float, has_dots: bool) -> list[str]:
    def y(value: float) -> float:
        part = (value - panel.low) / (panel.high - panel.low)
        return top + PANEL_HEIGHT - part * (PANEL_HEIGHT - _GAP)

    parts = [_text(_LEFT, top + _GAP - 14, panel.heading, panel.colour, "start", size=13)]
    for step in range(_TICKS + 1):
        value = panel.low + (panel.high - panel.low) * step / _TICKS
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, y(value) + 4, panel.format_value(value), panel.colour, "end"))
    for series in panel.series:
        found = [(at, y(value)) for at, value in zip(xs, series.values, strict=True) if math.isfinite(value)]
        parts.append(_line(found, panel.colour, series.is_dashed, has_dots))
    return parts


def _text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 12) -> str:
    style = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _line(points: Sequence[tuple[float, float]], colour: str, is_dashed: bool, has_dots: bool) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4" stroke-opacity="0.6"' if is_dashed else ""
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    drawn = dots if has_dots and not is_dashed else []
    return "".join((f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>', *drawn))
