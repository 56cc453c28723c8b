"""An object gets the smallest shape that holds it; jitter may choose a larger bucket, never another k and n."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.builders import ADDRESS, KEY, NONCE, SIGNER, published
from veil import NATIVE, ErasureMode, Flags, ObjectV1, Refused, Shape, ShardSet, open_object, publish, receive
from veil.assembly import batch_target, overhead
from veil.codec import ciphertext_bytes, fixed_bytes, object_bytes
from veil.encryption import pad
from veil.hashing import h
from veil.objects import NamespacePolicy
from veil.profiles import LARGE, MICRO, PROFILES, SHAPES, SMALL, choose, fullest, is_known
from veil.veil_limits import BUCKET_SIZES, KIB, MAX_OBJECT_BYTES, TARGET_BATCH_BYTES


def room(shape: Shape) -> int:
    return object_bytes(ADDRESS, shape, ErasureMode.HARDENED)


def test_the_profiles_are_those_of_the_specification() -> None:
    assert [(p.profile_id, p.k, p.n, [b // KIB for b in p.buckets]) for p in PROFILES] == [
        (1, 2, 3, [2, 4, 8]),
        (2, 6, 10, [16, 32]),
        (3, 10, 16, [32, 64]),
    ]
    assert {shape.bucket_size for shape in SHAPES} == set(BUCKET_SIZES)


def test_shapes_are_in_the_order_of_what_they_hold() -> None:
    assert [room(shape) for shape in SHAPES] == sorted(room(shape) for shape in SHAPES)


@pytest.mark.parametrize(("shape", "larger"), list(zip(SHAPES, [*SHAPES[1:], None], strict=True)), ids=str)
def test_one_byte_more_than_a_shape_holds_takes_the_next(shape: Shape, larger: Shape | None) -> None:
    assert choose(room(shape) - 1, room) == choose(room(shape), room) == shape
    if larger is not None:
        assert choose(room(shape) + 1, room) == larger


def test_an_object_larger_than_every_shape_is_rejected() -> None:
    with pytest.raises(Refused):
        choose(room(SHAPES[-1]) + 1, room)


@given(st.integers(0, room(SHAPES[-1])), st.integers(0, 9), st.integers(0, 255))
def test_jitter_stays_in_the_profile_and_fits(size: int, jitter: int, draw: int) -> None:
    least, chosen = choose(size, room), choose(size, room, jitter=jitter, draw=draw)
    assert room(chosen) >= size
    assert chosen.profile_id == least.profile_id
    assert least.bucket_size <= chosen.bucket_size <= least.bucket_size << jitter


def test_jitter_uses_every_bucket_it_may() -> None:
    assert {choose(1, room, jitter=2, draw=draw).bucket_size for draw in range(256)} == set(MICRO.buckets)
    assert {choose(1, room, jitter=1, draw=draw).bucket_size for draw in range(256)} == set(MICRO.buckets[:2])


def test_a_jittered_object_is_whole_and_its_shards_are_buckets() -> None:
    made = [publish(b"small", ADDRESS, KEY, jitter=2) for _ in range(60)]
    assert {shard.of.shape.bucket_size for shard in made} == set(MICRO.buckets)
    for one in made:
        assert {len(shard) for shard in one.shards} == {one.of.shape.bucket_size}
        assert open_object(receive(one.of, one.encoded, NamespacePolicy()), KEY).payload == b"small"


@pytest.mark.parametrize("shape", [Shape(1, 2, 3, 16 * KIB), Shape(2, 2, 3, 2 * KIB), Shape(4, 2, 3, 2 * KIB)])
def test_a_shape_no_profile_makes_is_not_known(shape: Shape) -> None:
    assert not is_known(shape)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if room(shape) <= MAX_OBJECT_BYTES], ids=str)
def test_a_payload_is_taken_to_the_last_byte_and_no_further(shape: Shape) -> None:
    most = room(shape) - overhead(ADDRESS, KEY, signed=False)
    assert publish(bytes(most), ADDRESS, KEY, shape=shape).of.shape == shape
    with pytest.raises(Refused):
        publish(bytes(most + 1), ADDRESS, KEY, shape=shape)


@pytest.mark.parametrize("signer", [None, SIGNER], ids=["unsigned", "signed"])
def test_an_object_of_the_greatest_size_is_carried_and_a_byte_more_is_refused(signer: None) -> None:
    most = MAX_OBJECT_BYTES - overhead(ADDRESS, KEY, signed=signer is not None)
    made = publish(bytes(most), ADDRESS, KEY, signer=signer)
    assert made.of.shape in LARGE.shapes
    assert len(open_object(receive(made.of, made.encoded, NamespacePolicy()), KEY).payload) == most
    with pytest.raises(Refused):
        publish(bytes(most + 1), ADDRESS, KEY, signer=signer)


def test_a_payload_that_no_publisher_may_send_is_refused_when_opened() -> None:
    shape, mode = LARGE.shapes[0], ErasureMode.SYSTEMATIC
    length = ciphertext_bytes(ADDRESS, shape, mode, signed=False)
    for size, fits in [(MAX_OBJECT_BYTES - fixed_bytes(ADDRESS, signed=False), True), (300_000, False)]:
        obj = ObjectV1(ADDRESS, Flags.NONE, NONCE, KEY.seal(ADDRESS, NONCE, pad(bytes(size), length - KEY.overhead)))
        encoded = NATIVE.encode_object(obj)
        received = receive(ShardSet(ADDRESS, h(encoded), shape, mode), encoded, NamespacePolicy())
        if fits:
            assert len(open_object(received, KEY).payload) == size
        else:
            with pytest.raises(Refused):
                open_object(received, KEY)


def test_a_batch_target_fills_six_shards_of_16_kib() -> None:
    for mode in ErasureMode:
        target = batch_target(ADDRESS, mode)
        assert TARGET_BATCH_BYTES - KIB < target <= TARGET_BATCH_BYTES
        assert target == object_bytes(ADDRESS, SMALL.shapes[0], mode)


def test_a_target_below_every_shape_stays_as_it_is() -> None:
    assert fullest(1_000, room) == 1_000


def test_two_objects_of_other_sizes_in_one_shape_look_alike() -> None:
    sizes = {tuple(len(shard) for shard in published(size).shards) for size in (0, 1, 500, 3_000)}
    assert len(sizes) == 1


@pytest.mark.parametrize("size", [0, 1, 500, 3_000])
def test_a_node_without_the_key_cannot_see_the_payload_length(size: int) -> None:
    obj = NATIVE.decode_object(published(size).encoded)
    assert len(obj.ciphertext) == len(NATIVE.decode_object(published(17).encoded).ciphertext)
