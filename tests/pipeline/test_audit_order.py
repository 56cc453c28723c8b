"""Client sequences and hub time must continue across chunks."""

from pathlib import Path

import pytest

from bench.big_log import BigLog
from tests.pipeline.conftest import SMALL
from tests.pipeline.damage import findings


class CarelessHub(BigLog):
    """A hub that signs anything, with a valid tree."""

    def jump(self, by: int) -> None:
        """Skip some numbers of one client."""
        for place in list(self._seqs):
            if place[0] == 0:
                self._seqs[place] += by

    def turn_back(self, seconds: int) -> None:
        self._born -= seconds


@pytest.fixture
def hub(place: Path) -> CarelessHub:
    made = CarelessHub(place / "hub", clients=2, limits=SMALL, per_sec=1)
    made.grow(SMALL.max_checkpoint_interval)
    return made


def test_a_client_seq_skipped_between_two_chunks_is_found(hub: CarelessHub) -> None:
    hub.jump(1)
    hub.grow(SMALL.max_checkpoint_interval)
    (found,) = findings(hub.folders.root)
    assert (found.stream_seq, found.what) == (9, "order: client_seq 6 follows 4")


def test_a_client_seq_repeated_in_a_later_chunk_is_found(hub: CarelessHub) -> None:
    hub.jump(-1)
    hub.grow(SMALL.max_checkpoint_interval)
    assert [(one.stream_seq, one.what) for one in findings(hub.folders.root)] == [(9, "order: client_seq 4 follows 4")]


def test_a_clock_that_goes_back_between_two_chunks_is_found(hub: CarelessHub) -> None:
    hub.turn_back(5)
    hub.grow(SMALL.max_checkpoint_interval)
    (found,) = findings(hub.folders.root)
    assert found.what.startswith("order: hub_ts goes back")
    assert found.stream_seq == 8


def test_a_client_that_begins_late_begins_with_one(place: Path) -> None:
    made = CarelessHub(place / "hub", clients=20, limits=SMALL, per_sec=1)
    made.grow(SMALL.max_checkpoint_interval)
    made._seqs[10, made.labels[0]] = 3
    made.grow(SMALL.max_checkpoint_interval)
    (found,) = findings(made.folders.root)
    assert (found.stream_seq, found.what) == (11, "order: client_seq 4 follows 0")
