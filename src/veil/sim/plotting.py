"""A sweep as a picture: delivery rate and cost over loss, in SVG made by hand, so that nothing has to be installed."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from veil.sim.running import Sweep

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 64, 48, 56
_INK, _RATE, _FAR, _COST, _GRID = "#333333", "#1b6ca8", "#7fb3d5", "#b5541c", "#dddddd"


def plot_svg(sweep: Sweep, title: str = "Delivery over loss") -> str:
    """Delivery rate on the left, bytes sent per delivered byte and hop on the right, loss below."""
    points = sweep.points
    most = max(max(point.cost for point in points) * 1.15, 1.0)
    least = min(0.9, min(point.worst_rate for point in points))
    last = max(points[-1].loss, 0.01)

    def x(loss: float) -> float:
        return _LEFT + loss / last * (WIDTH - _LEFT - _RIGHT)

    def y(part: float) -> float:
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)

    def rate(value: float) -> float:
        return y((value - least) / (1.0 - least))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 24, title, _INK, "middle", size=15),
    ]
    for step in range(6):
        at = y(step / 5)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{least + (1 - least) * step / 5:.1%}", _RATE, "end"))
        parts.append(_text(WIDTH - _RIGHT + 8, at + 4, f"{most * step / 5:.1f}", _COST, "start"))
    for point in points:
        parts.append(_text(x(point.loss), HEIGHT - _BOTTOM + 20, f"{point.loss:.0%}", _INK, "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 14, _subtitle(sweep), _INK, "middle"))
    parts.append(_line([(x(point.loss), rate(point.worst_rate)) for point in points], _FAR, dashed=True))
    parts.append(_line([(x(point.loss), rate(point.rate)) for point in points], _RATE))
    parts.append(_line([(x(point.loss), y(point.cost / most)) for point in points], _COST))
    parts.append(_text(_LEFT, 42, "delivered (dashed: the worst seed)", _RATE, "start"))
    parts.append(_text(WIDTH - _RIGHT, 42, "bytes sent per delivered byte and hop", _COST, "end"))
    return "\n".join((*parts, "</svg>\n"))


def _subtitle(sweep: Sweep) -> str:
    scenario, seeds = sweep.scenario, len(sweep.points[0].results)
    said = f"{scenario.objects} objects of {scenario.payload_bytes} bytes"
    return f"frames lost; {scenario.nodes} nodes, {said}, {seeds} seed{'s' if seeds != 1 else ''}"


def _text(x: float, y: float, words: str, colour: str, anchor: str, size: int = 12) -> str:
    style = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _line(points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>{"" if dashed else dots}'
