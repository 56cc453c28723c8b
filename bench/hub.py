"""A hub under load: submits a second and latency, beside the one-core limit of the cryptography each submit needs."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from bench import load, messages
from bench.clock import per_call
from bench.messages import Target
from bench.report import Ratio
from veen.core import SigningKey, naming, signing

CONNECTIONS = 64
PER_CONNECTION = 400
WARM_UP = 50
MANY_LABELS = 10_000


@contextmanager
def running(*options: str) -> Iterator[tuple[int, Target]]:
    """A fresh hub process with open admission on a port of its own."""
    with tempfile.TemporaryDirectory(prefix="veen-bench-") as folder:
        data_dir = str(Path(folder) / "hub")
        command = [sys.executable, "-m", "veen.hub"]
        subprocess.run([*command, "init", "--data-dir", data_dir], check=True, stdout=subprocess.DEVNULL)
        start = [*command, "start", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--admission", "open", *options]
        hub = subprocess.Popen(start, stderr=subprocess.PIPE, text=True)
        try:
            assert hub.stderr is not None
            port = int(json.loads(hub.stderr.readline())["listen"].rpartition(":")[2])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/tooling/status") as answer:
                status = json.load(answer)
            hub_id, profile_id = bytes.fromhex(status["hub_id"]), bytes.fromhex(status["profile_id"])
            yield port, Target(naming.routing_key(hub_id), profile_id)
        finally:
            hub.terminate()
            hub.wait()


def crypto_limit(encoded: bytes) -> float:
    """Seconds of one core that one submit cannot do without: a verify, a sign and the hashes."""
    key, digest = SigningKey.generate(), os.urandom(32)
    sig = key.sign(digest)

    def needed() -> None:
        signing.verify(key.public_key, digest, sig)
        key.sign(digest)
        for length in (
            len(encoded),
            len(encoded),
            len(encoded),
            170,
            96,
            96,
            200,
        ):  # ct, sig, entry, leaf, node, root, sig
            sha256(encoded[:length]).digest()

    return per_call({"limit": needed}, rounds=15, calls=100)["limit"]


def measure_one(name: str, *options: str, labels: int = 1, batch: int = 0) -> tuple[dict[str, float], list[Ratio]]:
    """One kind of load against one kind of hub."""
    with running(*options) as (port, target):
        made = messages.signed(target, CONNECTIONS, WARM_UP + PER_CONNECTION, labels)
        warm, real = [one[:WARM_UP] for one in made], [one[WARM_UP:] for one in made]
        limit = crypto_limit(made[0][0])
        load.drive(port, [messages.submits(one) for one in warm])
        requests = [messages.batches(one, batch) if batch else messages.submits(one) for one in real]
        found = load.drive(port, requests)
        limit = min(limit, crypto_limit(made[0][0]))
    if found.refused:
        raise RuntimeError(f"{found.refused} requests were refused")
    count = sum(map(len, real))
    rate = count / found.seconds
    p50, p99 = found.percentile(0.5), found.percentile(0.99)
    times = {f"{name}: one submit": found.seconds / count, f"{name}: p50": p50, f"{name}: p99": p99}
    return times, [
        Ratio(f"{name}: {rate:,.0f} submits/s", rate * limit, "of the one-core crypto limit"),
        Ratio(f"{name}: p99", p99 / p50, "of p50", 5),
    ]


def measure() -> tuple[dict[str, float], list[Ratio]]:
    """Every kind of load in turn."""
    runs = [
        measure_one("default workers"),
        measure_one("one process", "--workers", "0"),
        measure_one("batches of 64", batch=64),
        measure_one("10,000 labels in turn", labels=MANY_LABELS),
    ]
    times = {name: seconds for found, _ in runs for name, seconds in found.items()}
    return times, [row for _, rows in runs for row in rows]
