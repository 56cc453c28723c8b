"""Fixtures of the query service tests: a shared service, and one per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import place
from tests.query.query_fixture import QuerySetup, query_setup

__all__ = ["own", "place", "shared"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuerySetup]:
    """A running service that tests do not change."""
    with query_setup(tmp_path_factory.mktemp("office")) as made, made.serving():
        yield made


@pytest.fixture
def own(place: Path) -> Iterator[QuerySetup]:
    """A service for one test, not started yet."""
    with query_setup(place) as made:
        yield made
