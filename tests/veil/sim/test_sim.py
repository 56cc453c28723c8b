"""The simulator runs the real node: small networks here, the promised ones in `test_promises`."""

from dataclasses import replace
from random import Random
from xml.etree import ElementTree

import pytest

from tests.veil.node.net import feed_object
from veil import NATIVE
from veil.sim import Scenario, Split, Sybil, hops, plot_run_svg, plot_svg, rings, run, sweep

SMALL = Scenario(nodes=30, objects=4, publishers=2, settle_s=40)


def test_all_is_delivered_where_one_frame_in_ten_is_lost_at_the_promised_cost() -> None:
    found = run(replace(SMALL, loss=0.1), seed=1)
    assert found.wanted == 4 * 29
    assert found.delivered == found.wanted
    assert 1.0 < found.cost <= 3.5
    assert found.latency(0.5) < 5


def test_the_same_seed_gives_the_same_run_to_the_byte_and_another_does_not() -> None:
    scenario = replace(SMALL, loss=0.2, nodes=20, sybils=0.1)
    one, again, other = run(scenario, 7), run(scenario, 7), run(scenario, 8)
    assert one == again
    assert one.bytes_sent != other.bytes_sent


def test_nodes_with_an_honest_path_get_all_objects_despite_sybils_and_a_dead_lane() -> None:
    found = run(replace(SMALL, nodes=40, sybils=0.3, eclipsed="fast", settle_s=90), seed=1)
    assert found.delivered >= 0.95 * found.reachable
    assert found.counters["lies_found"] > 0


def test_a_partitioned_network_recovers() -> None:
    found = run(replace(SMALL, split=Split(0.5, 15.0), settle_s=80), seed=2)
    assert found.rate == 1.0
    assert found.latency(1.0) > 5


def test_restarted_nodes_get_every_object_exactly_once() -> None:
    found = run(replace(SMALL, loss=0.1, churn_per_minute=2.0, settle_s=90), seed=3)
    assert found.delivered == found.wanted


def test_relays_that_cannot_read_carry_as_well_as_readers_do() -> None:
    found = run(replace(SMALL, loss=0.1, relays=0.7), seed=4)
    assert found.rate == 1.0
    assert found.counters["objects_delivered"] < found.counters["objects_whole"]


def test_a_network_that_loses_everything_delivers_nothing() -> None:
    found = run(replace(SMALL, nodes=10, eclipsed="fast", loss=0.999, settle_s=5), seed=1)
    assert found.rate < 0.1
    assert found.latency(0.5) >= 0


def test_more_loss_costs_more() -> None:
    found = sweep(replace(SMALL, objects=2), (0.0, 0.5), seeds=(1, 2))
    none, half = found.points
    assert none.cost < half.cost
    assert none.latency(0.5) < half.latency(0.5)
    assert none.rate == half.rate == 1.0


def circles(svg: str) -> int:
    return sum(one.tag.endswith("circle") for one in ElementTree.fromstring(svg).iter())


def test_a_sweep_is_drawn_with_rate_latency_and_cost_for_each_loss() -> None:
    found = sweep(Scenario(nodes=6, objects=1, publishers=1, settle_s=10), (0.0, 0.3), seeds=(1,))
    drawn = plot_svg(found, "A & B")
    assert circles(drawn) == 3 * 2
    assert all(words in drawn for words in ("A &amp; B", "delivered", "median latency", "per delivered byte and hop"))


def test_without_deliveries_no_latency_and_no_cost_is_drawn() -> None:
    nothing = replace(SMALL, nodes=6, objects=1, publishers=1, eclipsed="fast", settle_s=0.1)
    found = sweep(nothing, (0.0, 0.95), seeds=(1,))
    assert found.points[1].rate == 0.0
    assert circles(plot_svg(found)) == 2 + 2 * (found.points[0].rate > 0)


def test_a_run_is_drawn_as_deliveries_over_time() -> None:
    scenario = replace(SMALL, nodes=6, objects=1, publishers=1, settle_s=10)
    drawn = ElementTree.fromstring(plot_run_svg(scenario, run(scenario, 1)))
    (line,) = (one for one in drawn.iter() if one.tag.endswith("polyline"))
    assert len(line.attrib["points"].split()) == 1 + 5


@pytest.mark.parametrize(
    "wrong", [{"nodes": 2}, {"loss": 1.0}, {"loss": -0.1}, {"sybils": 1.0}, {"relays": 1.1}, {"objects": 0}]
)
def test_an_invalid_scenario_is_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"fractions from 0 to 1|at least three"):
        replace(SMALL, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "degree"), [(10, 2), (50, 4), (200, 8)])
def test_a_lane_is_connected_and_no_node_has_more_links_than_its_degree(nodes: int, degree: int) -> None:
    edges = rings(nodes, degree, Random(1))
    assert len(hops(0, edges)) == nodes
    count = [sum(number in edge for edge in edges) for number in range(nodes)]
    assert max(count) <= degree
    assert min(count) >= 2


def test_the_default_network_is_three_hops_wide() -> None:
    scenario, chance = Scenario(), Random(1)
    edges = rings(scenario.nodes, scenario.fast_degree, chance) | rings(
        scenario.nodes, scenario.fallback_degree, chance
    )
    assert max(hops(0, edges).values()) == 3


def test_only_the_root_detects_a_shard_corrupted_by_a_sybil() -> None:
    sybil = Sybil(True, Random(1))
    sybil.connected("fast", "victim")
    made = feed_object()
    sent = [frame for _, _, frame in sybil.receive("fast", "p", made.shards[0]) if len(frame) == len(made.shards[0])]
    assert len(sent) == 1
    lie, truth = NATIVE.decode_shard(sent[0]), NATIVE.decode_shard(made.shards[0])
    assert (lie.of, lie.index) == (truth.of, truth.index)
    assert sum(a != b for a, b in zip(lie.payload, truth.payload, strict=True)) == 1
