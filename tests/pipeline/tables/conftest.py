"""Tables that are filled, for whoever asks."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.tables.logs import Place


@pytest.fixture
def made(place: Path) -> "Place":
    from tests.pipeline.tables.logs import filled  # not before a module has skipped where pyarrow is absent

    found = filled(place)
    found.load()
    return found
