"""docs/veil-node.md matches the code: its Python block runs, and its tables have the default settings."""

import re
from pathlib import Path

from veil.node import Bounds, Penalties, Spread, Tier
from veil.node.config import DEFAULT_TIERS

PAGE = (Path(__file__).parents[3] / "docs" / "veil-node.md").read_text("utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the first table after a heading, by their first cell."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert len(rows) > 2, heading
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_python_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "veil-node.md", "exec"), {})


def test_the_tiers_of_the_page_are_those_of_the_code() -> None:
    rows = table("Trust")
    assert set(rows) == {tier.name.lower() for tier in Tier}
    fanout = {"all": 1.0, "half": 0.5, "none": 0.0}
    for tier, policy in DEFAULT_TIERS.items():
        quota, share, rate = rows[tier.name.lower()]
        assert fanout[quota] == policy.forward_quota
        assert share == (f"{policy.storage_share * 100:.0f} %" if policy.storage_share else "none")
        units = {"KiB": 1 << 10, "MiB": 1 << 20}
        amount, _, unit = rate.partition(" ")
        assert policy.rate_bytes_s == (int(amount) * units[unit] if unit else 0)


def test_the_penalties_of_the_page_are_those_of_the_code() -> None:
    shown = sorted(float(row[0]) for row in table("False shards").values())
    found = Penalties()
    assert shown == sorted([found.garbage, found.oversized, found.lie, found.passed_a_lie, found.implausible])
    assert f"At {found.limit:.0f} the peer is muted for five minutes" in " ".join(PAGE.split())
    assert (found.mute_s, found.half_life_s) == (300, 60)


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    spread, bounds = Spread(), Bounds()
    assert (spread.forward_floor, spread.forward_divisor, bounds.stray_ttl_s) == (0.1, 8, 600)
    assert (spread.extra_shards, spread.fast_peers, spread.fallback_peers, spread.fallback_shards) == (2, 2, 1, 2)
    assert (bounds.cache_ttl_s, bounds.done_age_s) == (90 * 60, 8 * 86_400)
