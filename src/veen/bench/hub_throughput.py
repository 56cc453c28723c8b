"""A hub under load: submits per second and latency, compared with the one-core limit of the cryptography per submit."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from veen.bench import baselines
from veen.bench.baselines import Baseline
from veen.bench.bench_report import LIMIT_MESSAGES, BenchReport, BenchRow, CryptoLimit
from veen.bench.hub_process import HubProcess
from veen.bench.load_messages import BODY_BYTES, MessageWriters
from veen.bench.rounds import Progress, Round, cost_rows, noise_warning, other_load, run_round, silent

CONNECTIONS = 64
ROUNDS = 7
PER_CONNECTION = 320
_WARM_UP = 64
_MAX_TAIL_RATIO = 5  # of p99 to p50


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a hub and to send to it, and its promised ratio."""

    name: str
    options: tuple[str, ...] = ()
    batch: int = 0
    least: float | None = None


MODES = (
    Mode("default workers", least=1.0),
    Mode("one process", ("--workers", "0"), least=0.75),
    Mode("batches of 64", batch=64, least=1.15),
)


@dataclass(frozen=True, slots=True)
class _HubUnderTest:
    """A hub in one mode, and its rounds so far."""

    mode: Mode
    hub: HubProcess
    writers: MessageWriters
    rounds: list[Round] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)  # seconds, one for each round

    def run_round(self, each: int, limit: CryptoLimit) -> None:
        """Run one more round, and measure the limit directly before and after it."""
        messages = each * self.writers.connections
        plan = self.writers.plan(messages, self.mode.batch)
        before = limit.seconds()
        self.rounds.append(run_round(self.hub, plan, messages))
        self.limits.append((before + limit.seconds()) / 2)

    def rows(self) -> list[BenchRow]:
        name, rounds = self.mode.name, self.rounds
        ratios = [one.rate * limit for one, limit in zip(rounds, self.limits, strict=True)]
        p50, p99 = ([one.load.percentile(share) for one in rounds] for share in (0.5, 0.99))
        tails = [high / middle for high, middle in zip(p99, p50, strict=True)]
        return [
            BenchRow.of(f"{name}: submits", [one.rate for one in rounds], "/s"),
            BenchRow.of(f"{name}: of the one-core crypto limit", ratios, "", least=self.mode.least),
            BenchRow.of(f"{name}: p50", [seconds * 1e3 for seconds in p50], "ms"),
            BenchRow.of(f"{name}: p99", [seconds * 1e3 for seconds in p99], "ms"),
            BenchRow.of(f"{name}: p99 / p50", tails, "", most=_MAX_TAIL_RATIO),
            *cost_rows(name, rounds),
        ]


def run(
    *,
    rounds: int = ROUNDS,
    per_connection: int = PER_CONNECTION,
    connections: int = CONNECTIONS,
    modes: Sequence[Mode] = MODES,
    beside: bool = True,
    folder: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Run all modes, and the baselines if `beside` is set, in turn, for `rounds` rounds.

    The data directories are created under `folder` or the temporary directory, and removed afterwards.
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veen-bench-", dir=folder)))
        subjects = [_start(stack, place, mode, connections) for mode in modes]
        found = baselines.start(stack, place, connections) if beside else baselines.Baselines()
        writers = MessageWriters(subjects[0].hub.target, connections, ["bench"])
        samples = [writers.one() for _ in range(LIMIT_MESSAGES)]
        limit = CryptoLimit(samples)
        for number in range(rounds):
            for subject in subjects:
                progress(f"round {number + 1} of {rounds}: {subject.mode.name}")
                subject.run_round(per_connection, limit)
            for baseline in found.servers:
                progress(f"round {number + 1} of {rounds}: {baseline.name}")
                baseline.run_round(per_connection)
    others = [one.others for subject in subjects for one in subject.rounds]
    limits = [seconds * 1e6 for subject in subjects for seconds in subject.limits]
    return BenchReport(
        "hub",
        (
            BenchRow.of("one-core crypto limit, a message", limits, "µs"),
            *(row for subject in subjects for row in subject.rows()),
            *(row for baseline in found.servers for row in _comparison(subjects[0], baseline)),
            other_load(others),
        ),
        (
            f"closed loop, {connections} connections, {BODY_BYTES}-byte bodies in {len(samples[0])}-byte messages, "
            f"synced before the answer, {os.cpu_count()} cores",
            f"{rounds} rounds in turn of about {per_connection * connections:,} messages: median and spread",
            *found.notes,
            *noise_warning(others),
        ),
    )


def _start(stack: ExitStack, place: Path, mode: Mode, connections: int) -> _HubUnderTest:
    data_dir = HubProcess.init(place / mode.name.replace(" ", "-"))
    hub = stack.enter_context(HubProcess(data_dir, *mode.options))
    writers = MessageWriters(hub.target, connections, [f"bench {mode.name}"])
    # Warm up: processes have loaded, tables have grown and every client is known before the clock starts.
    run_round(hub, writers.plan(_WARM_UP * connections, mode.batch), _WARM_UP * connections)
    return _HubUnderTest(mode, hub, writers)


def _comparison(first: _HubUnderTest, baseline: Baseline) -> list[BenchRow]:
    share = median(one.rate for one in first.rounds) / median(baseline.rates)
    return [*baseline.rows(), BenchRow.of(f"{first.mode.name} beside {baseline.name}", [share], "of its rate")]
