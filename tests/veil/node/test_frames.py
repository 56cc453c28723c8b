"""Control frames: each has exactly one encoding, and decoders reject anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.builders import shard_sets
from tests.veil.node.net import feed_object
from veil import Malformed
from veil.node.frames import (
    MAX_CONTROL_BYTES,
    MAX_ENTRIES,
    MAX_FILTER_BYTES,
    MAX_HASHES,
    SHARD_START,
    Control,
    Inventory,
    InventoryEntry,
    Summary,
    Want,
    all_indices,
    decode,
    decode_set,
    encode,
    encode_set,
)
from veil.objects import ShardSet
from veil.veil_limits import MAX_SHARDS, MAX_UINT32


@st.composite
def entries(draw: st.DrawFn) -> InventoryEntry:
    of = draw(shard_sets)
    return InventoryEntry(of, draw(st.integers(0, all_indices(of))))


roots = st.binary(min_size=32, max_size=32)
inventories = st.builds(Inventory, st.lists(entries(), max_size=5).map(tuple))
wants = st.builds(Want, roots, st.integers(0, (1 << MAX_SHARDS) - 1), st.integers(0, MAX_SHARDS))
summaries = st.builds(
    Summary,
    st.integers(0, MAX_UINT32),
    st.binary(min_size=16, max_size=16),
    st.integers(1, MAX_HASHES),
    st.binary(min_size=1, max_size=200),
)
controls = st.one_of(inventories, wants, summaries)


@given(controls)
def test_a_frame_round_trips(frame: Control) -> None:
    assert decode(encode(frame)) == frame


@given(controls, st.data())
def test_changed_bytes_are_refused_or_are_the_one_encoding_of_something_else(
    frame: Control, data: st.DataObject
) -> None:
    changed = bytearray(encode(frame))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(changed))
    except Malformed:
        return
    assert encode(other) == bytes(changed)


@given(controls, st.integers(1, 20))
def test_a_truncated_or_extended_frame_is_rejected(frame: Control, more: int) -> None:
    for data in (encode(frame)[:-more], encode(frame) + bytes(more)):
        with pytest.raises(Malformed):
            decode(data)


@given(controls)
def test_no_control_frame_starts_like_a_shard(frame: Control) -> None:
    assert encode(frame)[0] != SHARD_START
    assert feed_object().shards[0][0] == SHARD_START


def test_the_largest_frames_are_within_the_bound_for_control_frames() -> None:
    of = feed_object().of
    assert len(encode(Inventory((InventoryEntry(of, 1),) * MAX_ENTRIES))) <= MAX_CONTROL_BYTES
    assert len(encode(Summary(MAX_UINT32, bytes(16), MAX_HASHES, bytes(MAX_FILTER_BYTES)))) <= MAX_CONTROL_BYTES


@pytest.mark.parametrize(
    "frame",
    [
        Inventory((InventoryEntry(feed_object().of, 0b1000),)),
        Inventory((InventoryEntry(feed_object().of, 1),) * (MAX_ENTRIES + 1)),
        Want(bytes(31), 1, 1),
        Want(bytes(32), 1 << MAX_SHARDS, 1),
        Want(bytes(32), 1, MAX_SHARDS + 1),
        Summary(1, bytes(15), 1, b"\x00"),
        Summary(1, bytes(16), 0, b"\x00"),
        Summary(1, bytes(16), MAX_HASHES + 1, b"\x00"),
        Summary(1, bytes(16), 1, b""),
        Summary(1, bytes(16), 1, bytes(MAX_FILTER_BYTES + 1)),
        Summary(MAX_UINT32 + 1, bytes(16), 1, b"\x00"),
    ],
)
def test_a_frame_beyond_a_bound_is_refused(frame: Control) -> None:
    with pytest.raises(Malformed):
        decode(encode(frame))


@given(shard_sets)
def test_a_shard_set_round_trips(of: ShardSet) -> None:
    assert decode_set(encode_set(of)) == of


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    try:
        frame = decode(data)
    except Malformed:
        return
    assert encode(frame) == data
