"""Who is linked to whom: a lane is a union of random rings, so it is one piece and all have equally many links."""

from collections import deque
from collections.abc import Iterable
from random import Random

Edges = set[tuple[int, int]]


def rings(nodes: int, degree: int, chance: Random) -> Edges:
    """About `degree` links a node: the same link drawn twice is one."""
    edges: Edges = set()
    for _ in range(max(degree // 2, 1)):
        order = list(range(nodes))
        chance.shuffle(order)
        for one, other in zip(order, [*order[1:], order[0]], strict=True):
            edges.add((min(one, other), max(one, other)))
    return edges


def hops(start: int, edges: Iterable[tuple[int, int]], without: frozenset[int] = frozenset()) -> dict[int, int]:
    """How many links every node is away from one."""
    near: dict[int, list[int]] = {}
    for one, other in edges:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    far, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for there in near.get(here, ()):
            if there not in far and there not in without:
                far[there] = far[here] + 1
                waiting.append(there)
    return far
