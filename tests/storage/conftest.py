"""Fixtures of the storage tests. Directories are in memory if the machine has a RAM disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.hubs import PACKED, SCRATCH, History, small_history


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is fast to write to."""
    with tempfile.TemporaryDirectory(dir=SCRATCH if SCRATCH.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Forty messages on three streams, and a data directory for them."""
    return small_history(tmp_path_factory.mktemp("history") / "hub")


@pytest.fixture(scope="session")
def short_history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """As `history`, but shorter, for tests that repeat it for every disk call."""
    return small_history(tmp_path_factory.mktemp("short") / "hub", messages=24)


@pytest.fixture(scope="session")
def packed_history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """As `history`, for a hub that compresses its closed chunks."""
    return small_history(tmp_path_factory.mktemp("packed") / "hub", limits=PACKED)
