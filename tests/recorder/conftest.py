"""Fixtures of the recorder tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import place
from tests.recorder.recorder_fixture import RecorderSetup, recorder_setup

__all__ = ["place", "recorder"]


@pytest.fixture
def recorder(place: Path) -> Iterator[RecorderSetup]:
    with recorder_setup(place) as made:
        yield made
