"""Batches stay within the target, objects within the limit, and every item is returned once, in order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbing.cbor_heads import head_bytes
from tests.veil.builders import ADDRESS, KEY, pattern
from veil import (
    Batcher,
    ErasureMode,
    Flags,
    Malformed,
    NamespacePolicy,
    Refused,
    batch_payload,
    open_object,
    publish,
    receive,
)
from veil.assembly import batch_target, decode_batch, encode_batch, overhead
from veil.veil_limits import KIB, MAX_BATCH_ITEMS, MAX_OBJECT_BYTES, TARGET_BATCH_BYTES

OVERHEAD = overhead(ADDRESS, KEY, signed=False)


def drain(batcher: Batcher) -> list[tuple[bytes, ...]]:
    batches = []
    while batch := batcher.take():
        batches.append(batch)
    return batches


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(40, 600), st.integers(600, 900))
def test_every_item_comes_out_once_in_order_and_every_batch_keeps_to_its_bounds(
    sizes: list[int], target: int, limit: int
) -> None:
    batcher = Batcher(20, target, limit)
    items = [pattern(size) for size in sizes]
    for item in items:
        batcher.add(item)
    batches = drain(batcher)
    assert [item for batch in batches for item in batch] == items
    assert len(batcher) == 0
    for batch in batches:
        payload, flags = batch_payload(batch)
        assert len(payload) + 20 <= limit
        assert len(payload) + 20 <= target or len(batch) == 1
        assert bool(flags & Flags.BATCHED) == (len(batch) > 1)


@given(st.lists(st.integers(0, 400), min_size=2, max_size=60), st.integers(60, 600))
def test_a_batch_takes_the_next_item_if_it_has_room(sizes: list[int], target: int) -> None:
    batcher = Batcher(0, target, 1_000)
    for size in sizes:
        batcher.add(bytes(size))
    batches = drain(batcher)
    for batch, following in pairwise(batches):
        together = (*batch, following[0])
        encoded = head_bytes(len(together)) + sum(head_bytes(len(item)) + len(item) for item in together)
        assert encoded > target


def test_an_item_larger_than_the_target_travels_alone() -> None:
    batcher = Batcher(0, 100, 500)
    for size in (10, 300, 10):
        batcher.add(bytes(size))
    assert [[len(item) for item in batch] for batch in drain(batcher)] == [[10], [300], [10]]


def test_an_item_no_object_can_carry_is_refused_at_once() -> None:
    batcher = Batcher(OVERHEAD)
    most = MAX_OBJECT_BYTES - OVERHEAD
    batcher.add(bytes(most))
    with pytest.raises(Refused):
        batcher.add(bytes(most + 1))
    assert len(batcher) == 1


def test_interactive_items_travel_one_by_one() -> None:
    batcher = Batcher(0, 64, 128)
    for size in (20, 20, 50):
        batcher.add(bytes(size))
    assert [len(batcher.take()), len(batcher.take(interactive=True)), len(batcher.take(interactive=True))] == [2, 1, 0]


def test_a_batcher_reports_when_the_batch_is_full() -> None:
    batcher, told = Batcher(0, 100, 500), []
    for step in (60, 60, None, None, 99, None, 98):
        batcher.add(bytes(step)) if step else batcher.take()
        told.append(batcher.full)
    assert told == [False, True, False, False, True, False, True]
    batcher.take()
    assert batcher.take() == ()


def test_a_batch_has_a_bounded_number_of_items() -> None:
    batcher = Batcher(0)
    for _ in range(MAX_BATCH_ITEMS + 1):
        batcher.add(b"")
    assert [len(batch) for batch in drain(batcher)] == [MAX_BATCH_ITEMS, 1]


@pytest.mark.parametrize("item_bytes", [1, 100, KIB, 4 * KIB, 40 * KIB])
@pytest.mark.parametrize("plain_target", [True, False])
def test_a_full_batch_is_published_and_read_back(item_bytes: int, plain_target: bool) -> None:
    target = TARGET_BATCH_BYTES if plain_target else batch_target(ADDRESS, ErasureMode.HARDENED)
    batcher = Batcher(OVERHEAD, target)
    while not batcher.full and len(batcher) < MAX_BATCH_ITEMS:
        batcher.add(pattern(item_bytes))
    batch = batcher.take()
    payload, flags = batch_payload(batch)
    made = publish(payload, ADDRESS, KEY, flags=flags)
    assert open_object(receive(made.of, made.encoded, NamespacePolicy()), KEY).items == batch
    if not plain_target:
        assert made.of.shape.bucket_size <= 16 * KIB


@given(st.lists(st.binary(max_size=40), min_size=2, max_size=30).map(tuple))
def test_a_batch_is_read_as_it_was_written(items: tuple[bytes, ...]) -> None:
    assert decode_batch(encode_batch(items)) == items


@pytest.mark.parametrize(
    "payload", [b"", b"\x80", b"\x81\x40", b"\x82\x40", b"\x82\x40\x40\x00", b"\x82\x40\x00", b"\x9f\x40\x40\xff"]
)
def test_an_invalid_batch_is_rejected(payload: bytes) -> None:
    with pytest.raises(Malformed):
        decode_batch(payload)


@pytest.mark.parametrize("count", [0, 1, MAX_BATCH_ITEMS + 1])
def test_a_batch_of_too_few_or_too_many_is_not_written(count: int) -> None:
    with pytest.raises(ValueError, match="items"):
        encode_batch((b"",) * count)


def test_an_object_with_a_false_batch_flag_is_rejected_when_its_items_are_read() -> None:
    made = publish(b"no batch", ADDRESS, KEY, flags=Flags.BATCHED)
    opened = open_object(receive(made.of, made.encoded, NamespacePolicy()), KEY)
    with pytest.raises(Malformed):
        _ = opened.items
