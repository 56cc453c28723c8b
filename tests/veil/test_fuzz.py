"""Decoders return a value or raise `Malformed` for any bytes, and accept exactly one encoding per value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.veil.builders import ADDRESS, KEY, SIGNER, published
from veil import NATIVE, GroupSecret, Malformed, Unverified, dialect, publish
from veil.assembly import decode_batch, encode_batch
from veil.dialect import DIALECT
from veil.encryption import Letter, pad, read_letter, unpad, write_letter


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder, a valid input, and its encoder, with one or two accepted encodings."""

    decode: Callable[[bytes], object]
    good: bytes
    encode: Callable[[Any], bytes] | None = None
    spellings: int = 1


def letter(payload: bytes) -> Letter | None:
    try:
        return read_letter(ADDRESS, payload)
    except Unverified:
        return None


SMALL_OBJECT = publish(b"x", ADDRESS, KEY, signer=SIGNER)
OLD = dialect.publish(b"x" * 40, ADDRESS, signer=SIGNER)
DECODERS = {
    "native object": Decoder(NATIVE.decode_object, SMALL_OBJECT.encoded, NATIVE.encode_object),
    "native shard": Decoder(NATIVE.decode_shard, SMALL_OBJECT.shards[1], NATIVE.encode_shard),
    "batch": Decoder(decode_batch, encode_batch((b"a", b"b" * 30, b"")), encode_batch),
    "letter": Decoder(letter, write_letter(ADDRESS, SIGNER, b"body")),
    "group secret": Decoder(GroupSecret.decode, GroupSecret.create().encode(), GroupSecret.encode),
    "padding": Decoder(unpad, pad(b"payload", 30)),
    "dialect object": Decoder(DIALECT.decode_object, OLD.encoded, DIALECT.encode_object, 2),
    "dialect shard": Decoder(DIALECT.decode_shard, OLD.shards[1], DIALECT.encode_shard, 2),
    "dialect shard id": Decoder(DIALECT.shard_id, OLD.shards[1]),
    "dialect batch": Decoder(
        dialect.decode_batch, dialect.encode_batch((b"a", b"\x18\xff" * 9)), dialect.encode_batch, 2
    ),
    "dialect ack": Decoder(dialect.decode_ack, dialect.encode_ack(bytes(32)), dialect.encode_ack),
    "dialect shard request": Decoder(
        dialect.ShardRequest.decode,
        dialect.ShardRequest(bytes(32), bytes(32), 6, 10, (1, 2), 1).encode(),
        dialect.ShardRequest.encode,
    ),
}


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Valid bytes after a few cuts, changes, insertions and repetitions, mostly in structural bytes."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        near = min(len(data), 260) if draw(st.booleans()) else len(data)
        at = draw(st.integers(0, max(near - 1, 0)))
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[at] = draw(st.integers(0, 255))
            case 1 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                del data[at : at + draw(st.integers(1, 40))]
            case 3:
                data[at:at] = draw(st.binary(min_size=1, max_size=9))
            case 4:
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case _:
                del data[at:]
    return bytes(data)


def check_canonical(decoder: Decoder, data: bytes) -> bool:
    """Whether the decoder accepted the bytes. Any exception other than `Malformed` fails the test."""
    try:
        value = decoder.decode(data)
    except Malformed:
        return False
    if decoder.encode is not None:
        again = decoder.encode(value)
        assert again == data if decoder.spellings == 1 else decoder.decode(again) == value
    return True


@pytest.mark.parametrize("name", DECODERS)
def test_a_valid_encoding_is_accepted(name: str) -> None:
    assert check_canonical(DECODERS[name], DECODERS[name].good)


@pytest.mark.parametrize("name", DECODERS)
@given(st.binary(max_size=200))
def test_any_bytes_are_canonical_or_malformed(name: str, data: bytes) -> None:
    check_canonical(DECODERS[name], data)


@pytest.mark.parametrize("name", DECODERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300)
@given(st.data())
def test_damaged_bytes_are_canonical_or_malformed(name: str, data: st.DataObject) -> None:
    check_canonical(DECODERS[name], data.draw(damaged(DECODERS[name].good)))


@pytest.mark.parametrize(
    "name", ["native object", "batch", "letter", "group secret", "dialect object", "dialect shard request"]
)
def test_a_truncated_or_extended_encoding_is_rejected(name: str) -> None:
    decoder = DECODERS[name]
    short = decoder.good if len(decoder.good) < 600 else decoder.good[:300]
    for length in range(len(short)):
        assert not check_canonical(decoder, decoder.good[:length])
    assert not check_canonical(decoder, decoder.good + b"\x00")


@settings(max_examples=50)
@given(st.data())
def test_bytes_of_a_bucket_are_a_shard_or_malformed(data: st.DataObject) -> None:
    """The length is valid, so the decoder reads the content."""
    good = published(100).shards[0]
    at = data.draw(st.integers(0, 100))
    piece = data.draw(st.binary(min_size=1, max_size=20))
    check_canonical(DECODERS["native shard"], good[:at] + piece + good[at + len(piece) :])
