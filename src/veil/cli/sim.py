"""`veil sim`: hundreds of real nodes in one process, with virtual time and a simulated network."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veil.cli import output
from veil.cli.options import JsonOption

if TYPE_CHECKING:
    from veil.sim import Result, Scenario

app = group(
    "sim",
    """Simulate hundreds of nodes under loss, partitions and attackers, from one seed.

    The nodes run the real code; only the network is simulated. The same seed gives the same run, byte for byte.
    """,
)

Nodes: TypeAlias = Annotated[int, typer.Option("--nodes", metavar="N", min=3, help="how many nodes")]
Objects: TypeAlias = Annotated[int, typer.Option("--objects", metavar="N", min=1, help="how many objects to publish")]
Payload: TypeAlias = Annotated[
    int, typer.Option("--payload-bytes", metavar="N", min=1, max=200_000, help="size of each object")
]
Sybils: TypeAlias = Annotated[
    float,
    typer.Option("--sybils", metavar="PART", min=0, max=0.9, help="fraction of nodes that drop or alter shards"),
]
Eclipsed: TypeAlias = Annotated[
    str | None, typer.Option("--eclipsed", metavar="fast|fallback", help="a lane that delivers nothing")
]
Churn: TypeAlias = Annotated[
    float, typer.Option("--churn", metavar="PER_MINUTE", min=0, max=10, help="departures per node")
]
Split: TypeAlias = Annotated[
    float | None,
    typer.Option("--split-s", metavar="S", min=0, help="partition the network into two halves for this long"),
]
Svg: TypeAlias = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="also write a chart to this file")]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="seed of all randomness")]
_MAX_LOSS = 0.95


def _scenario(
    nodes: int, objects: int, payload: int, sybils: float, eclipsed: str | None, churn: float, split_s: float | None
) -> "Scenario":
    from veil.sim import Scenario
    from veil.sim import Split as SplitFor

    if eclipsed not in (None, "fast", "fallback"):
        raise Misuse(f"no lane {eclipsed!r} in the simulation", "give fast or fallback")
    split = SplitFor(1.0, 1.0 + split_s) if split_s else None
    return Scenario(
        nodes=nodes,
        objects=objects,
        payload_bytes=payload,
        sybils=sybils,
        eclipsed=eclipsed,
        churn_per_minute=churn,
        split=split,
    )


def _figures(result: "Result") -> dict[str, Any]:
    return {
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


@command(app, "run", "veil sim run --loss 0.1 --seed 1", "veil sim run --nodes 50 --sybils 0.3 --eclipsed fast")
def run(
    loss: Annotated[
        float, typer.Option("--loss", metavar="PART", min=0, max=_MAX_LOSS, help="fraction of frames that are lost")
    ] = 0.1,
    seed: Seed = 1,
    svg: Svg = None,
    nodes: Nodes = 200,
    objects: Objects = 10,
    payload: Payload = 96_256,
    sybils: Sybils = 0.0,
    eclipsed: Eclipsed = None,
    churn: Churn = 0.0,
    split_s: Split = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one network, and show delivery rate, latency and cost."""

    from veil.sim import plot_run_svg
    from veil.sim import run as simulate

    scenario = replace(_scenario(nodes, objects, payload, sybils, eclipsed, churn, split_s), loss=loss)
    result = simulate(scenario, seed)
    if svg is not None:
        svg.write_text(plot_run_svg(scenario, result), "utf-8")
    figures = _figures(result)
    output.facts(figures, as_json, data={**figures, "counters": result.counters})


@command(app, "sweep", "veil sim sweep --losses 0,0.1,0.3 --seeds 5", "veil sim sweep --svg delivery.svg")
def sweep(
    losses: Annotated[
        str, typer.Option("--losses", metavar="PART,…", help="loss rates to simulate", show_default="0 to 0.6 by 0.1")
    ] = "0,0.1,0.2,0.3,0.4,0.5,0.6",
    seed: Seed = 1,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="number of seeds, starting at --seed")] = 3,
    svg: Svg = None,
    nodes: Nodes = 200,
    objects: Objects = 10,
    payload: Payload = 96_256,
    sybils: Sybils = 0.0,
    eclipsed: Eclipsed = None,
    churn: Churn = 0.0,
    split_s: Split = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a network at several loss rates, and show or draw the delivery rate."""
    from veil.sim import plot_svg
    from veil.sim import sweep as simulate

    scenario = _scenario(nodes, objects, payload, sybils, eclipsed, churn, split_s)
    found = simulate(scenario, _losses(losses), range(seed, seed + seeds), _progress)
    if svg is not None:
        svg.write_text(plot_svg(found), "utf-8")
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
    output.table(columns, rows, as_json)


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
