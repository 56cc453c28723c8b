"""docs/veil-wire.md matches the code: table of lengths, contexts and bounds."""

import re
from pathlib import Path

import pytest

from veil import Address, ErasureMode, NamespacePolicy, ShardSet, SharedKey, veil_limits
from veil.assembly import batch_target, overhead
from veil.codec import object_bytes, payload_bytes
from veil.profiles import SHAPES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "veil-wire.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())
# The modules of objects and shards; nodes and lanes have other pages.
PARTS = ("*.py", "codec/*.py", "dialect/*.py", "fec/*.py", "encryption/*.py")
SOURCES = {path: path.read_text("utf-8") for part in PARTS for path in (ROOT / "src" / "veil").glob(part)}
ADDRESS = Address(bytes(32), 40, 20_000)


def test_the_table_of_lengths_is_that_of_the_code() -> None:
    rows = [tuple(map(int, row)) for row in re.findall(r"^\| " + r"(\d+) \| " * 7 + r"(\d+) \|$", PAGE, re.MULTILINE)]
    room = veil_limits.MAX_OBJECT_BYTES
    expected = []
    for shape in SHAPES:
        whole = object_bytes(ADDRESS, shape, ErasureMode.HARDENED)
        most = min(whole, room) - overhead(ADDRESS, SharedKey(bytes(32)), signed=False)
        part = payload_bytes(ShardSet(ADDRESS, bytes(32), shape, ErasureMode.HARDENED))
        numbers = (
            shape.profile_id,
            shape.k,
            shape.n,
            shape.bucket_size,
            part,
            whole,
            most,
            shape.n * shape.bucket_size,
        )
        expected.append(numbers)
    assert rows == expected


def test_every_context_of_the_code_is_on_the_page_and_no_other() -> None:
    used = {found for text in SOURCES.values() for found in re.findall(r'"(veil [a-z ]+ v\d)"', text)}
    assert len(used) >= 9
    assert used == set(re.findall(r'"(veil [a-z ]+ v\d)"', PAGE))


@pytest.mark.parametrize(
    "words",
    [
        f"at most {veil_limits.MAX_SHARDS},",
        f"{veil_limits.MAX_OBJECT_BYTES:,} bytes",
        f"at most {veil_limits.MAX_BATCH_ITEMS:,}",
        f"first {veil_limits.EPOCH_OVERLAP_SECONDS:,} seconds",
        f"{veil_limits.EPOCH_HISTORY_SECONDS // 86_400} days older",
        f"unix time in seconds / {veil_limits.EPOCH_SECONDS}",
        f"brings {veil_limits.ATTEMPTS_PER_SHARD} tries",
        f"up to {veil_limits.MAX_RIVALS} rival",
        f"for {veil_limits.CACHE_TTL_SECONDS // 60} minutes",
        f"target of {veil_limits.TARGET_BATCH_BYTES // 1024} KiB",
        f"{batch_target(ADDRESS, ErasureMode.HARDENED):,} bytes here",
    ],
)
def test_a_bound_of_the_page_is_that_of_the_code(words: str) -> None:
    assert words in WORDS


def test_the_namespaces_that_need_a_signature_are_named() -> None:
    assert sorted(NamespacePolicy().signed) == [1, 3, 4]
    assert "1 (public feed), 3 (trust) and 4 (relay)" in WORDS
