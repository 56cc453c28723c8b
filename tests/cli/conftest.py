"""Fixtures of the command line's tests."""

from pathlib import Path

import pytest

from tests.cli.runner import Veen


@pytest.fixture
def veen(tmp_path: Path) -> Veen:
    """`veen` with a home that nobody else has."""
    return Veen(tmp_path / "home")


@pytest.fixture
def data_dir(veen: Veen, tmp_path: Path) -> Path:
    """A data directory that no hub has served yet."""
    veen.done("hub", "init", "--data-dir", tmp_path / "hub")
    return tmp_path / "hub"
