"""Rows over rows: they answer as one map would, and what is below is never touched."""

from random import Random

import pytest

from veen.overlays.kept_fold import MemoryRows


@pytest.mark.parametrize("seed", range(8))
def test_layered_rows_behave_like_one_map(seed: int) -> None:
    random = Random(seed)
    below, whole = MemoryRows(), MemoryRows()
    for _ in range(40):
        key, row = _key(random), _key(random)
        below.put(key, row)
        whole.put(key, row)
    before = list(below.scan(b""))
    layered = MemoryRows(below)
    for _ in range(200):
        key, row, gone = _key(random), _key(random), random.random() < 0.4
        for one in (layered, whole):
            one.delete(key) if gone else one.put(key, row)
        prefix, rest = key[: random.randrange(2)], _key(random)
        assert layered.get(rest) == whole.get(rest)
        assert list(layered.scan(prefix, rest)) == list(whole.scan(prefix, rest))
        assert list(layered.back(prefix, rest)) == list(whole.back(prefix, rest))
    assert list(below.scan(b"")) == before


def _key(random: Random) -> bytes:
    return bytes(random.choices(b"ab\xff", k=random.randrange(1, 4)))
