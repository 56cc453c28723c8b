"""`veen top`: watch a hub."""

import os
import select
import sys
import termios
import time
import tty
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from plumbing.cli import ascii_fallback, durations
from plumbing.cli.command import command, option, single
from veen.cli.hub import hub_process
from veen.cli.kit import output
from veen.cli.kit.common_options import HubUrl, JsonOption, LocalDir
from veen.cli.kit.hub_api import HubApi
from veen.cli.kit.output import Marked, Tone
from veen.core import Malformed, Unavailable

app = single("top")


@command(app, "top", "veen top", "veen top --data-dir hub --interval 5", "veen top --once --json")
def top(
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    interval: Annotated[float, durations.option("--interval", least=0.05, help="time between two samples")] = 1.0,
    once: Annotated[bool, option("--once", "print one interval and exit")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a hub: rate, latency, refusals, queue, disk.

    All numbers are for the interval between two samples. In a pipe, and with --json, one sample is printed after the
    other. Quit with q or ctrl-c.
    """
    with hub_process.hub(hub, data_dir) as api:
        watch(api, interval, once=once, as_json=as_json)


LATENCY = "veen_end_to_end_latency_ms"
VERIFY = "veen_verify_latency_ms"
COMMIT = "veen_commit_latency_ms"
SYNC = "veen_fsync_latency_ms"
GROUP = "veen_group_size"
PROOF = "veen_proof_latency_ms"
HISTOGRAMS = (LATENCY, VERIFY, COMMIT, SYNC, GROUP, PROOF)
_OK, _ERR = "veen_submit_ok_total", "veen_submit_err_total"
_QUEUE, _JOURNAL = "veen_queue_depth", "veen_journal_bytes"


@dataclass(frozen=True, slots=True)
class CumulativeCounts:
    """Cumulative counts: `totals[i]` observations were at most `bounds[i]`. The last bound is infinite."""

    bounds: tuple[float, ...]
    totals: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        return self.totals[-1] if self.totals else 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def since(self, before: "CumulativeCounts") -> "CumulativeCounts":
        """The observations after `before`."""
        if before.bounds != self.bounds:
            return self
        totals = tuple(now - then for now, then in zip(self.totals, before.totals, strict=True))
        return CumulativeCounts(self.bounds, totals, self.sum - before.sum)

    def quantile(self, share: float) -> float | None:
        """The quantile, interpolated within its bucket. None if there are no observations.

        Observations above the last finite bound count as that bound.
        """
        if not self.count:
            return None
        wanted = share * self.count
        at = bisect_left(self.totals, wanted)
        below_bound, below = (self.bounds[at - 1], self.totals[at - 1]) if at else (0.0, 0.0)
        if at == len(self.bounds) - 1:
            return below_bound
        return below_bound + (self.bounds[at] - below_bound) * (wanted - below) / (self.totals[at] - below)


_EMPTY = CumulativeCounts((), (), 0.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of a hub at one moment."""

    at: float  # seconds of a monotonic clock
    accepted: float
    refused: Mapping[str, float]  # by code, or code/detail_enum
    histograms: Mapping[str, CumulativeCounts]
    queue_depth: float
    journal_bytes: float


@dataclass(frozen=True, slots=True)
class Interval:
    """The activity between two samples, or since the hub started."""

    seconds: float | None  # None for the time since the hub started, which the metrics do not contain
    accepted: float
    refused: Mapping[str, float]
    histograms: Mapping[str, CumulativeCounts]

    @property
    def rate(self) -> float | None:
        return None if not self.seconds else self.accepted / self.seconds

    @property
    def refusal_rate(self) -> float | None:
        return None if not self.seconds else sum(self.refused.values()) / self.seconds

    def histogram(self, name: str) -> CumulativeCounts:
        return self.histograms.get(name, _EMPTY)


def parse_metrics(text: str, at: float) -> Sample:
    """Parse the answer of `/metrics`."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, IndexError, KeyError):
        raise Malformed("metrics", "not in the Prometheus text format") from None
    single = {one.name: one.value for one in samples if not one.labels}
    if _OK not in single:
        raise Malformed("metrics", f"no {_OK}: these are not metrics of a hub")
    refused: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, float]]] = {}
    for one in samples:
        if one.name == _ERR:
            detail = one.labels.get("detail_enum")
            code = one.labels.get("code", "")
            refused[f"{code}/{detail}" if detail else code] = one.value
        elif one.name.endswith("_bucket") and "le" in one.labels:
            found = buckets.setdefault(one.name.removesuffix("_bucket"), [])
            found.append((float(one.labels["le"]), one.value))
    histograms = {
        name: CumulativeCounts(
            tuple(bound for bound, _ in sorted(found)),
            tuple(total for _, total in sorted(found)),
            single.get(f"{name}_sum", 0.0),
        )
        for name, found in buckets.items()
    }
    return Sample(at, single[_OK], refused, histograms, single.get(_QUEUE, 0.0), single.get(_JOURNAL, 0.0))


def between(before: Sample | None, after: Sample) -> Interval:
    """The difference of two samples. After a restart of the hub, counts start at its start."""
    if before is None or after.accepted < before.accepted or _refusals_decreased(before, after):
        return Interval(None, after.accepted, dict(after.refused), after.histograms)
    refused = {code: count - before.refused.get(code, 0.0) for code, count in after.refused.items()}
    return Interval(
        after.at - before.at,
        after.accepted - before.accepted,
        {code: count for code, count in refused.items() if count},
        {name: one.since(before.histograms.get(name, _EMPTY)) for name, one in after.histograms.items()},
    )


def _refusals_decreased(before: Sample, after: Sample) -> bool:
    return any(after.refused.get(code, 0.0) < count for code, count in before.refused.items())


_BARS, _PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:|"
_KIB = 1 << 10
_LEFT = 34
_WIDE = 100
_CHART_ROWS = 4


@dataclass(frozen=True, slots=True)
class ShownStatus:
    """The part of a hub's status that a frame shows."""

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
    status: ShownStatus
    now: Sample
    interval: Interval
    rates: Sequence[float] = ()  # submits/s of the intervals so far, oldest first

    def data(self) -> output.Json:
        """The frame as JSON."""
        interval = self.interval
        return {
            "url": self.status.url,
            "hub_id": self.status.hub_id,
            "ready": self.status.ready,
            "labels": self.status.labels,
            "entries": self.status.entries,
            "seconds": interval.seconds,
            "accepted": interval.accepted,
            "submits_per_s": interval.rate,
            "refused_per_s": interval.refusal_rate,
            "refused": dict(interval.refused),
            "queue_depth": self.now.queue_depth,
            "journal_bytes": self.now.journal_bytes,
            "group_size": interval.histogram(GROUP).mean,
            "latency_ms": {name: _shares(interval, metric) for name, metric in _LATENCIES.items()},
        }

    def rows(self) -> dict[str, output.Value]:
        """The frame as names and values, for a pipe."""
        interval = self.interval
        return {
            "url": self.status.url,
            "state": _state(self.status),
            "labels": self.status.labels,
            "entries": self.status.entries,
            "submits/s": _number(interval.rate),
            "refused/s": _number(interval.refusal_rate),
            **{f"{name} p50/p99 ms": _pair(interval, metric) for name, metric in _LATENCIES.items()},
            "entries per sync": _number(interval.histogram(GROUP).mean),
            "queue": int(self.now.queue_depth),
            "journal": size(self.now.journal_bytes),
            "refusals": ", ".join(f"{code} {int(count)}" for code, count in sorted(interval.refused.items())) or "none",
        }


_LATENCIES = {
    "whole": LATENCY,
    "verify": VERIFY,
    "commit": COMMIT,
    "fsync": SYNC,
    "proof": PROOF,
}
_MEANING = {
    "whole": "arrival to durable",
    "verify": "arrival to verified",
    "commit": "one group, durable",
    "fsync": "one journal sync",
    "proof": "making one proof",
}


def render(frame: Frame, width: int, keys: str = "") -> RenderableType:
    """The frame for a terminal of this width."""
    plain = ascii_fallback.needs_ascii(sys.stdout)
    status = frame.status
    overflow: Literal["crop", "ellipsis"] = "crop" if plain else "ellipsis"
    head = Text.assemble(("veen top ", "bold"), (status.url, "cyan"), "  ", no_wrap=True, overflow=overflow)
    head.append_text(output.text_of(_state(status)))
    hub_id = status.hub_id[:16] + ascii_fallback.for_stream("…")
    head.append(f"  {status.admission} admission  hub {hub_id}  veen {status.version}")
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


def _panel(title: str, content: RenderableType, height: int | None = None) -> RenderableType:
    return Panel(content, title=title, title_align="left", border_style="dim", height=height)


def _traffic(frame: Frame) -> RenderableType:
    interval = frame.interval
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(justify="right", min_width=12)
    grid.add_row("submits/s", Text(_number(interval.rate), style="bold"))
    grid.add_row("refused/s", output.text_of(_refusal_rate(interval)))
    grid.add_row("queue", f"{int(frame.now.queue_depth):,}")
    grid.add_row("entries per sync", _number(interval.histogram(GROUP).mean))
    grid.add_row("journal", size(frame.now.journal_bytes))
    grid.add_row("labels", f"{frame.status.labels:,}")
    grid.add_row("entries", f"{frame.status.entries:,}")
    return grid


def _latency(frame: Frame, *, wide: bool) -> RenderableType:
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


def _refusals(frame: Frame) -> RenderableType:
    interval = frame.interval
    if not interval.refused:
        return Text("none", style="dim")
    grid = Table.grid(padding=(0, 2))
    for code, count in sorted(interval.refused.items(), key=lambda one: -one[1])[:5]:
        grid.add_row(Text(code, style="yellow"), f"{int(count):,}", Text(f"veen explain {code}", style="dim"))
    return grid


def _state(status: ShownStatus) -> Marked:
    return Marked("ready", Tone.GOOD) if status.ready else Marked(status.reason or "not ready", Tone.BAD)


def _refusal_rate(interval: Interval) -> output.Value:
    text = _number(interval.refusal_rate)
    return Marked(text, Tone.WARN) if interval.refusal_rate else text


def _shares(interval: Interval, metric: str) -> output.Json:
    one = interval.histogram(metric)
    return {"p50": one.quantile(0.5), "p99": one.quantile(0.99), "count": one.count}


def _pair(interval: Interval, metric: str) -> str:
    one = interval.histogram(metric)
    return f"{_number(one.quantile(0.5))} / {_number(one.quantile(0.99))}"


def _number(value: float | None) -> str:
    """The value with three significant digits, or a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(count: float) -> str:
    """A number of bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} GiB"


def bars(rates: Sequence[float], width: int, height: int, drawn: str = _BARS) -> list[str]:
    """The newest rates as vertical bars scaled to their peak, in lines from the top; the newest is at the right."""
    shown = list(rates)[-width:]
    peak = max(shown, default=0.0) or 1.0
    steps = len(drawn) - 1
    filled = [round(rate / peak * steps * height) for rate in shown]
    lines = []
    for row in reversed(range(height)):
        levels = [min(max(one - row * steps, 0), steps) for one in filled]
        lines.append("".join(drawn[level] for level in levels).rjust(width))
    return lines


_HISTORY = 512
_KEYS = "q or ctrl-c quits"
_QUIT = frozenset(b"qQ")
_KEY_BYTES = 64
_MAX_MISSED = 3  # failed samples in a row before giving up


def watch(api: HubApi, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Show intervals until the user quits, or one interval."""
    if once or as_json or not sys.stdout.isatty():
        frames = _frames(api, interval_s, _sleep)
        for shown in frames:
            if as_json:
                output.document(shown.data())
            elif sys.stdout.isatty():
                console = output.console()
                console.print(render(shown, console.width))
            else:
                output.facts(shown.rows(), as_json)
            sys.stdout.flush()
            if once:
                return
        return

    with _keys() as keys, Live(console=output.console(), screen=True, auto_refresh=False) as live:
        try:
            for shown in _frames(api, interval_s, keys):
                live.update(render(shown, live.console.width, _KEYS), refresh=True)
        except KeyboardInterrupt:
            return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _sleep_or_quit(seconds: float) -> bool:
    """Wait, or return False if the user presses a key to quit."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if not ready:
            continue
        # Read the descriptor: Python's buffer would hide a key from select.
        pressed = os.read(sys.stdin.fileno(), _KEY_BYTES)
        if not pressed or _QUIT & set(pressed):
            return False
    return True


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Read single keys if standard input is a terminal. Restores the terminal afterwards."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _sleep_or_quit
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _frames(api: HubApi, interval_s: float, wait: Callable[[float], bool]) -> Iterator[Frame]:
    """One frame per interval. A hub that does not answer for a moment, as in a restart, is retried."""
    rates: deque[float] = deque(maxlen=_HISTORY)
    before = _sample(api)
    missed = 0
    while wait(interval_s):
        try:
            now, status = _sample(api), _status(api)
        except Unavailable:
            missed += 1
            if missed == _MAX_MISSED:
                raise
            continue
        missed = 0
        interval = between(before, now)
        if interval.rate is not None:
            rates.append(interval.rate)
        yield Frame(status, now, interval, tuple(rates))
        before = now


def _sample(api: HubApi) -> Sample:
    return parse_metrics(api.metrics(), time.monotonic())


def _status(api: HubApi) -> ShownStatus:
    status = api.status()
    ready, reason, _ = api.readiness()
    return ShownStatus(
        api.url,
        str(status["hub_id"]),
        str(status.get("admission", "")),
        str(status.get("server_version", "")),
        int(status["labels"]),
        int(status["entries"]),
        ready,
        reason,
    )
