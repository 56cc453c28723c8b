"""`veil sim`: hundreds of real nodes over a simulated network; `veil bench`: the speed of this machine."""

import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group, option, options_command, single
from plumbing.cli.result_output import facts, table
from veil import (
    NATIVE,
    Address,
    Inbox,
    NamespacePolicy,
    SharedKey,
    SigningKey,
    open_object,
    publish,
    publish_feed,
    receive,
    sim,
)
from veil.cli.exit_status import MISSED_STATUS
from veil.cli.options import JsonOption
from veil.node import Identity, LaneSpec, Node, NodeConfig, Subscription
from veil.sim import Scenario, plot_run_svg, plot_svg
from veil.store import MemoryStore
from veil.tags import feed_tag

sim_app = group(
    "sim",
    """Simulate hundreds of nodes under loss, partitions and attackers, from one seed.

    The nodes run the real code; only the network is simulated. The same seed gives the same run, byte for byte.
    """,
)

_MAX_LOSS = 0.95


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The simulated network, and the form of the result."""

    seed: Annotated[int, option("--seed N", "seed of all randomness", min=0)] = 1
    svg: Annotated[Path | None, option("--svg FILE", "also write a chart to this file")] = None
    nodes: Annotated[int, option("--nodes N", "how many nodes", min=3)] = 200
    objects: Annotated[int, option("--objects N", "how many objects to publish", min=1)] = 10
    payload: Annotated[int, option("--payload-bytes N", "size of each object", min=1, max=200_000)] = 96_256
    sybils: Annotated[float, option("--sybils PART", "fraction of nodes that drop or alter shards", min=0, max=0.9)] = (
        0.0
    )
    eclipsed: Annotated[str | None, option("--eclipsed fast|fallback", "a lane that delivers nothing")] = None
    churn: Annotated[float, option("--churn PER_MINUTE", "departures per node", min=0, max=10)] = 0.0
    split_s: Annotated[
        float | None, option("--split-s S", "partition the network into two halves for this long", min=0)
    ] = None
    as_json: JsonOption = False

    def scenario(self) -> Scenario:
        if self.eclipsed not in (None, "fast", "fallback"):
            raise Misuse(f"no lane {self.eclipsed!r} in the simulation", "give fast or fallback")
        return Scenario(
            nodes=self.nodes,
            objects=self.objects,
            payload_bytes=self.payload,
            sybils=self.sybils,
            eclipsed=self.eclipsed,
            churn_per_minute=self.churn,
            split=sim.Split(1.0, 1.0 + self.split_s) if self.split_s else None,
        )


simulation_command = partial(options_command, SimulationOptions)


@simulation_command(
    sim_app, "run", "veil sim run --loss 0.1 --seed 1", "veil sim run --nodes 50 --sybils 0.3 --eclipsed fast"
)
def run(
    options: SimulationOptions,
    loss: Annotated[float, option("--loss PART", "fraction of frames that are lost", min=0, max=_MAX_LOSS)] = 0.1,
) -> None:
    """Simulate one network, and show delivery rate, latency and cost."""
    scenario = replace(options.scenario(), loss=loss)
    result = sim.run(scenario, options.seed)
    if options.svg is not None:
        options.svg.write_text(plot_run_svg(scenario, result), "utf-8")
    figures = {
        "seed": result.seed,
        "wanted": result.wanted,
        "delivered": result.delivered,
        "rate": round(result.rate, 6),
        "far_rate": round(result.far_rate, 6) if result.far_wanted else None,
        "max_hops": result.max_hops,
        "latency_p50_s": round(result.latency(0.5), 3) if result.delivered else None,
        "latency_p99_s": round(result.latency(0.99), 3) if result.delivered else None,
        "bytes_per_byte_per_hop": round(result.cost, 3) if result.bytes_delivered else None,
    }
    facts(figures, options.as_json, data={**figures, "counters": result.counters})


@simulation_command(
    sim_app, "sweep", "veil sim sweep --losses 0,0.1,0.3 --seeds 5", "veil sim sweep --svg delivery.svg"
)
def sweep(
    options: SimulationOptions,
    losses: Annotated[
        str, option("--losses PART,…", "loss rates to simulate", default="0 to 0.6 by 0.1")
    ] = "0,0.1,0.2,0.3,0.4,0.5,0.6",
    seeds: Annotated[int, option("--seeds N", "number of seeds, starting at --seed", min=1)] = 3,
) -> None:
    """Simulate a network at several loss rates, and show or draw the delivery rate."""
    chosen = range(options.seed, options.seed + seeds)
    found = sim.sweep(options.scenario(), _losses(losses), chosen, _progress)
    if options.svg is not None:
        options.svg.write_text(plot_svg(found), "utf-8")
    columns = ("loss", "rate", "worst_rate", "far_rate", "latency_p50_s", "latency_p99_s", "bytes_per_byte_per_hop")
    rows = [
        (
            point.loss,
            round(point.rate, 6),
            round(point.worst_rate, 6),
            round(point.far_rate, 6) if any(result.far_wanted for result in point.results) else None,
            *(round(point.latency(part), 3) if point.rate else None for part in (0.5, 0.99)),
            round(point.cost, 3) if math.isfinite(point.cost) else None,
        )
        for point in found.points
    ]
    table(columns, rows, options.as_json)


def _losses(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= one <= _MAX_LOSS for one in found):
        raise Misuse(f"{text!r} is not a list of losses", f"give numbers from 0 to {_MAX_LOSS}, like 0,0.1,0.3")
    return found


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rveil: {text}   ")


bench_app = single("bench")

_MIB = 1 << 20
PROMISED_MIB_S = 50.0
PROMISED_SHARDS_S = 5_000.0
_INTAKE_SHARDS = 2_000


def _per_second(work: Callable[[], object], seconds: float) -> float:
    """Runs per second of CPU time of this process, so other processes do not change the result."""
    count, started = 0, time.process_time()
    while (spent := time.process_time() - started) < seconds or not count:
        work()
        count += 1
    return count / spent


@command(bench_app, "bench", "veil bench", "veil bench --seconds 3 --json")
def bench(
    seconds: Annotated[float, durations.option("--seconds", least=0.1, most=60, help="CPU time per measurement")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Measure encoding, decoding and shard intake on this machine.

    The measurements use one core, in this process. The exit status is 9 if a measurement is below the promised rate.
    """

    encode, decode = _codec(seconds)
    rows = [
        ("encode objects of 64 KiB", round(encode, 1), "MiB/s", PROMISED_MIB_S),
        ("decode objects of 64 KiB", round(decode, 1), "MiB/s", PROMISED_MIB_S),
        ("receive shards of 4 KiB", round(_intake(), 0), "shards/s", PROMISED_SHARDS_S),
    ]
    table(("what", "measured", "unit", "promised"), rows, as_json)
    if any(measured < promised for _, measured, _, promised in rows):
        raise typer.Exit(MISSED_STATUS)


def _codec(seconds: float) -> tuple[float, float]:
    payload, address, key = os.urandom(64 << 10), Address(os.urandom(32), 40, 20_000), SharedKey.generate()
    made = publish(payload, address, key)

    def decode() -> None:
        inbox, whole = Inbox(NATIVE), None
        for shard in made.shards[-made.of.shape.k :]:
            whole = inbox.add(NATIVE.decode_shard(shard), 0) or whole
        assert whole is not None
        open_object(receive(whole.of, whole.encoded, NamespacePolicy()), key)

    size = len(payload) / _MIB
    return size * _per_second(lambda: publish(payload, address, key), seconds), size * _per_second(decode, seconds)


def _intake() -> float:
    """Shards per second of CPU time that a node receives from a peer, of signed objects in a subscribed feed."""
    signer, now = SigningKey.generate(), time.time()
    config = NodeConfig(lanes=(LaneSpec("bench"),))
    frames: list[bytes] = []
    while len(frames) < _INTAKE_SHARDS:
        frames.extend(publish_feed(os.urandom(6 << 10), signer, 1, config.epochs.at(now)).shards)
    node = Node(config, MemoryStore(), Identity.generate(), clock=lambda: now, random=random.Random(1))
    node.subscribe(Subscription.feed(feed_tag(signer.public_key, 1), 1))
    node.connected("bench", "peer")
    started = time.process_time()
    for frame in frames:
        node.receive("bench", "peer", frame)
    spent = time.process_time() - started
    assert node.metrics()["objects_delivered"] == len(frames) // 3
    return len(frames) / spent
