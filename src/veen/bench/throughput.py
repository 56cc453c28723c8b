"""A hub under load: submits per second and latency, compared with the cryptography alone and with other logs.

`measure_labels` writes to ten thousand labels in turn and compares that with one label, over several catch-ups of the
log. The other logs are a Redis stream and NATS JetStream on the same machine under the same load. They verify and sign
nothing, so they show what a log costs without that. Each is started on a loopback port, driven in its own protocol by
the same load generator, and stopped through its process.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median
from threading import Event, Thread

from veen.bench import hub_process, load
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import HubProcess, Progress, Round, cost_rows, noise_warning, other_load, run_round, silent
from veen.bench.load import BODY_BYTES, Framing, LoadResult, MessageWriters, Nats, Redis
from veen.core import Msg, SigningKey, Unavailable, msg, signing
from veen.core.hashing import HASH_BYTES

CONNECTIONS = 64
ROUNDS = 7
PER_CONNECTION = 320
LABELS = 10_000
LABEL_ROUNDS = 2
PER_LABEL_ROUND = 307_200
_WARM_UP, _LABEL_WARM_UP = 64, 16  # messages per connection
_MAX_TAIL_RATIO = 5  # of p99 to p50
_MIN_LABEL_RATIO = 0.7
_MIN_CATCH_UPS = 3
_MIB = 1 << 20
_LIMIT_MESSAGES = 256
_LIMIT_SLICES = 9
# Sizes hashed per message besides the message: leaf, one tree node, the peaks of a tree, the receipt.
_FIXED_HASHES = (170, 96, 320, 200)
_START_TIMEOUT_S = 20.0
_POLL_S = 0.05
_READ_BYTES = 1 << 16
_SUBJECT = b"bench"


@dataclass(frozen=True, slots=True)
class _HubUnderTest:
    """A hub, its writers, and its rounds so far."""

    name: str
    hub: HubProcess
    writers: MessageWriters
    batch: int = 0
    rounds: list[Round] = field(default_factory=list)

    def run_round(self, messages: int, watch: AbstractContextManager[object] | None = None) -> None:
        """Run one more round; `watch` is entered while requests are in flight."""
        self.rounds.append(run_round(self.hub, self.writers.plan(messages, self.batch), messages, watch))

    def row(self, what: str, values: Sequence[float], unit: str, **bounds: float | None) -> BenchRow:
        return BenchRow.of(f"{self.name}: {what}", values, unit, **bounds)

    def rate(self) -> BenchRow:
        return self.row("submits", [one.rate for one in self.rounds], "/s")

    def latency(self) -> list[BenchRow]:
        return _latency_rows(self.name, [one.load for one in self.rounds])


def _latency_rows(name: str, loads: Sequence[LoadResult]) -> list[BenchRow]:
    return [
        BenchRow.of(f"{name}: p50", [one.percentile(0.5) * 1e3 for one in loads], "ms"),
        BenchRow.of(f"{name}: p99", [one.percentile(0.99) * 1e3 for one in loads], "ms"),
    ]


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


def measure_hub(
    *,
    rounds: int = ROUNDS,
    per_connection: int = PER_CONNECTION,
    connections: int = CONNECTIONS,
    beside: bool = True,
    folder: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Run all modes, and the other logs if `beside` is set, in turn, for `rounds` rounds.

    The data directories are created under `folder` or the temporary directory, and removed afterwards.
    """
    messages = per_connection * connections
    limits: dict[str, list[float]] = {mode.name: [] for mode in MODES}  # seconds, one for each round
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veen-bench-", dir=folder)))
        subjects = [_start_mode(stack, place, mode, connections) for mode in MODES]
        found = start_baselines(stack, place, connections) if beside else Baselines()
        writers = MessageWriters(subjects[0].hub.target, connections, ["bench"])
        samples = [writers.one() for _ in range(_LIMIT_MESSAGES)]
        limit = CryptoLimit(samples)
        for number in range(rounds):
            for subject in subjects:
                progress(f"round {number + 1} of {rounds}: {subject.name}")
                before = limit.seconds()
                subject.run_round(messages)
                limits[subject.name].append((before + limit.seconds()) / 2)
            for baseline in found.servers:
                progress(f"round {number + 1} of {rounds}: {baseline.name}")
                baseline.run_round(per_connection)
    others = [one.others for subject in subjects for one in subject.rounds]
    rows = [
        BenchRow.of("one-core crypto limit, a message", [one * 1e6 for each in limits.values() for one in each], "µs")
    ]
    for mode, subject in zip(MODES, subjects, strict=True):
        rows += _mode_rows(mode, subject, limits[mode.name])
    for baseline in found.servers:
        share = median(one.rate for one in subjects[0].rounds) / median(baseline.rates)
        rows += baseline.rows()
        rows.append(BenchRow.of(f"{subjects[0].name} beside {baseline.name}", [share], "of its rate"))
    notes = (
        f"closed loop, {connections} connections, {BODY_BYTES}-byte bodies in {len(samples[0])}-byte messages, "
        f"synced before the answer, {os.cpu_count()} cores",
        f"{rounds} rounds in turn of about {messages:,} messages: median and spread",
        *found.notes,
        *noise_warning(others),
    )
    return BenchReport("hub", (*rows, other_load(others)), notes)


def _start_mode(stack: ExitStack, place: Path, mode: Mode, connections: int) -> _HubUnderTest:
    data_dir = HubProcess.init(place / mode.name.replace(" ", "-"))
    hub = stack.enter_context(HubProcess(data_dir, *mode.options))
    subject = _HubUnderTest(mode.name, hub, MessageWriters(hub.target, connections, [f"bench {mode.name}"]), mode.batch)
    # Warm up: processes have loaded, tables have grown and every client is known before the clock starts.
    subject.run_round(_WARM_UP * connections)
    subject.rounds.clear()
    return subject


def _mode_rows(mode: Mode, subject: _HubUnderTest, limits: Sequence[float]) -> list[BenchRow]:
    ratios = [one.rate * limit for one, limit in zip(subject.rounds, limits, strict=True)]
    tails = [one.load.percentile(0.99) / one.load.percentile(0.5) for one in subject.rounds]
    return [
        subject.rate(),
        subject.row("of the one-core crypto limit", ratios, "", least=mode.least),
        *subject.latency(),
        subject.row("p99 / p50", tails, "", most=_MAX_TAIL_RATIO),
        *cost_rows(subject.name, subject.rounds),
    ]


class CryptoLimit:
    """The minimum cost of one submit on one core: a verify, a sign and the hashes.

    Submits per second times `seconds()` is 1 if a hub does as much as one core could with nothing else to do. It uses
    different messages, because the processor speeds up repeated verification of one signature.
    """

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self._signer, self._receipt = SigningKey.generate(), os.urandom(HASH_BYTES)
        self._needs = [_needs(one) for one in encoded]

    def seconds(self) -> float:
        """The current limit: the median of several short slices, because the load meets average conditions too.

        It is CPU time, not wall time: if other processes take the core, the limit must not look easier to reach.
        """
        return median(self._slice() for _ in range(_LIMIT_SLICES)) / len(self._needs)

    def _slice(self) -> float:
        start = time.thread_time()
        for signed, hashed in self._needs:
            signing.verify(*signed)
            self._signer.sign(self._receipt)
            for data in hashed:
                sha256(data).digest()
        return time.thread_time() - start


def _needs(encoded: bytes) -> tuple[tuple[bytes, bytes, bytes], tuple[bytes, ...]]:
    """The signature to verify and the bytes to hash for one message."""
    message = Msg.decode(encoded)
    # The ciphertext, the bytes that the client signs, and the entry in the log.
    whole = (message.ciphertext, encoded, encoded)
    signed = (message.client_id, msg.signing_digest(encoded), message.sig)
    return signed, (*whole, *(os.urandom(size) for size in _FIXED_HASHES))


def measure_labels(
    *,
    labels: int = LABELS,
    rounds: int = LABEL_ROUNDS,
    per_round: int = PER_LABEL_ROUND,
    connections: int = CONNECTIONS,
    folder: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Alternate rounds with one label and with many. Both hubs keep their data; the first round creates the labels."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veen-bench-", dir=folder)))
        one = _start_labels(stack, place / "one", "one label", 1, connections)
        many = _start_labels(stack, place / "many", f"{labels:,} labels in turn", labels, connections)
        catch_ups: dict[str, list[float]] = {one.name: [], many.name: []}
        for number in range(rounds):
            for subject in (one, many):
                progress(f"round {number + 1} of {rounds}: {subject.name}")
                seen = _CatchUps(subject.hub)
                subject.run_round(per_round, seen)
                catch_ups[subject.name].append(seen.count)
    # Use total times, not medians: work postponed in one round shows up in another.
    spent = [sum(found.load.seconds for found in subject.rounds) for subject in (one, many)]
    waited = [sum(found.load.seconds + found.behind_s for found in subject.rounds) for subject in (one, many)]
    paired = [later.rate / earlier.rate for earlier, later in zip(one.rounds, many.rounds, strict=True)]
    ratio = spent[0] / spent[1]
    low, high = min(*paired, ratio), max(*paired, ratio)
    kept = BenchRow(many.name, ratio, "of one label's rate", low, high, least=_MIN_LABEL_RATIO)
    others = [found.others for subject in (one, many) for found in subject.rounds]
    return BenchReport(
        "labels",
        (
            kept,
            BenchRow.of(f"{many.name}, until the log has them", [waited[0] / waited[1]], "of one label's rate"),
            *_label_rows(one, catch_ups[one.name]),
            *_label_rows(many, catch_ups[many.name]),
            other_load(others),
        ),
        (
            f"closed loop, {connections} connections, {rounds} rounds in turn of {per_round:,} messages, "
            f"{os.cpu_count()} cores",
            *noise_warning(others),
        ),
    )


def _start_labels(stack: ExitStack, data_dir: Path, name: str, labels: int, connections: int) -> _HubUnderTest:
    hub = stack.enter_context(HubProcess(HubProcess.init(data_dir)))
    warm = MessageWriters(hub.target, connections, ["bench warm-up"])
    run_round(hub, warm.plan(_LABEL_WARM_UP * connections), _LABEL_WARM_UP * connections)
    streams = [f"bench {number}" for number in range(labels)]
    return _HubUnderTest(name, hub, MessageWriters(hub.target, connections, streams))


def _label_rows(subject: _HubUnderTest, catch_ups: Sequence[float]) -> list[BenchRow]:
    rounds = subject.rounds
    sustained = [one.messages / (one.load.seconds + one.behind_s) for one in rounds]
    return [
        subject.rate(),
        subject.row("until the log has them", sustained, "/s"),
        subject.row("catch-ups of the log", catch_ups, "a round", least=_MIN_CATCH_UPS),
        subject.row("journal at the end", [one.behind_bytes / _MIB for one in rounds], "MiB"),
        *subject.latency(),
        *cost_rows(subject.name, rounds),
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


@dataclass(frozen=True, slots=True)
class Baseline:
    """A running server, its protocol, and its rounds so far."""

    name: str
    pid: int
    connections: int
    framing: Framing
    connect: Callable[[int], socket.socket]
    request: Callable[[int, bytes], bytes]
    rates: list[float] = field(default_factory=list)
    loads: list[LoadResult] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)

    def run_round(self, each: int) -> None:
        """Run one more round of `each` messages per connection, with bodies as long as a hub's."""
        plan = [
            [self.request(number, os.urandom(BODY_BYTES)) for _ in range(each)] for number in range(self.connections)
        ]
        before = hub_process.cpu_seconds(self.pid)
        found = load.drive(plan, self.framing, self.connect)
        self.server_us.append((hub_process.cpu_seconds(self.pid) - before) / found.requests * 1e6)
        self.rates.append(found.requests / found.seconds)
        self.loads.append(found)

    def rows(self) -> list[BenchRow]:
        generator = [one.generator_s / one.requests * 1e6 for one in self.loads]
        return [
            BenchRow.of(f"{self.name}: appends", self.rates, "/s"),
            *_latency_rows(self.name, self.loads),
            BenchRow.of(f"{self.name}: CPU a message, server", self.server_us, "µs"),
            BenchRow.of(f"{self.name}: CPU a message, generator", generator, "µs"),
        ]


@dataclass(frozen=True, slots=True)
class Baselines:
    """The installed servers, and a note on each."""

    servers: tuple[Baseline, ...] = ()
    notes: tuple[str, ...] = ()


def start_baselines(stack: ExitStack, place: Path, connections: int) -> Baselines:
    """Start the installed servers; the stack stops them."""
    servers, notes = [], []
    for program, start_server in (("redis-server", _redis), ("nats-server", _nats)):
        path = shutil.which(program)
        if path is None:
            notes.append(f"{program} is not installed: skipped")
            continue
        folder = place / program
        folder.mkdir()
        baseline, note = start_server(stack, path, folder, connections)
        servers.append(baseline)
        notes.append(note)
    return Baselines(tuple(servers), tuple(notes))


def _redis(stack: ExitStack, path: str, folder: Path, connections: int) -> tuple[Baseline, str]:
    port = _free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--daemonize", "no"]
    options += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    pid = _start_server(stack, [path, *options], port)

    def request(_: int, body: bytes) -> bytes:
        words = (b"XADD", _SUBJECT, b"*", b"body", body)
        return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])

    name = "Redis stream, appendfsync always"
    note = f"{_version(path)}: XADD, synced before the answer"
    return Baseline(name, pid, connections, Redis(), lambda _: load.connect(port), request), note


def _nats(stack: ExitStack, path: str, folder: Path, connections: int) -> tuple[Baseline, str]:
    port, version = _free_port(), _version(path)
    syncs = tuple(map(int, re.findall(r"\d+", version)[:2])) >= (2, 10)  # older versions lack the option
    settings = folder / "nats.conf"
    sync = "sync_interval: always\n" if syncs else ""
    settings.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{\nstore_dir: "{folder}"\n{sync}}}\n')
    pid = _start_server(stack, [path, "--config", str(settings)], port)
    stream = {"name": "bench", "subjects": [_SUBJECT.decode()], "storage": "file", "num_replicas": 1}
    create = _publish(b"$JS.API.STREAM.CREATE.bench", 0, json.dumps(stream).encode())
    load.drive([[create]], Nats(), lambda number: _nats_connect(port, number))

    def request(number: int, body: bytes) -> bytes:
        return _publish(_SUBJECT, number, body)

    note = f"{version}: file storage, {'synced before the answer' if syncs else 'which cannot sync before the answer'}"
    name = "NATS JetStream"
    return Baseline(name, pid, connections, Nats(), lambda number: _nats_connect(port, number), request), note


def _publish(subject: bytes, number: int, body: bytes) -> bytes:
    return b"PUB %b inbox.%d %d\r\n%b\r\n" % (subject, number, len(body), body)


def _nats_connect(port: int, number: int) -> socket.socket:
    """A connection with its own inbox for acknowledgements."""
    connection = load.connect(port)
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB inbox.%d 1\r\nPING\r\n' % number)
    data = b""
    while not data.endswith(b"PONG\r\n"):
        received = connection.recv(_READ_BYTES)
        if not received or b"-ERR" in data + received:
            connection.close()
            raise Unavailable(f"nats-server answered {data + received!r}")
        data += received
    return connection


def _start_server(stack: ExitStack, command: list[str], port: int) -> int:
    """Start a server, wait for its port, and stop it with the stack."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            load.connect(port).close()
            return server.pid
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"{Path(command[0]).name} did not start within {_START_TIMEOUT_S:g} s") from None
        time.sleep(_POLL_S)


def _version(path: str) -> str:
    """Name and version of the program."""
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", output)
    return f"{Path(path).name} {found.group() if found else 'of unknown version'}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
