"""`veen top`: figures of an interval from two samples of a hub's metrics, and how they are shown."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import prometheus_client as prometheus
import pytest
from rich.console import Console

from tests.cli.canned_server import canned_server
from tests.cli.runner import Veen
from tests.hub.client import running
from veen.cli import top as frame
from veen.cli.top import CumulativeCounts, Frame, Sample, ShownStatus
from veen.core import Malformed

STATUS = ShownStatus("http://127.0.0.1:1", "ab" * 32, "open", "0.0.1", 2, 1234, True, "")


class Metrics:
    """The metrics of a hub that `veen top` reads."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._ok = prometheus.Counter("veen_submit_ok", "x", registry=self.registry)
        self._err = prometheus.Counter("veen_submit_err", "x", ["code", "detail_enum"], registry=self.registry)
        self._group = prometheus.Histogram(frame.GROUP, "x", registry=self.registry, buckets=(1, 2, 4, 8))
        self._whole = prometheus.Histogram(frame.LATENCY, "x", registry=self.registry, buckets=(1, 2.5, 5, 10))
        self.queue_depth = prometheus.Gauge("veen_queue_depth", "x", registry=self.registry)
        self.journal_bytes = prometheus.Gauge("veen_journal_bytes", "x", registry=self.registry)

    def committed(self, entries: int) -> None:
        self._ok.inc(entries)
        self._group.observe(entries)
        self._whole.observe(3)

    def refused(self, code: str, detail_enum: str = "") -> None:
        self._err.labels(code, detail_enum).inc()

    def look(self, at: float) -> Sample:
        return frame.parse_metrics(prometheus.generate_latest(self.registry).decode(), at)


def busy() -> tuple[Sample, Sample]:
    """A hub before and after two seconds of work."""
    metrics = Metrics()
    metrics.committed(5)
    metrics.refused("E.TIME", "EPOCH")
    before = metrics.look(10.0)
    for _ in range(10):
        metrics.committed(4)
    metrics.refused("E.RATE", "CAP_RATE")
    metrics.queue_depth.set(7)
    metrics.journal_bytes.set(3 << 20)
    return before, metrics.look(12.0)


def test_figures_are_for_the_interval_not_for_the_whole_run_of_the_hub() -> None:
    seen = frame.between(*busy())
    assert (seen.seconds, seen.accepted, seen.rate) == (2.0, 40.0, 20.0)
    assert seen.refused == {"E.RATE/CAP_RATE": 1.0}
    assert seen.refusal_rate == 0.5
    assert seen.histogram(frame.GROUP).mean == 4.0
    assert seen.histogram(frame.LATENCY).count == 10


def test_a_real_hub_has_every_metric_that_is_shown(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as hub:
        hub.writer().send()
        hub.submit(hub.writer().message(client_seq=9))
        text = hub.get("/metrics").body.decode()
    found = frame.parse_metrics(text, 0.0)
    assert set(frame.HISTOGRAMS) <= set(found.histograms)
    assert (found.accepted, found.refused) == (1.0, {"E.SEQ/CLIENT_SEQ": 1.0})
    assert found.histograms[frame.LATENCY].count == 1
    assert "veen_queue_depth " in text
    assert "veen_journal_bytes " in text


def test_the_first_sample_counts_from_the_start_and_has_no_rate() -> None:
    _, after = busy()
    seen = frame.between(None, after)
    assert (seen.rate, seen.refusal_rate, seen.accepted) == (None, None, 45.0)


def test_after_a_restart_counts_begin_at_the_start_of_the_hub() -> None:
    before, after = busy()
    assert frame.between(after, before).seconds is None
    fresh = Metrics()
    fresh.committed(100)
    seen = frame.between(before, fresh.look(20.0))  # more accepted than before, and fewer refused
    assert (seen.seconds, seen.accepted) == (None, 100.0)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (1.0, 2.0), (0.99, 1.98)]
)
def test_a_quantile_is_interpolated_within_its_bucket(share: float, expected: float) -> None:
    assert CumulativeCounts((1.0, 2.0, float("inf")), (2.0, 4.0, 4.0), 4.0).quantile(share) == pytest.approx(expected)


def test_a_quantile_above_the_last_finite_bound_is_that_bound() -> None:
    assert CumulativeCounts((1.0, 2.0, float("inf")), (0.0, 0.0, 3.0), 99.0).quantile(0.5) == 2.0


def test_an_empty_histogram_has_no_quantile_and_no_mean() -> None:
    for nothing in (CumulativeCounts((), (), 0.0), CumulativeCounts((1.0, float("inf")), (0.0, 0.0), 0.0)):
        assert nothing.quantile(0.5) is None
        assert nothing.mean is None


def test_empty_buckets_below_the_quantile_are_skipped() -> None:
    assert CumulativeCounts((1.0, 2.0, 4.0, float("inf")), (0.0, 0.0, 2.0, 2.0), 6.0).quantile(0.5) == pytest.approx(
        3.0
    )


@pytest.mark.parametrize("text", ["", "nonsense {", "other_total 5\n", "<html></html>", "veen_submit_ok_total x\n"])
def test_text_that_is_not_the_metrics_of_a_hub_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        frame.parse_metrics(text, 0.0)


def test_the_data_of_a_frame_is_json() -> None:
    before, after = busy()
    data = json.loads(json.dumps(Frame(STATUS, after, frame.between(before, after)).data()))
    assert (data["submits_per_s"], data["queue_depth"], data["entries"]) == (20.0, 7.0, 1234)
    assert set(data["latency_ms"]) == {"whole", "verify", "commit", "fsync", "proof"}
    assert data["latency_ms"]["whole"]["p99"] <= 5.0
    assert data["latency_ms"]["proof"] == {"p50": None, "p99": None, "count": 0.0}


def drawn(width: int, status: ShownStatus = STATUS) -> str:
    before, after = busy()
    shown = Frame(status, after, frame.between(before, after), (5.0, 20.0))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(frame.render(shown, width, "q leaves"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [70, 80, 100, 140])
def test_a_frame_fits_its_terminal_and_shows_the_main_figures(width: int) -> None:
    text = drawn(width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 24
    for wanted in ("submits/s", "20.0", "refused/s", "queue", "p50", "p99", "fsync", "1,234", "3.0 MiB", "ready"):
        assert wanted in text, wanted
    assert "veen explain E.RATE/CAP_RATE" in text
    assert ("arrival to durable" in text) == (width >= 100)


def test_the_frame_shows_why_a_hub_is_not_ready() -> None:
    assert "the journal is full" in drawn(
        100, ShownStatus("u", "ab" * 32, "open", "0", 1, 1, False, "the journal is full")
    )


@pytest.mark.parametrize(
    ("rates", "lines"),
    [
        ((), ["    ", "    "]),
        ((0.0, 0.0), ["    ", "    "]),
        ((8.0,), ["   █", "   █"]),
        ((4.0, 8.0), ["   █", "  ██"]),
        ((1.0, 2.0, 4.0, 8.0, 8.0), ["  ██", "▄███"]),
    ],
)
def test_rates_are_bars_scaled_to_their_peak(rates: tuple[float, ...], lines: list[str]) -> None:
    assert frame.bars(rates, 4, 2) == lines


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5120.0 GiB")]
)
def test_bytes_are_shown_in_a_suitable_unit(count: float, text: str) -> None:
    assert frame.size(count) == text


def test_once_shows_one_interval_of_a_real_hub(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as hub:
        hub.writer().send_many(3)
        where = f"http://127.0.0.1:{hub.port}"
        data = veen.done("top", "--hub", where, "--once", "--interval", "0.05", "--json").json()
        shown = veen.done("top", "--hub", where, "--once", "--interval", "0.05").facts()
    assert (data["entries"], data["labels"], data["accepted"], data["submits_per_s"]) == (3, 1, 0.0, 0.0)
    assert data["seconds"] >= 0.05
    assert (shown["state"], shown["entries"], shown["submits/s"], shown["refusals"]) == ("ready", "3", "0.00", "none")


def test_an_unreachable_hub_is_unavailable_and_another_server_is_malformed(veen: Veen) -> None:
    assert veen("top", "--hub", "http://127.0.0.1:1", "--once").status == 6
    with canned_server({"/metrics": (200, "text/plain", b"other_total 1\n")}) as where:
        assert veen("top", "--hub", where, "--once").status == 3


def test_a_hub_that_stops_is_retried_and_then_reported(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as hub:
        command = [sys.executable, "-m", "veen.cli", "top", "--hub", f"http://127.0.0.1:{hub.port}", "--json"]
        top = subprocess.Popen(
            [*command, "--interval", "0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=veen.shell_env(os.environ),
        )
        assert top.stdout is not None
        top.stdout.readline()
    _, err = top.communicate()
    assert top.returncode == 6
    assert err.startswith("veen: error: no hub answers at ")


def test_q_quits_the_live_view_and_restores_the_terminal(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as hub:
        ours, theirs = pty.openpty()
        env = {**veen.shell_env(os.environ), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        command = [sys.executable, "-m", "veen.cli", "top", "--hub", f"http://127.0.0.1:{hub.port}"]
        with subprocess.Popen(
            [*command, "--interval", "0.05"], stdin=theirs, stdout=theirs, stderr=theirs, env=env
        ) as top:
            seen = b""
            while b"milliseconds" not in seen:
                seen += os.read(ours, 1 << 16)
            os.write(ours, b"xq")
            while top.poll() is None:
                if select.select([ours], [], [], 0.05)[0]:
                    seen += os.read(ours, 1 << 16)
            assert top.returncode == 0
        os.close(theirs)
        os.close(ours)
    assert b"\x1b[?1049h" in seen  # a screen of its own, and back
    assert b"\x1b[?1049l" in seen
