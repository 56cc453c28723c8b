"""The hardened transform: any k shards invert it, and no shard contains a block of the object."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil import oracle
from tests.veil.builders import ADDRESS, KEY, NONCE, pattern, published
from veil import NATIVE, ErasureMode, Unverified, publish
from veil.codec import object_bytes
from veil.erasure_code import WRAPPED_BYTES, harden, unharden
from veil.hashing import derive, h, keyed
from veil.objects import ShardSet
from veil.profiles import SHAPES, Shape

WINDOW = 16
contents = st.binary(min_size=0, max_size=300)


def windows(data: bytes) -> set[bytes]:
    return {data[at : at + WINDOW] for at in range(len(data) - WINDOW + 1)}


def bits_that_differ(a: bytes, b: bytes) -> float:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_count() / (8 * len(a))


@given(contents)
def test_the_transform_matches_its_formula_and_can_be_inverted(data: bytes) -> None:
    root = h(data)
    package = harden(root, data)
    assert package == oracle.harden(root, data)
    assert len(package) == len(data) + WRAPPED_BYTES
    assert unharden(root, package) == data


@given(contents.filter(bool), st.data())
def test_a_package_with_any_changed_byte_is_rejected(data: bytes, draw: st.DataObject) -> None:
    root = h(data)
    package = bytearray(harden(root, data))
    package[draw.draw(st.integers(0, len(package) - 1))] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(Unverified):
        unharden(root, bytes(package))


@given(contents, st.binary(min_size=32, max_size=32))
def test_a_package_under_another_root_is_refused(data: bytes, other: bytes) -> None:
    package = harden(h(data), data)
    if other != h(data):
        with pytest.raises(Unverified):
            unharden(other, package)


@given(st.integers(0, 20_000), st.booleans())
def test_no_shard_holds_a_piece_of_the_object_in_plain(size: int, zeros: bool) -> None:
    made = publish(bytes(size) if zeros else pattern(size), ADDRESS, KEY, mode=ErasureMode.HARDENED, nonce=NONCE)
    plain = windows(made.encoded)
    for shard in made.shards:
        assert not windows(NATIVE.decode_shard(shard).payload) & plain


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@pytest.mark.parametrize("fill", [b"\x00", b"\xff", b"ab"])
def test_no_shard_of_the_most_regular_object_is_regular(shape: Shape, fill: bytes) -> None:
    """Even if the object repeats one byte, which a sealed object never does."""
    size = object_bytes(ADDRESS, shape, ErasureMode.HARDENED)
    encoded = (fill * size)[:size]
    payloads = NATIVE.cut(ShardSet(ADDRESS, h(encoded), shape, ErasureMode.HARDENED), encoded)
    for payload in payloads:
        assert len(windows(payload)) == len(payload) - WINDOW + 1
        assert not windows(payload) & windows(encoded)
    assert len(set(payloads)) == shape.n


def test_a_systematic_object_is_in_plain_so_the_claim_above_can_fail() -> None:
    made = published(3_000, ErasureMode.SYSTEMATIC)
    assert windows(NATIVE.decode_shard(made.shards[0]).payload) & windows(made.encoded)


@given(st.integers(0, 1 << 32), st.integers(0, 4_799))
def test_one_bit_of_the_object_changes_half_of_every_block(seed: int, bit: int) -> None:
    """All or nothing: every part of the package depends on every part of the object."""
    data = Random(seed).randbytes(600)
    other = (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(600, "big")
    one, two = harden(h(data), data), harden(h(other), other)
    for at in range(0, len(one), 79):
        assert 0.3 < bits_that_differ(one[at : at + 79], two[at : at + 79]) < 0.7


@given(st.integers(0, 1 << 32), st.integers(0, 5))
def test_without_one_block_the_rest_gives_none_of_the_object(seed: int, lost: int) -> None:
    """A guess of the missing block with one wrong bit gives an unrelated key."""
    data = Random(seed).randbytes(6 * 79 - WRAPPED_BYTES)
    root = h(data)
    package = bytearray(harden(root, data))
    package[lost * 79] ^= 1
    masked, wrapped = bytes(package[:-WRAPPED_BYTES]), bytes(package[-WRAPPED_BYTES:])
    key = guessed_key(root, masked, wrapped)
    assert key != guessed_key(root, harden(root, data)[:-WRAPPED_BYTES], harden(root, data)[-WRAPPED_BYTES:])


def guessed_key(root: bytes, masked: bytes, wrapped: bytes) -> bytes:
    """The key by the formula in docs/veil-wire.md, without verification."""
    mask = keyed(derive("veil hardened wrap v1", root), masked)
    return bytes(a ^ b for a, b in zip(wrapped, mask, strict=True))


def test_the_same_object_always_gives_the_same_shards() -> None:
    assert published() == published()
