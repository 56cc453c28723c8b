"""Every decoder against damaged input: it accepts or rejects, and never crashes, loops or exhausts memory.

    VEEN_FUZZ_SEED=7 VEEN_FUZZ_CASES=1000000 python -m pytest -m slow fuzz -k Receipt

The corpus starts with valid input and adds accepted input, so later cases are damaged repeatedly.
"""

import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest

from fuzz.damage import EDGES, Sown, Span, cbor_spans, exchange_item, exchange_token, json_spans, no_spans, pick
from tests.core.wire_strategies import ALL_WIRE, barest, fullest, mutate
from veen.core import cbor, ciphertext, hpke, strict_json, wire_json
from veen.core.cbor import Wire
from veen.core.ciphertext import PayloadHdr, Place, Sealer
from veen.core.errors import Malformed, Unverified, VeenError
from veen.core.hashing import U64_MAX, u32be
from veen.core.hpke import DhKey
from veen.core.hub_identity import HubIdentity, IdentitySignature
from veen.core.profile import Limits

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("VEEN_FUZZ_SEED") or Random().getrandbits(32))
CASES = int(os.environ.get("VEEN_FUZZ_CASES") or 100_000)
SHOWN_EVERY = 10_000
GROWN = 64  # seeds kept at once, in addition to the initial corpus
LARGEST_SEED = 2_000
SAMPLE = 400
BOMBS = 60
BOMB_ITEMS = 20_000

# A byte of CBOR can be an empty map, an object of eighty bytes; JSON needs three bytes for the same.
CBOR_FACTOR, JSON_FACTOR, RAW_FACTOR = 128, 48, 8
MEMORY_SPARE = 1 << 20

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
    refusals: tuple[type[VeenError], ...] = (Malformed,)


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


def cbor_decoder(name: str, decode: Decode, check: Check, corpus: Corpus) -> Decoder:
    return Decoder(name, decode, check, corpus, CBOR_BOMBS, CBOR_FACTOR, cbor_spans, exchange_item)


def json_decoder(name: str, decode: Decode, check: Check, corpus: Corpus) -> Decoder:
    return Decoder(name, decode, check, corpus, JSON_BOMBS, JSON_FACTOR, json_spans, exchange_token)


def wire_decoders() -> Iterator[Decoder]:
    for cls in ALL_WIRE:
        yield cbor_decoder(cls.__name__, cls.decode, is_the_one_encoding, partial(samples, cls))
        from_json = partial(wire_json.decode, cls)
        yield json_decoder(f"{cls.__name__} as JSON", from_json, has_a_wire_form, partial(json_samples, cls))
    for cls in (HubIdentity, IdentitySignature, Limits):
        from_file = partial(wire_json.decode_canonical, cls)
        yield json_decoder(f"{cls.__name__} file", from_file, is_the_one_file, partial(json_samples, cls))


def value_samples() -> list[bytes]:
    shapes: list[cbor.Value] = [(1, (2, {"a": None, "b": True})), {1: (), "": 0}, 0, -1, b"ab", "ü", (), {}]
    return [*map(cbor.encode, shapes), *(sample for cls in ALL_WIRE for sample in samples(cls) if sample[0] < 0xA0)]


def text_samples() -> list[bytes]:
    return [sample for cls in ALL_WIRE for sample in json_samples(cls)]


def open_decoders() -> Iterator[Decoder]:
    yield cbor_decoder("value", cbor.decode, is_the_one_value, value_samples)
    yield json_decoder("JSON text", partial(strict_json.decode, what="text"), comes_back, text_samples)


# Ciphertexts: from a stranger, and from a hostile writer who knows the reader's public key.

READER = DhKey(bytes(range(32)))
PLACE = Place(bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32, 4, 5, bytes([6]) * 32)
LIMITS = Limits()
BODIES = [b"", b"a", bytes(300)]
HEADERS = [PayloadHdr(bytes(32)), PayloadHdr(bytes([9]) * 32, bytes(32), bytes(32), PLACE.auth_ref, U64_MAX)]
LENGTHS_END = hpke.ENC_BYTES + 8
# Points with a publicly known shared secret: RFC 7748 §6.1 requires rejecting them.
SMALL_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    ((1 << 255) - 20).to_bytes(32, "little"),
    ((1 << 255) - 19).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


def sealed_by_a_stranger() -> list[bytes]:
    """From fixed keys, so a seed always gives the same cases."""
    parts = enumerate(product(HEADERS, BODIES, (0, 256)))
    return [
        Sealer(READER.public_key, PLACE, DhKey(bytes((number,)) * 32)).seal(header, body, pad_block)
        for number, (header, body, pad_block) in parts
    ]


def seal_raw(rng: Random, header: bytes, body: bytes) -> bytes:
    """A ciphertext that authenticates, around an arbitrary header."""
    enc, context = hpke.setup_sender(READER.public_key, ephemeral=DhKey(rng.randbytes(32)))
    aad = PLACE.aad()
    sealed_hdr = context.seal(aad, header)
    sealed_body = hpke.xchacha_seal(context.export(b"veen/body-k", hpke.KEY_BYTES), PLACE.nonce(), aad, body)
    return enc + u32be(len(sealed_hdr)) + u32be(len(sealed_body)) + sealed_hdr + sealed_body


def exchange_part(rng: Random, sown: Sown, other: Sown) -> bytes:
    """A ciphertext with another key, other lengths, other padding, or a header that a hostile writer sealed."""
    data = sown.data
    match int(rng.random() * 6):
        case 0:
            return pick(rng, SMALL_ORDER) + data[hpke.ENC_BYTES :]
        case 1:
            at = hpke.ENC_BYTES + 4 * int(rng.random() * 2)
            return data[:at] + (pick(rng, EDGES) & 0xFFFFFFFF).to_bytes(4, "big") + data[at + 4 :]
        case 2:
            return data + bytes(int(rng.random() * 40)) + rng.randbytes(int(rng.random() * 2))
        case 3:
            return other.data[: hpke.ENC_BYTES] + data[hpke.ENC_BYTES :]
        case 4:
            return data[: int(rng.random() * len(data))]
    header = mutate(rng, HEADERS[1].encode(), HEADERS[0].encode())
    return seal_raw(rng, header, rng.randbytes(int(rng.random() * 40)))


def is_within_its_limits(lengths: tuple[int, int], data: bytes) -> None:
    hdr_len, body_len = lengths
    assert 0 <= hdr_len <= LIMITS.max_hdr_bytes
    assert 0 <= body_len <= LIMITS.max_body_bytes
    assert LENGTHS_END + hdr_len + body_len <= len(data)


def was_sealed(opened: ciphertext.Opened, data: bytes) -> None:
    hdr_len, body_len = ciphertext.check_sizes(data, LIMITS)
    assert not any(data[LENGTHS_END + hdr_len + body_len :])
    assert PayloadHdr.decode(opened.header.encode()) == opened.header
    assert len(opened.body) + hpke.TAG_BYTES == body_len
    assert opened.header.cap_ref in (None, PLACE.auth_ref)


def ciphertext_decoders() -> Iterator[Decoder]:
    corpus = sealed_by_a_stranger
    check_sizes = partial(ciphertext.check_sizes, limits=LIMITS)
    yield Decoder(
        "ciphertext sizes", check_sizes, is_within_its_limits, corpus, RAW_BOMBS, RAW_FACTOR, no_spans, exchange_part
    )
    open_sealed = partial(ciphertext.open_sealed, READER, PLACE, limits=LIMITS)
    yield Decoder(
        "ciphertext",
        open_sealed,
        was_sealed,
        corpus,
        RAW_BOMBS,
        JSON_FACTOR,
        no_spans,
        exchange_part,
        (Malformed, Unverified),
    )


DECODERS = [*wire_decoders(), *open_decoders(), *ciphertext_decoders()]
each = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)


def cases(decoder: Decoder, rng: Random, corpus: list[Sown]) -> Iterator[bytes]:
    """Endless damaged input: some random bytes, the rest valid input with changes or replaced parts."""
    while True:
        sown, other = pick(rng, corpus), pick(rng, corpus)
        how = rng.random()
        if how < 0.02:
            yield rng.randbytes(int(rng.random() ** 3 * 300))
        elif how < 0.5:
            yield mutate(rng, sown.data, other.data)
        elif how < 0.9:
            yield decoder.exchange(rng, sown, other)
        else:
            yield mutate(rng, decoder.exchange(rng, sown, other), other.data)


def sow(decoder: Decoder) -> list[Sown]:
    return [Sown(data, decoder.spans(data)) for data in decoder.corpus()]


def bombs(decoder: Decoder, rng: Random, sown: Sown) -> Iterator[bytes]:
    """Valid input with a bomb in place of one part."""
    for _ in range(BOMBS):
        start, _, end = pick(rng, sown.spans)
        yield sown.data[:start] + pick(rng, decoder.bombs) + sown.data[end:]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Overwrites the last line of a terminal; prints nothing elsewhere."""

    def shown(line: str) -> None:
        with capsys.disabled():
            if sys.stderr.isatty():
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    return shown


def accepts(decoder: Decoder, data: bytes) -> bool:
    """Whether it decodes; accepted input must pass the check."""
    try:
        found = decoder.decode(data)
    except decoder.refusals:
        return False
    try:
        decoder.check(found, data)
    except VeenError as error:
        raise AssertionError("accepted, and then rejected in another form") from error
    return True


@each
def test_a_decoder_accepts_or_rejects_any_input(decoder: Decoder, show: Callable[[str], None]) -> None:
    print(f"VEEN_FUZZ_SEED={SEED} VEEN_FUZZ_CASES={CASES}")
    rng = Random(f"{SEED} {decoder.name}")
    corpus = sow(decoder)
    sown, accepted = len(corpus), 0
    for number, data in zip(range(CASES), cases(decoder, rng, corpus), strict=False):
        if number % SHOWN_EVERY == 0:
            show(f"{decoder.name}: {number} of {CASES}, {accepted} accepted")
        try:
            good = accepts(decoder, data)
        except BaseException as error:
            error.add_note(f"{decoder.name}, case {number}, VEEN_FUZZ_SEED={SEED}: {data.hex()}")
            raise
        accepted += good
        if good and len(data) <= LARGEST_SEED:
            # The initial corpus stays; otherwise it would drift to whatever is easiest to accept.
            at = len(corpus) if len(corpus) < sown + GROWN else sown + int(rng.random() * GROWN)
            corpus[at : at + 1] = [Sown(data, decoder.spans(data))]
    show("")
    assert accepted > CASES // 1_000


@each
def test_memory_use_is_proportional_to_the_input(decoder: Decoder) -> None:
    print(f"VEEN_FUZZ_SEED={SEED}")
    rng = Random(f"{SEED} {decoder.name} memory")
    corpus = sow(decoder)
    sample = [data for _, data in zip(range(SAMPLE), cases(decoder, rng, corpus), strict=False)]
    tracemalloc.start()
    try:
        for data in [*sample, *bombs(decoder, rng, corpus[0])]:
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            with suppress(*decoder.refusals):
                decoder.decode(data)
            taken = tracemalloc.get_traced_memory()[1] - held
            assert taken <= decoder.memory_factor * len(data) + MEMORY_SPARE, data[:200].hex()
    finally:
        tracemalloc.stop()


def test_decoder_names_are_unique() -> None:
    assert len({decoder.name for decoder in DECODERS}) == len(DECODERS)
    assert len(DECODERS) == 2 * len(ALL_WIRE) + 7
