"""The native form: one encoding per object and shard, and every shard exactly fills its bucket."""

from dataclasses import replace

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil import oracle
from tests.veil.builders import ADDRESS, EDGES, addresses, modes, objects, shapes, shard_sets, shards
from veil import NATIVE, Address, ErasureMode, Flags, Malformed, ObjectV1, Shape, ShardSet, ShardV1, Unverified
from veil.codec import ciphertext_bytes, object_bytes, payload_bytes
from veil.hashing import h
from veil.profiles import SHAPES
from veil.veil_limits import BUCKET_SIZES, MAX_UINT16

OF = ShardSet(ADDRESS, b"\x55" * 32, SHAPES[0], ErasureMode.HARDENED)
SHARD = ShardV1(OF, 1, b"\x66" * payload_bytes(OF))
OBJECT = ObjectV1(ADDRESS, Flags.SIGNED | Flags.PUBLIC, bytes(24), b"sealed", b"", b"\x01" * 32, b"\x02" * 64)
PLAIN = replace(OBJECT, flags=Flags.PUBLIC, sender_pubkey=None, signature=None)


@given(objects())
def test_an_object_is_written_as_the_layout_says_and_read_back(obj: ObjectV1) -> None:
    encoded = NATIVE.encode_object(obj)
    assert encoded == oracle.object_bytes(obj)
    assert NATIVE.decode_object(encoded) == obj


@given(shards())
def test_a_shard_is_written_as_the_layout_says_and_read_back(shard: ShardV1) -> None:
    encoded = NATIVE.encode_shard(shard)
    assert encoded == oracle.shard_bytes(shard)
    assert NATIVE.decode_shard(encoded) == shard
    assert NATIVE.shard_id(encoded) == h(encoded)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("epoch", EDGES)
@pytest.mark.parametrize("namespace", [edge for edge in EDGES if edge <= MAX_UINT16])
def test_the_bytes_of_every_shard_are_exactly_its_bucket(shape: Shape, namespace: int, epoch: int) -> None:
    of = ShardSet(Address(bytes(32), namespace, epoch), bytes(32), shape, ErasureMode.HARDENED)
    for index in range(shape.n):
        assert len(NATIVE.encode_shard(ShardV1(of, index, bytes(payload_bytes(of))))) == shape.bucket_size


@given(addresses, shapes, modes, st.booleans())
def test_an_object_fills_its_shards_whatever_its_numbers_are(
    address: Address, shape: Shape, mode: ErasureMode, signed: bool
) -> None:
    flags = Flags.SIGNED if signed else Flags.NONE
    keys = (bytes(32), bytes(64)) if signed else (None, None)
    obj = ObjectV1(address, flags, bytes(24), bytes(ciphertext_bytes(address, shape, mode, signed)), b"", *keys)
    assert len(NATIVE.encode_object(obj)) == object_bytes(address, shape, mode)


def spoilt_objects() -> dict[str, bytes]:
    good = [1, 42, 20_000, 3, b"\x11" * 32, bytes(24), b"sealed", b"", b"\x01" * 32, b"\x02" * 64]
    plain = [*good[:3], 2, *good[4:8]]

    def changed(at: int, value: object, fields: list[object] = good) -> bytes:
        return cbor2.dumps([*fields[:at], value, *fields[at + 1 :]], canonical=True)

    assert NATIVE.decode_object(cbor2.dumps(good)).signed
    assert not NATIVE.decode_object(cbor2.dumps(plain)).signed
    return {
        "version 0": changed(0, 0),
        "version 2": changed(0, 2),
        "a namespace of 17 bits": changed(1, MAX_UINT16 + 1),
        "a negative namespace": changed(1, -1),
        "an epoch of 33 bits": changed(2, 1 << 32),
        "an unknown flag": changed(3, 3 | 16),
        "signed fields without the flag": changed(3, 2),
        "the flag without signed fields": changed(3, 3, plain),
        "a tag of 31 bytes": changed(4, bytes(31)),
        "a tag in text": changed(4, "1" * 32),
        "a tag as an array of integers": changed(4, [17] * 32),
        "a nonce of 12 bytes": changed(5, bytes(12)),
        "no ciphertext": changed(6, b""),
        "null for a ciphertext": changed(6, None),
        "padding outside the seal": changed(7, b"\x00"),
        "no byte string for padding": changed(7, 0),
        "a key of 33 bytes": changed(8, bytes(33)),
        "a signature of 63 bytes": changed(9, bytes(63)),
        "a field too many": cbor2.dumps([*good, 0]),
        "a field too few": cbor2.dumps(good[:9]),
        "a map": cbor2.dumps(dict(enumerate(good))),
        "an indefinite array": b"\x9f" + b"".join(map(cbor2.dumps, good)) + b"\xff",
        "a longer head than needed": b"\x98\x0a" + cbor2.dumps(good)[1:],
        "a CBOR tag in front": b"\xd9\xd9\xf7" + cbor2.dumps(good),
        "something after it": cbor2.dumps(good) + b"\x00",
        "nothing": b"",
    }


@pytest.mark.parametrize("name", spoilt_objects())
def test_an_object_is_refused_with(name: str) -> None:
    with pytest.raises(Malformed):
        NATIVE.decode_object(spoilt_objects()[name])


def spoilt_shards() -> dict[str, bytes]:
    good = [2, 42, 20_000, bytes(32), bytes(32), 1, 1, 2048, 2, 3, 1, SHARD.payload]

    def changed(at: int, value: object) -> bytes:
        """With a payload that fills the bucket."""
        fields = [*good[:at], value, *good[at + 1 :]]
        size = 2048 - len(cbor2.dumps(fields[:-1])) - 3
        return cbor2.dumps([*fields[:-1], bytes(max(size, 0))])

    assert len(cbor2.dumps(good)) == 2048 == len(changed(1, 70))
    assert NATIVE.decode_shard(changed(10, 2)).index == 2
    return {
        "version 1": changed(0, 1),
        "a namespace of 17 bits": changed(1, MAX_UINT16 + 1),
        "an epoch of 33 bits": changed(2, 1 << 32),
        "a tag of 33 bytes": changed(3, bytes(33)),
        "a root of 31 bytes": changed(4, bytes(31)),
        "an unknown profile": changed(5, 4),
        "the profile of another k": changed(5, 2),
        "an unknown mode": changed(6, 2),
        "a mode in text": changed(6, "Systematic"),
        "another bucket than its length": changed(7, 4096),
        "a bucket that is none": changed(7, 2047),
        "k of 0": changed(8, 0),
        "k above n": changed(8, 4),
        "n of another profile": changed(9, 4),
        "n of 0": changed(9, 0),
        "an index of n": changed(10, 3),
        "an index as wide as two bytes": changed(10, 24),
        "a payload of a byte less, and one after it": cbor2.dumps([*good[:-1], SHARD.payload[:-1]]) + b"\x00",
        "a byte less": cbor2.dumps(good)[:-1],
        "a byte more": cbor2.dumps(good) + b"\x00",
        "a payload of integers": cbor2.dumps([*good[:-1], [0] * (len(SHARD.payload))]),
        "nothing": b"",
    }


@pytest.mark.parametrize("name", spoilt_shards())
def test_a_shard_is_refused_with(name: str) -> None:
    with pytest.raises(Malformed):
        NATIVE.decode_shard(spoilt_shards()[name])


@pytest.mark.parametrize("size", [size + step for size in BUCKET_SIZES for step in (-1, 1)])
def test_bytes_of_another_length_than_a_bucket_are_rejected_at_once(size: int) -> None:
    with pytest.raises(Malformed) as caught:
        NATIVE.decode_shard(bytes(size))
    assert "bucket" in caught.value.reason


@pytest.mark.parametrize(
    "obj",
    [
        replace(OBJECT, payload_root=bytes(32)),
        replace(OBJECT, padding=b"\x00"),
        replace(PLAIN, address=replace(ADDRESS, tag=bytes(31))),
        replace(PLAIN, signature=bytes(64)),
        replace(PLAIN, nonce=bytes(23)),
        replace(OBJECT, sender_pubkey=None),
    ],
)
def test_an_object_that_could_not_be_read_is_not_written(obj: ObjectV1) -> None:
    with pytest.raises((Malformed, ValueError)):
        NATIVE.encode_object(obj)


@pytest.mark.parametrize(
    "shard",
    [
        replace(SHARD, index=3),
        replace(SHARD, index=-1),
        replace(SHARD, payload=SHARD.payload + b"\x00"),
        replace(SHARD, payload=b""),
        replace(SHARD, of=replace(OF, shape=Shape(1, 2, 4, 2048))),
        replace(SHARD, of=replace(OF, object_root=b"")),
    ],
)
def test_a_shard_that_could_not_be_read_is_not_written(shard: ShardV1) -> None:
    with pytest.raises((Malformed, ValueError)):
        NATIVE.encode_shard(shard)


@given(shard_sets, st.integers(-2, 2).filter(bool))
def test_only_an_object_that_fills_its_shards_is_cut(of: ShardSet, off: int) -> None:
    with pytest.raises(ValueError, match="fill"):
        NATIVE.cut(of, bytes(object_bytes(of.address, of.shape, of.erasure_mode) + off))


@given(shard_sets, st.integers(0, 1 << 30), st.data())
def test_any_k_payloads_restore_what_was_cut(of: ShardSet, seed: int, data: st.DataObject) -> None:
    size = object_bytes(of.address, of.shape, of.erasure_mode)
    encoded = seed.to_bytes(4, "big") * (size // 4) + bytes(size % 4)
    of = replace(of, object_root=h(encoded))
    payloads = NATIVE.cut(of, encoded)
    assert {len(payload) for payload in payloads} == {payload_bytes(of)}
    chosen = data.draw(st.permutations(range(of.shape.n)))[: of.shape.k]
    assert NATIVE.restore(of, {index: payloads[index] for index in chosen}) == encoded
    with pytest.raises(Unverified):
        NATIVE.restore(replace(of, object_root=bytes(32)), {index: payloads[index] for index in chosen})
