"""One view of a hub: numbers worked out from two samples, as data and as what a terminal shows."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from terminalface import signs
from veen.cli import output
from veen.cli.output import Marked, Tone
from veen.cli.top import sample
from veen.cli.top.sample import Interval, Sample

if TYPE_CHECKING:
    from rich.console import RenderableType

_BARS, _PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:|"
_KIB = 1 << 10
_LEFT = 34
_WIDE = 100
_CHART_ROWS = 4


@dataclass(frozen=True, slots=True)
class Told:
    """What a hub's status says, as far as the view shows it."""

    url: str
    hub_id: str
    admission: str
    version: str
    labels: int
    entries: int
    ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Frame:
    """All of one view."""

    told: Told
    now: Sample
    interval: Interval
    rates: Sequence[float] = ()  # of the intervals so far, oldest first

    def data(self) -> output.Json:
        """For machines."""
        seen = self.interval
        return {
            "url": self.told.url,
            "hub_id": self.told.hub_id,
            "ready": self.told.ready,
            "labels": self.told.labels,
            "entries": self.told.entries,
            "seconds": seen.seconds,
            "accepted": seen.accepted,
            "submits_per_s": seen.rate,
            "refused_per_s": seen.refusal_rate,
            "refused": dict(seen.refused),
            "queue_depth": self.now.queue_depth,
            "journal_bytes": self.now.journal_bytes,
            "group_size": seen.histogram(sample.GROUP).mean,
            "latency_ms": {name: _shares(seen, metric) for name, metric in _LATENCIES.items()},
        }

    def rows(self) -> dict[str, output.Value]:
        """For a pipe, and for the eye that looks once."""
        seen = self.interval
        return {
            "url": self.told.url,
            "state": _state(self.told),
            "labels": self.told.labels,
            "entries": self.told.entries,
            "submits/s": _number(seen.rate),
            "refused/s": _number(seen.refusal_rate),
            **{f"{name} p50/p99 ms": _pair(seen, metric) for name, metric in _LATENCIES.items()},
            "entries per sync": _number(seen.histogram(sample.GROUP).mean),
            "queue": int(self.now.queue_depth),
            "journal": size(self.now.journal_bytes),
            "refusals": ", ".join(f"{code} {int(count)}" for code, count in sorted(seen.refused.items())) or "none",
        }


_LATENCIES = {
    "whole": sample.LATENCY,
    "verify": sample.VERIFY,
    "commit": sample.COMMIT,
    "fsync": sample.SYNC,
    "proof": sample.PROOF,
}
_MEANING = {
    "whole": "arrival to durable",
    "verify": "arrival to verified",
    "commit": "one group, durable",
    "fsync": "one journal sync",
    "proof": "making one proof",
}


def render(frame: Frame, width: int, keys: str = "") -> "RenderableType":
    """What a terminal of that width shows."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    plain = signs.is_plain(sys.stdout)
    told = frame.told
    overflow: Literal["crop", "ellipsis"] = "crop" if plain else "ellipsis"
    head = Text.assemble(("veen top ", "bold"), (told.url, "cyan"), "  ", no_wrap=True, overflow=overflow)
    head.append_text(output.text_of(_state(told)))
    head.append(f"  {told.admission} admission  hub {told.hub_id[:16]}{signs.shown('…')}  veen {told.version}")
    both = Table.grid(expand=True)
    both.add_column(width=_LEFT)
    both.add_column(ratio=1)
    wide = width >= _WIDE
    both.add_row(_panel("traffic", _traffic(frame), 9), _panel("milliseconds", _latency(frame, wide=wide), 9))
    peak = _number(max(frame.rates, default=None))
    drawn = bars(frame.rates, width - 4, _CHART_ROWS, _PLAIN_BARS if plain else _BARS)
    chart = Text("\n".join(drawn), style="green", no_wrap=True)
    shown = [head, both, _panel(f"submits/s, peak {peak}", chart, _CHART_ROWS + 2), _panel("refused", _refusals(frame))]
    return Group(*shown, Text(keys, style="dim")) if keys else Group(*shown)


def _panel(title: str, content: "RenderableType", height: int | None = None) -> "RenderableType":
    from rich.panel import Panel

    return Panel(content, title=title, title_align="left", border_style="dim", height=height)


def _traffic(frame: Frame) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    seen = frame.interval
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(justify="right", min_width=12)
    grid.add_row("submits/s", Text(_number(seen.rate), style="bold"))
    grid.add_row("refused/s", output.text_of(_refusal_rate(seen)))
    grid.add_row("queue", f"{int(frame.now.queue_depth):,}")
    grid.add_row("entries per sync", _number(seen.histogram(sample.GROUP).mean))
    grid.add_row("journal", size(frame.now.journal_bytes))
    grid.add_row("labels", f"{frame.told.labels:,}")
    grid.add_row("entries", f"{frame.told.entries:,}")
    return grid


def _latency(frame: Frame, *, wide: bool) -> "RenderableType":
    from rich.table import Table

    found = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    found.add_column("", style="cyan", no_wrap=True)
    for name in ("p50", "p99", "count"):
        found.add_column(name, justify="right", min_width=7, no_wrap=True)
    if wide:
        found.add_column("", style="dim", no_wrap=True)
    for name, metric in _LATENCIES.items():
        one = frame.interval.histogram(metric)
        row = [name, _number(one.quantile(0.5)), _number(one.quantile(0.99)), f"{int(one.count):,}"]
        found.add_row(*row, *([_MEANING[name]] if wide else []))
    return found


def _refusals(frame: Frame) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    seen = frame.interval
    if not seen.refused:
        return Text("none", style="dim")
    grid = Table.grid(padding=(0, 2))
    for code, count in sorted(seen.refused.items(), key=lambda one: -one[1])[:5]:
        grid.add_row(Text(code, style="yellow"), f"{int(count):,}", Text(f"veen explain {code}", style="dim"))
    return grid


def _state(told: Told) -> Marked:
    return Marked("ready", Tone.GOOD) if told.ready else Marked(told.reason or "not ready", Tone.BAD)


def _refusal_rate(seen: Interval) -> output.Value:
    text = _number(seen.refusal_rate)
    return Marked(text, Tone.WARN) if seen.refusal_rate else text


def _shares(seen: Interval, metric: str) -> output.Json:
    one = seen.histogram(metric)
    return {"p50": one.quantile(0.5), "p99": one.quantile(0.99), "count": one.count}


def _pair(seen: Interval, metric: str) -> str:
    one = seen.histogram(metric)
    return f"{_number(one.quantile(0.5))} / {_number(one.quantile(0.99))}"


def _number(value: float | None) -> str:
    """Three digits that count; a dash where nothing is known."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(count: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} GiB"


def bars(rates: Sequence[float], width: int, height: int, drawn: str = _BARS) -> list[str]:
    """The latest rates as upright bars under their own peak, in lines from the top; the newest is at the right."""
    shown = list(rates)[-width:]
    peak = max(shown, default=0.0) or 1.0
    steps = len(drawn) - 1
    filled = [round(rate / peak * steps * height) for rate in shown]
    lines = []
    for row in reversed(range(height)):
        levels = [min(max(one - row * steps, 0), steps) for one in filled]
        lines.append("".join(drawn[level] for level in levels).rjust(width))
    return lines
