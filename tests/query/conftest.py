"""Where the query service's tests keep their directories, and a service for those that only ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import place
from tests.query.query_fixture import Office, office

__all__ = ["own", "place", "shared"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """One that tests ask and do not change."""
    with office(tmp_path_factory.mktemp("office")) as made, made.serving():
        yield made


@pytest.fixture
def own(place: Path) -> Iterator[Office]:
    """One of the test's own; it is not running yet."""
    with office(place) as made:
        yield made
