"""Tags match the specification, and epochs overlap on both sides of a boundary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.vector_files import DIALECT, unhex
from veil import Epochs, Malformed
from veil.tags import feed_tag, rv_tag, rv_tags
from veil.veil_limits import EPOCH_OVERLAP_SECONDS, EPOCH_SECONDS, MAX_UINT16, MAX_UINT32

PUBKEY = b"\x07" * 32
DAY = EPOCH_SECONDS


@pytest.mark.parametrize(("pubkey", "namespace", "tag"), DIALECT["feed_tags"])
def test_a_feed_tag_is_the_known_one(pubkey: str, namespace: int, tag: str) -> None:
    assert feed_tag(unhex(pubkey), namespace).hex() == tag


@pytest.mark.parametrize(("pubkey", "epoch", "namespace", "tag"), DIALECT["rv_tags"])
def test_a_rendezvous_tag_is_the_known_one(pubkey: str, epoch: int, namespace: int, tag: str) -> None:
    assert rv_tag(unhex(pubkey), epoch, namespace).hex() == tag


@pytest.mark.parametrize("pubkey", [b"", b"\x07" * 31, b"\x07" * 33])
def test_a_key_that_is_not_32_bytes_has_no_tag(pubkey: bytes) -> None:
    with pytest.raises(Malformed):
        feed_tag(pubkey, 1)
    with pytest.raises(Malformed):
        rv_tag(pubkey, 0, 1)


@pytest.mark.parametrize("namespace", [-1, MAX_UINT16 + 1])
def test_a_namespace_beyond_16_bits_has_no_tag(namespace: int) -> None:
    with pytest.raises(Malformed):
        feed_tag(PUBKEY, namespace)


@pytest.mark.parametrize("epoch", [-1, MAX_UINT32 + 1])
def test_an_epoch_beyond_32_bits_has_no_tag(epoch: int) -> None:
    with pytest.raises(Malformed):
        rv_tag(PUBKEY, epoch, 1)


def test_tags_differ_by_every_thing_they_are_made_of() -> None:
    found = [feed_tag(PUBKEY, 1), feed_tag(PUBKEY, 2), feed_tag(bytes(32), 1)]
    found += [rv_tag(PUBKEY, 0, 1), rv_tag(PUBKEY, 1, 1), rv_tag(PUBKEY, 0, 2), rv_tag(bytes(32), 0, 1)]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(("now", "seconds", "epoch"), DIALECT["epochs"]["at"])
def test_an_epoch_is_the_known_one(now: int, seconds: int, epoch: int) -> None:
    assert Epochs(seconds).at(now) == epoch


@pytest.mark.parametrize(("now", "seconds", "overlap", "epochs"), DIALECT["epochs"]["around"])
def test_the_epochs_around_a_time_are_the_known_ones(now: int, seconds: int, overlap: int, epochs: list[int]) -> None:
    assert Epochs(seconds, overlap).around(now) == tuple(epochs)


@pytest.mark.parametrize(
    ("into", "neighbours"),
    [
        (0, (-1, 0)),
        (EPOCH_OVERLAP_SECONDS - 1, (-1, 0)),
        (EPOCH_OVERLAP_SECONDS, (0,)),
        (DAY - EPOCH_OVERLAP_SECONDS - 1, (0,)),
        (DAY - EPOCH_OVERLAP_SECONDS, (0, 1)),
        (DAY - 1, (0, 1)),
    ],
)
def test_the_neighbour_counts_within_the_overlap_and_not_beyond(into: int, neighbours: tuple[int, ...]) -> None:
    assert Epochs().around(20_000 * DAY + into) == tuple(20_000 + step for step in neighbours)


@given(st.integers(0, 1 << 34), st.integers(-EPOCH_OVERLAP_SECONDS, EPOCH_OVERLAP_SECONDS))
def test_clocks_within_the_overlap_share_an_epoch(now: int, skew: int) -> None:
    sent = rv_tag(PUBKEY, Epochs().at(now), 2)
    assert sent in rv_tags(PUBKEY, 2, max(now + skew, 0))


@given(st.floats(-1e12, 1e20), st.integers(0, 1 << 33), st.integers(0, 1 << 20))
def test_no_time_is_without_an_epoch_of_32_bits(now: float, seconds: int, overlap: int) -> None:
    around = Epochs(seconds, overlap).around(now)
    assert 1 <= len(around) <= 3
    assert all(0 <= epoch <= MAX_UINT32 for epoch in around)


def test_the_first_and_last_epochs_have_one_neighbour() -> None:
    assert Epochs().around(0) == (0,)
    assert Epochs().around(MAX_UINT32 * DAY + DAY - 1) == (MAX_UINT32,)


@pytest.mark.parametrize(
    ("epoch", "into", "plausible"),
    [
        (20_000, 0, True),
        (20_001, 0, False),
        (20_001, DAY - EPOCH_OVERLAP_SECONDS - 1, False),
        (20_001, DAY - EPOCH_OVERLAP_SECONDS, True),
        (20_002, DAY - 1, False),
        (19_993, EPOCH_OVERLAP_SECONDS, True),
        (19_992, EPOCH_OVERLAP_SECONDS, False),
        (19_992, EPOCH_OVERLAP_SECONDS - 1, True),
        (19_991, 0, False),
        (MAX_UINT32, 0, False),
        (0, 0, False),
    ],
)
def test_an_epoch_of_the_future_or_of_long_ago_is_not_plausible(epoch: int, into: int, plausible: bool) -> None:
    assert Epochs().plausible(epoch, 20_000 * DAY + into) is plausible
