"""Directories of the client tests: in memory if the machine has a memory file system."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.ledger import NOW
from veen.client import ClientDir

SCRATCH = Path("/dev/shm")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is fast to write to."""
    with tempfile.TemporaryDirectory(dir=SCRATCH if SCRATCH.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def client(place: Path) -> Iterator[ClientDir]:
    """A new client without a passphrase."""
    with ClientDir.create(place / "client", None, NOW) as made:
        yield made
