"""Fixtures for tests of the command line."""

from pathlib import Path

import pytest

from tests.cli.runner import Veen


@pytest.fixture
def veen(tmp_path: Path) -> Veen:
    """`veen` with its own home folder."""
    return Veen(tmp_path / "home")


@pytest.fixture
def data_dir(veen: Veen, tmp_path: Path) -> Path:
    """A new data directory."""
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root")
    return tmp_path / "hub"
