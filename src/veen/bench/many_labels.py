"""Ten thousand labels written in turn, compared with one label: two hubs in turn, over several catch-ups of the log."""

import os
import tempfile
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import HubProcess
from veen.bench.load_messages import MessageWriters
from veen.bench.rounds import Progress, Round, cost_rows, noise_warning, other_load, run_round, silent

LABELS = 10_000
ROUNDS = 2
PER_ROUND = 307_200
CONNECTIONS = 64
_MIN_RATIO = 0.7
_MIN_CATCH_UPS = 3
_POLL_S = 0.05
_WARM_UP = 16
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _HubUnderTest:
    """A hub, its writers, and its rounds so far."""

    name: str
    hub: HubProcess
    writers: MessageWriters
    rounds: list[Round] = field(default_factory=list)
    catch_ups: list[float] = field(default_factory=list)

    def run_round(self, messages: int) -> None:
        """Run one more round and count the catch-ups of the log during the load."""
        seen = _CatchUps(self.hub)
        self.rounds.append(run_round(self.hub, self.writers.plan(messages), messages, seen))
        self.catch_ups.append(seen.count)

    def rows(self) -> list[BenchRow]:
        sustained = [one.messages / (one.load.seconds + one.behind_s) for one in self.rounds]
        return [
            BenchRow.of(f"{self.name}: submits", [one.rate for one in self.rounds], "/s"),
            BenchRow.of(f"{self.name}: until the log has them", sustained, "/s"),
            BenchRow.of(f"{self.name}: catch-ups of the log", self.catch_ups, "a round", least=_MIN_CATCH_UPS),
            BenchRow.of(f"{self.name}: journal at the end", [one.behind_bytes / _MIB for one in self.rounds], "MiB"),
            BenchRow.of(f"{self.name}: p50", [one.load.percentile(0.5) * 1e3 for one in self.rounds], "ms"),
            BenchRow.of(f"{self.name}: p99", [one.load.percentile(0.99) * 1e3 for one in self.rounds], "ms"),
            *cost_rows(self.name, self.rounds),
        ]


class _CatchUps(AbstractContextManager[object]):
    """Counts catch-ups of the log with the journal; may miss some, never counts too many."""

    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub
        self._done = Event()
        self._thread = Thread(target=self._poll, name="catch-ups")
        self.count = 0

    def __enter__(self) -> "_CatchUps":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _poll(self) -> None:
        last = self._hub.applied()
        while not self._done.wait(_POLL_S):
            now = self._hub.applied()
            self.count += now != last
            last = now


def run(
    *,
    labels: int = LABELS,
    rounds: int = ROUNDS,
    per_round: int = PER_ROUND,
    connections: int = CONNECTIONS,
    folder: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Alternate rounds with one label and with many. Both hubs keep their data; the first round creates the labels."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veen-bench-", dir=folder)))
        one = _start(stack, place / "one", "one label", 1, connections)
        many = _start(stack, place / "many", f"{labels:,} labels in turn", labels, connections)
        for number in range(rounds):
            for subject in (one, many):
                progress(f"round {number + 1} of {rounds}: {subject.name}")
                subject.run_round(per_round)
    # Use total times, not medians: work postponed in one round shows up in another.
    spent = [sum(found.load.seconds for found in subject.rounds) for subject in (one, many)]
    waited = [sum(found.load.seconds + found.behind_s for found in subject.rounds) for subject in (one, many)]
    paired = [later.rate / earlier.rate for earlier, later in zip(one.rounds, many.rounds, strict=True)]
    ratio = spent[0] / spent[1]
    low, high = min(*paired, ratio), max(*paired, ratio)
    kept = BenchRow(many.name, ratio, "of one label's rate", low, high, least=_MIN_RATIO)
    others = [found.others for subject in (one, many) for found in subject.rounds]
    return BenchReport(
        "labels",
        (
            kept,
            BenchRow.of(f"{many.name}, until the log has them", [waited[0] / waited[1]], "of one label's rate"),
            *one.rows(),
            *many.rows(),
            other_load(others),
        ),
        (
            f"closed loop, {connections} connections, {rounds} rounds in turn of {per_round:,} messages, "
            f"{os.cpu_count()} cores",
            *noise_warning(others),
        ),
    )


def _start(stack: ExitStack, data_dir: Path, name: str, labels: int, connections: int) -> _HubUnderTest:
    hub = stack.enter_context(HubProcess(HubProcess.init(data_dir)))
    warm = MessageWriters(hub.target, connections, ["bench warm-up"])
    run_round(hub, warm.plan(_WARM_UP * connections), _WARM_UP * connections)
    return _HubUnderTest(
        name, hub, MessageWriters(hub.target, connections, [f"bench {number}" for number in range(labels)])
    )
