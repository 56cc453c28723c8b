"""What a fuzzer needs to know about one decoder, and input that looks small and claims to be large."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from fuzz.damage import Sown, Span, cbor_spans, exchange_item, exchange_token, json_spans, no_spans
from tests.core.wire_strategies import barest, fullest
from veen.core import cbor, strict_json, wire_json
from veen.core.cbor import Wire
from veen.core.errors import Malformed

BOMB_ITEMS = 20_000

# A byte of CBOR can be an empty map, an object of eighty bytes; JSON needs three bytes for the same.
CBOR_FACTOR, JSON_FACTOR, RAW_FACTOR = 128, 48, 8

Decode = Callable[[bytes], Any]
Check = Callable[[Any, bytes], None]
Corpus = Callable[[], list[bytes]]


@dataclass(frozen=True, slots=True)
class Decoder:
    """One entry point: its decoder, the check for accepted input, and how to damage its input."""

    name: str
    decode: Decode
    check: Check
    corpus: Corpus
    bombs: list[bytes]
    memory_factor: int
    spans: Callable[[bytes], list[Span]]
    exchange: Callable[[Random, Sown, Sown], bytes]
    refusals: tuple[type[Exception], ...] = (Malformed,)
    entry: str = ""  # the function or method that it calls, as module:name; empty for `Wire.decode`


def is_the_one_encoding(wire: Wire, data: bytes) -> None:
    assert wire.encode() == data


def is_the_one_value(value: cbor.Value, data: bytes) -> None:
    assert cbor.encode(value) == data


def has_a_wire_form(wire: Wire, _: bytes) -> None:
    assert type(wire).decode(wire.encode()) == wire
    assert wire_json.decode(type(wire), wire_json.encode(wire)) == wire


def is_the_one_file(wire: Wire, data: bytes) -> None:
    assert wire_json.encode(wire) == data


def comes_back(shown: strict_json.Json, _: bytes) -> None:
    assert strict_json.decode(strict_json.encode(shown), "text") == shown


def samples(cls: type[Wire]) -> list[bytes]:
    return [fullest(cls).encode(), barest(cls).encode()]


def json_samples(cls: type[Wire]) -> list[bytes]:
    return [wire_json.encode(fullest(cls)), wire_json.encode(barest(cls))]


# Items that claim to be, or are, far larger than they look.
_COUNT = BOMB_ITEMS.to_bytes(4, "big")
CBOR_BOMBS = [
    *(bytes((major << 5 | 27,)) + claim for major in (2, 3, 4, 5) for claim in (b"\xff" * 8, b"\x00\x00\x00\x01" * 2)),
    *(
        b"\x9a" + _COUNT + item * BOMB_ITEMS
        for item in (b"\x00", b"\x80", b"\xa0", b"\x40", b"\xa1\x00\x00", b"\x81\x00")
    ),
    *(b"\x5a" + _COUNT + bytes(BOMB_ITEMS), b"\x7a" + _COUNT + b"a" * BOMB_ITEMS, b"\x81" * BOMB_ITEMS),
    b"\xba"
    + _COUNT
    + b"".join(b"\x1a" + (number + 65_536).to_bytes(4, "big") + b"\x00" for number in range(BOMB_ITEMS)),
]
JSON_BOMBS = [
    *(b"[" + b",".join([item] * BOMB_ITEMS) + b"]" for item in (b"0", b"[]", b"{}", b'""', b'{"a":0}')),
    *(b"[" * BOMB_ITEMS, b'{"a":' * BOMB_ITEMS, b"9" * BOMB_ITEMS),
    *(b'"' + b"ab" * 5 * BOMB_ITEMS + b'"', b'"' + b"\\u0061" * BOMB_ITEMS + b'"'),
    b"{" + b",".join(b'"%d":0' % number for number in range(BOMB_ITEMS)) + b"}",
]
RAW_BOMBS = [bytes(BOMB_ITEMS), b"\xff" * BOMB_ITEMS]


def cbor_decoder(
    name: str, decode: Decode, check: Check, corpus: Corpus, *refusals: type[Exception], entry: str = ""
) -> Decoder:
    return Decoder(
        name, decode, check, corpus, CBOR_BOMBS, CBOR_FACTOR, cbor_spans, exchange_item, refusals or (Malformed,), entry
    )


def json_decoder(
    name: str, decode: Decode, check: Check, corpus: Corpus, *refusals: type[Exception], entry: str = ""
) -> Decoder:
    return Decoder(
        name,
        decode,
        check,
        corpus,
        JSON_BOMBS,
        JSON_FACTOR,
        json_spans,
        exchange_token,
        refusals or (Malformed,),
        entry,
    )


def raw_decoder(
    name: str, decode: Decode, check: Check, corpus: Corpus, *refusals: type[Exception], entry: str = ""
) -> Decoder:
    """For formats of their own: damaged byte by byte, and by tokens where it is text."""
    return Decoder(
        name, decode, check, corpus, RAW_BOMBS, JSON_FACTOR, no_spans, exchange_bytes, refusals or (Malformed,), entry
    )


def exchange_bytes(rng: Random, sown: Sown, other: Sown) -> bytes:
    """Part of one input followed by part of another."""
    at, begin = int(rng.random() * (len(sown.data) + 1)), int(rng.random() * (len(other.data) + 1))
    return sown.data[:at] + other.data[begin:]
