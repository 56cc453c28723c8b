"""A fixture with filled tables."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.tables.logs import Place


@pytest.fixture
def made(place: Path) -> "Place":
    from tests.pipeline.tables.logs import filled  # after the module skipped itself without pyarrow

    found = filled(place)
    found.load()
    return found
