"""Two well-known logs on the same machine under the same load: a Redis stream and NATS JetStream.

They verify and sign nothing, so they show what a log costs without that. Each is started on a loopback port, driven in
its own protocol by the same load generator, and stopped through its process.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from veen.bench import hub_process, load
from veen.bench.bench_report import BenchRow
from veen.bench.load import Framing, LoadResult, Nats, Redis
from veen.bench.load_messages import BODY_BYTES
from veen.core import Unavailable

_START_TIMEOUT_S = 20.0
_POLL_S = 0.05
_READ_BYTES = 1 << 16
_SUBJECT = b"bench"


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
            BenchRow.of(f"{self.name}: p50", [one.percentile(0.5) * 1e3 for one in self.loads], "ms"),
            BenchRow.of(f"{self.name}: p99", [one.percentile(0.99) * 1e3 for one in self.loads], "ms"),
            BenchRow.of(f"{self.name}: CPU a message, server", self.server_us, "µs"),
            BenchRow.of(f"{self.name}: CPU a message, generator", generator, "µs"),
        ]


@dataclass(frozen=True, slots=True)
class Baselines:
    """The installed servers, and a note on each."""

    servers: tuple[Baseline, ...] = ()
    notes: tuple[str, ...] = ()


def start(stack: ExitStack, place: Path, connections: int) -> Baselines:
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
    pid = _run(stack, [path, *options], port)

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
    pid = _run(stack, [path, "--config", str(settings)], port)
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


def _run(stack: ExitStack, command: list[str], port: int) -> int:
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
