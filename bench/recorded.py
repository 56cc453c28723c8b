"""`python -m bench.recorded [--few N] [--many N] [--keep DIR]`: queries to a service, with ten times the events.

Everything is real: two hubs, events recorded by two producers each, two services that fill and compact their own
tables, and a client that queries over HTTP. Both services are queried in turn, so other load affects both. Recording a
million events takes a quarter of an hour on two cores; with --keep they are kept and reused.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.recorded_site import MATCH, ROBOT, WEB, Site, events
from veen.bench import hub_process
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import Progress, silent
from veen.core import Unavailable
from veen.pipeline.engine import Engine, EventQuery
from veen.pipeline.engine.engine import SMALL_ROWS
from veen.pipeline.tables import Table, Tables
from veen.pipeline.tables.compaction import due
from veen.query import descriptor

FEW, MANY, ROUNDS = 100_000, 1_000_000, 40
MOST_TIMES = 1.5
_USER = "user:000000"
_MS, _POLL_S = 1000, 0.05
SHOWN = ("receipt_id", "payload.n")
METRICS = ("count", "sum(payload.ms)", "distinct(subject_id)", "max(payload.n)")

Filter = dict[str, Any]


@dataclass(slots=True)
class Service:
    """A running service and its address."""

    site: Site
    pid: int
    port: int
    token: str

    @property
    def tables(self) -> Tables:
        return Tables(self.site.root / "tables")

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> dict[str, Any]:
        link = HTTPConnection("127.0.0.1", self.port)
        sent = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        try:
            link.request(method, path, None if body is None else json.dumps(body), sent)
            answer = link.getresponse()
            found: dict[str, Any] = json.loads(answer.read())
        finally:
            link.close()
        if answer.status >= 300:
            raise Unavailable(f"{method} {path}: {found}")
        return found

    def rows(self, **asked: Any) -> list[dict[str, Any]]:
        """Run a query and wait for its rows, however long it takes."""
        query = {"scope": [WEB], "filter": {}, "projection": ["*"], "evidence": {"mode": "none"}, **asked}
        found = self.ask("POST", "/api/query/submit", query, prefer="wait=30")
        while "rows" not in found:
            state = self.ask("GET", f"/api/query/status/{found['result_id']}")
            if state["status"] == "completed":
                found = self.ask("GET", f"/api/query/result/{found['result_id']}?limit=10000")
            elif state["status"] == "failed":
                raise Unavailable(state["message"])
            else:
                time.sleep(_POLL_S)
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    def settle(self) -> int:
        """Refresh the tables and wait until the service has compacted them; returns the number of files."""
        self.rows(aggregate={"group_by": [], "metrics": ["count"]}, filter={"subject_id": "nobody"})
        while due(self.tables.view()):
            time.sleep(_POLL_S)
        return len(self.tables.view().of(Table.EVENTS, [WEB]))


@contextmanager
def service(site: Site) -> Iterator[Service]:
    """A service on a site, with Spark for large queries. Service and hub stop with the block."""
    site.start_hub()
    try:
        site.record()
        card = json.loads(site.run("card", "admin", "--json"))["id_sign"]
        options = ("alice", "--client-id", card, "--scope", WEB, "--name", f"run {time.time_ns()}")
        made = site.run("query", "token", "queries", *options, "--json")
        tables = ("--tables", "tables", "--source", site.url, "--listen", "127.0.0.1:0", "--spark", "--json")
        with (site.root / "service.log").open("a") as log:
            running = site.veen("query", "serve", "queries", *tables, "--client", "service", "--pin", "hub", stderr=log)
        assert running.stdout is not None
        try:
            line = running.stdout.readline()
            if not line:
                raise Unavailable(f"the service did not start: see {site.root / 'service.log'}")
            port = int(json.loads(line)["url"].rpartition(":")[2])
            yield Service(site, running.pid, port, json.loads(made)["token"])
        finally:
            running.terminate()
            running.wait()
            running.stdout.close()
    finally:
        site.stop_hub()


def window(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The time filter that covers the commits of these events."""
    times = sorted(row["hub_commit_time"] for row in rows)
    return {"from": times[0], "to": times[-1][:-4] + "999Z"}


def queries_of(at: Service) -> dict[str, Filter]:
    """Two queries that match a hundred events: spread over the whole log, and close together in a tenth of it."""
    made = {}
    for what, subject, kind in (("spread out", _USER, "view"), ("in one place", ROBOT, "alarm")):
        found: Filter = {"subject_id": subject, "event_type": [kind]}
        rows = at.rows(filter=found, projection=["hub_commit_time"])
        if len(rows) != MATCH:
            raise Unavailable(f"{len(rows)} events match, not {MATCH}")
        made[what] = {**found, "time": window(rows)}
    return made


def in_turn(asked: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each query, in turn in every round; each must find a hundred events."""
    times: dict[str, list[float]] = {name: [] for name in asked}
    for number in range(rounds):
        for name, work in list(asked.items())[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            found = work()
            times[name].append((time.perf_counter() - began) * _MS)
            if found != MATCH:
                raise Unavailable(f"{name}: {found} events, not {MATCH}")
    return times


def look_ups(at: dict[int, Service], rounds: int, progress: Progress) -> Iterator[BenchRow]:
    """The same queries to both services, and directly to their tables."""
    filters = {count: queries_of(one) for count, one in at.items()}
    engines = {count: Engine(one.tables.root) for count, one in at.items()}
    for what in next(iter(filters.values())):
        progress(f"recorded: {MATCH} events, {what}")
        queries = {count: _query(found[what]) for count, found in filters.items()}
        over_http = {str(count): partial(_matches, one, filters[count][what]) for count, one in at.items()}
        of_tables = {str(count): partial(_matches_here, engine, queries[count]) for count, engine in engines.items()}
        for how, asked in (("over HTTP", over_http), ("the tables alone", of_tables)):
            times = in_turn(asked, rounds)
            yield from (BenchRow.of(f"{what}, {how}: of {int(count):,}", took, "ms") for count, took in times.items())
            few, many = times.values()
            yield BenchRow.of(f"{what}, {how}: times as long", [median(many) / median(few)], "times", most=MOST_TIMES)
        for count, engine in engines.items():
            yield BenchRow.of(f"{what}: rows read of {count:,}", [engine.run(queries[count]).rows_read], "rows")


def _matches(at: Service, found: Filter) -> int:
    return len(at.rows(filter=found, projection=list(SHOWN)))


def _matches_here(engine: Engine, query: EventQuery) -> int:
    return engine.run(query).row_count


def _query(found: Filter) -> EventQuery:
    """The same query in the form that the tables execute."""
    asked: Any = {"scope": [WEB], "filter": found, "projection": list(SHOWN), "evidence": {"mode": "none"}}
    return descriptor.normalise(asked, "q-bench").query()


def aggregates(at: Service, progress: Progress) -> Iterator[BenchRow]:
    """Aggregate all events through the service, and compare with a count of the recorded events."""
    expected, name = counted(at.site.count), f"an aggregate over {at.site.count:,}"
    large = at.site.count > SMALL_ROWS
    for what in ("on Spark, which starts with it", "on Spark") if large else ("without Spark",):
        progress(f"recorded: {name}, {what}")
        before, began = spark_seconds(at.pid), time.perf_counter()
        rows = at.rows(aggregate={"group_by": ["event_type"], "metrics": list(METRICS)})
        took, used = time.perf_counter() - began, spark_seconds(at.pid) - before
        if rows != expected:
            raise Unavailable(f"the answer is {rows}, not {expected}")
        if large and used <= 0:
            raise Unavailable("Spark did not run")
        yield BenchRow.of(f"{name}: {what}", [took], "s")
        yield BenchRow.of(f"{name}: {what}: CPU of its processes", [used], "s")


def spark_seconds(pid: int) -> float:
    """CPU of Spark and its workers, the children of the service."""
    return sum(map(hub_process.cpu_seconds, hub_process.children(pid)))


def counted(count: int) -> list[dict[str, Any]]:
    """The expected aggregate, computed from the events given to the recorder."""
    many: Counter[str] = Counter()
    total: Counter[str] = Counter()
    subjects: dict[str, set[str]] = {}
    last: dict[str, int] = {}
    for one in events(count):
        kind = one["event_type"]
        many[kind] += 1
        total[kind] += one["ms"]
        subjects.setdefault(kind, set()).add(one["subject_id"])
        last[kind] = one["n"]
    of = {kind: (many[kind], total[kind], len(subjects[kind]), last[kind]) for kind in sorted(many)}
    return [{"event_type": kind, **dict(zip(METRICS, values, strict=True))} for kind, values in of.items()]


def measure(
    folder: Path, progress: Progress = silent, *, few: int = FEW, many: int = MANY, rounds: int = ROUNDS
) -> BenchReport:
    """Both sizes in one run. Aggregates over more than SMALL_ROWS events run on Spark."""
    load = Path("/proc/loadavg").read_text().split()[0]
    with ExitStack() as stack:
        at = {}
        for count in (few, many):
            progress(f"recorded: {count:,} events, recorded if they do not exist yet")
            at[count] = stack.enter_context(service(Site(folder / str(count), count)))
        rows = []
        for count, one in at.items():
            progress(f"recorded: the tables of {count:,} events")
            began = time.perf_counter()
            files = one.settle()
            rows.append(BenchRow.of(f"tables of {count:,}: ready after", [time.perf_counter() - began], "s"))
            rows.append(BenchRow.of(f"tables of {count:,}: files of the stream", [files], "files"))
        rows += look_ups(at, rounds, progress)
        rows += aggregates(at[many], progress)
    return BenchReport("query service: recorded events", tuple(rows), (f"the machine's load before: {load}",))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recorded")
    parser.add_argument("--few", type=int, default=FEW, help="events of the small log")
    parser.add_argument("--many", type=int, default=MANY, help="events of the large log")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each query runs")
    parser.add_argument(
        "--keep", type=Path, help="folder in which the logs are kept and reused; default: a temporary folder"
    )
    asked = parser.parse_args(words)

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with TemporaryDirectory(prefix="veen-bench-") as own:
        folder = (asked.keep or Path(own)).resolve()
        report = measure(folder, progress, few=asked.few, many=asked.many, rounds=asked.rounds)
    print(report.text())
    return 0 if report.kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
