"""Documented figures of a network of 200 nodes, three hops wide, over twenty seeds."""

import pytest

from veil.sim import Point, Scenario, run, sweep

SEEDS = range(1, 21)
NETWORK = Scenario(objects=5)


def told(point: Point) -> str:
    """The figures of a failing run."""
    return f"{point.rate:.4%} delivered, {point.worst_rate:.3%} in the worst run, {point.cost:.2f} bytes a byte and hop"


@pytest.mark.slow
def test_at_10_percent_loss_999_of_1000_are_delivered_for_3_5_bytes_per_byte_and_hop() -> None:
    (point,) = sweep(NETWORK, [0.1], SEEDS).points
    assert point.rate >= 0.999, told(point)
    assert point.far_rate >= 0.999, told(point)
    assert max(result.cost for result in point.results) <= 3.5, told(point)
    assert all(result.max_hops >= 3 for result in point.results)


@pytest.mark.slow
def test_at_30_percent_loss_99_of_100_are_delivered() -> None:
    (point,) = sweep(NETWORK, [0.3], SEEDS).points
    assert point.rate >= 0.99, told(point)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_with_a_dead_lane_and_30_percent_sybils_95_of_100_are_delivered(loss: float) -> None:
    (point,) = sweep(Scenario(objects=5, sybils=0.3, eclipsed="fast"), [loss], SEEDS).points
    assert point.rate >= 0.95, told(point)


@pytest.mark.slow
def test_two_thousand_nodes_run_in_one_process() -> None:
    found = run(Scenario(nodes=2_000, objects=1, publishers=1, loss=0.1, payload_bytes=6_000, settle_s=40), seed=1)
    assert found.rate >= 0.999
