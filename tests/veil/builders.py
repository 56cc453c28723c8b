"""Builders of objects, shards and addresses for the tests of VEIL."""

from collections.abc import Iterable

from hypothesis import strategies as st

from veil import (
    NATIVE,
    Address,
    ErasureMode,
    Flags,
    ObjectV1,
    Published,
    Reassembled,
    Reassembly,
    Shape,
    ShardSet,
    ShardV1,
    SharedKey,
    SigningKey,
    publish,
)
from veil.codec import Form, payload_bytes
from veil.profiles import SHAPES
from veil.veil_limits import MAX_UINT16, MAX_UINT32

ADDRESS = Address(b"\x11" * 32, 42, 20_000)
KEY = SharedKey(b"\x22" * 32)
SIGNER = SigningKey(b"\x33" * 32)
NONCE = b"\x44" * 24
# Both sides of every change in the length of a CBOR head.
EDGES = (0, 1, 23, 24, 255, 256, 65_535, 65_536, MAX_UINT32)

namespaces = st.one_of(st.sampled_from([edge for edge in EDGES if edge <= MAX_UINT16]), st.integers(0, MAX_UINT16))
epochs = st.one_of(st.sampled_from(EDGES), st.integers(0, MAX_UINT32))
addresses = st.builds(Address, st.binary(min_size=32, max_size=32), namespaces, epochs)
modes = st.sampled_from(ErasureMode)
shapes = st.sampled_from(SHAPES)
shard_sets = st.builds(ShardSet, addresses, st.binary(min_size=32, max_size=32), shapes, modes)


@st.composite
def objects(draw: st.DrawFn) -> ObjectV1:
    """Any object that the native form can encode."""
    flags = Flags(draw(st.integers(0, 15)))
    signed = bool(flags & Flags.SIGNED)
    return ObjectV1(
        draw(addresses),
        flags,
        draw(st.binary(min_size=24, max_size=24)),
        draw(st.binary(min_size=1, max_size=400)),
        b"",
        draw(st.binary(min_size=32, max_size=32)) if signed else None,
        draw(st.binary(min_size=64, max_size=64)) if signed else None,
    )


@st.composite
def shards(draw: st.DrawFn) -> ShardV1:
    of = draw(shard_sets)
    byte = draw(st.binary(min_size=1, max_size=7))
    size = payload_bytes(of)
    return ShardV1(of, draw(st.integers(0, of.shape.n - 1)), (byte * size)[:size])


def published(size: int = 20_000, mode: ErasureMode = ErasureMode.HARDENED, shape: Shape | None = None) -> Published:
    return publish(pattern(size), ADDRESS, KEY, mode=mode, shape=shape, nonce=NONCE)


def pattern(size: int) -> bytes:
    """Bytes without repetition."""
    return b"".join(number.to_bytes(4, "big") for number in range((size + 3) // 4))[:size]


def restore(of: ShardSet, encoded: Iterable[bytes], form: Form = NATIVE) -> Reassembled | None:
    """Restore an object from encoded shards of one source."""
    reassembly, found = Reassembly(of, form), None
    for data in encoded:
        found = found or reassembly.add(form.decode_shard(data))
    return found


def corrupted(shard: bytes, at: int = -1) -> bytes:
    """The shard with one byte of its payload changed."""
    changed = bytearray(shard)
    changed[at] ^= 1
    return bytes(changed)
