"""Where the recorder's tests keep their directories, and a recorder for those that only look."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import place
from tests.recorder.recorder_fixture import Yard, yard

__all__ = ["place", "recorder"]


@pytest.fixture
def recorder(place: Path) -> Iterator[Yard]:
    with yard(place) as made:
        yield made
