"""Every decoder against damaged input: it accepts or rejects, and never crashes, loops or exhausts memory.

    VEEN_FUZZ_SEED=7 VEEN_FUZZ_CASES=1000000 python -m pytest -m slow fuzz -k Receipt

The corpus starts with valid input and adds accepted input, so later cases are damaged repeatedly. A few cases of each
decoder run with the other tests. `make test-slow` spends CPU_MINUTES of processor time, shared among the decoders.
"""

import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from random import Random
from time import process_time

import pytest

from fuzz.damage import EDGES, Sown, no_spans, pick
from fuzz.decoder import (
    JSON_FACTOR,
    RAW_BOMBS,
    RAW_FACTOR,
    Decoder,
    cbor_decoder,
    comes_back,
    has_a_wire_form,
    is_the_one_encoding,
    is_the_one_file,
    is_the_one_value,
    json_decoder,
    json_samples,
    samples,
)
from fuzz.network_decoders import network_decoders
from fuzz.outer_decoders import WITHOUT_SEEDS, outer_decoders
from tests.core.wire_strategies import ALL_WIRE, mutate
from veen.core import cbor, ciphertext, hpke, strict_json, wire_json
from veen.core.ciphertext import PayloadHdr, Place, Sealer
from veen.core.errors import Malformed, Unverified, VeenError
from veen.core.hashing import U64_MAX, u32be
from veen.core.hpke import DhKey
from veen.core.hub_identity import HubIdentity, IdentitySignature
from veen.core.profile import Limits

SEED = int(os.environ.get("VEEN_FUZZ_SEED") or Random().getrandbits(32))
CASES = int(os.environ.get("VEEN_FUZZ_CASES") or 0)  # of each decoder; 0: by processor time
CPU_MINUTES = 24
FEW = 100
GROWN = 64  # seeds kept at once, in addition to the initial corpus
LARGEST_SEED = 2_000
SAMPLE = 400
BOMBS = 60
MEMORY_SPARE = 1 << 20
READ_BUFFER = 1 << 24  # of a file that is read at once
READ_AT_ONCE = {"query tokens", "anchor file"}
CALLS_PER_BYTE, CALLS_SPARE = 8, 20_000


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


CORE = [*wire_decoders(), *open_decoders(), *ciphertext_decoders()]
DECODERS = [*CORE, *outer_decoders(), *network_decoders()]
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


def bombs(decoder: Decoder, rng: Random, sown: Sown, count: int) -> Iterator[bytes]:
    """Valid input with a bomb in place of one part."""
    for _ in range(count):
        start, _, end = pick(rng, sown.spans)
        yield sown.data[:start] + pick(rng, decoder.bombs) + sown.data[end:]


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


def fuzz(decoder: Decoder, seed: object, goes_on: Callable[[int], bool]) -> tuple[int, int]:
    """Decode damaged input until `goes_on` says no; returns how many there were, and how many were accepted."""
    rng = Random(f"{seed} {decoder.name}")
    corpus = sow(decoder)
    sown, accepted, number = len(corpus), 0, 0
    for number, data in enumerate(cases(decoder, rng, corpus)):
        if not goes_on(number):
            break
        try:
            good = accepts(decoder, data)
        except BaseException as error:
            error.add_note(f"{decoder.name}, case {number}, VEEN_FUZZ_SEED={seed}: {data.hex()}")
            raise
        accepted += good
        if good and len(data) <= LARGEST_SEED and (spans := decoder.spans(data)):
            # The initial corpus stays; otherwise it would drift to whatever is easiest to accept.
            at = len(corpus) if len(corpus) < sown + GROWN else sown + int(rng.random() * GROWN)
            corpus[at : at + 1] = [Sown(data, spans)]
    return number, accepted


@each
def test_a_decoder_accepts_or_rejects_a_few_inputs(decoder: Decoder) -> None:
    tried, _ = fuzz(decoder, 1, lambda number: number < FEW)
    assert tried == FEW
    rng = Random(decoder.name)
    answers = [accepts(decoder, data) for data in bombs(decoder, rng, sow(decoder)[0], len(decoder.bombs))]
    assert len(answers) == len(decoder.bombs) > 0


@pytest.mark.slow
@each
def test_a_decoder_accepts_or_rejects_any_input(decoder: Decoder) -> None:
    print(f"VEEN_FUZZ_SEED={SEED}")
    until = process_time() + 60 * CPU_MINUTES / len(DECODERS)
    tried, accepted = fuzz(decoder, SEED, lambda number: number < CASES if CASES else process_time() < until)
    assert decoder not in CORE or accepted >= tried // 1_000


@each
def test_the_seeds_of_a_decoder_are_accepted(decoder: Decoder) -> None:
    seeds = decoder.corpus()
    assert any(accepts(decoder, data) for data in seeds) != (decoder.name in WITHOUT_SEEDS)


@pytest.mark.slow
@each
def test_memory_and_calls_are_proportional_to_the_input(decoder: Decoder) -> None:
    """Calls are counted instead of time, which depends on the machine."""
    print(f"VEEN_FUZZ_SEED={SEED}")
    rng = Random(f"{SEED} {decoder.name} memory")
    corpus = sow(decoder)
    sample = [data for _, data in zip(range(SAMPLE), cases(decoder, rng, corpus), strict=False)]
    for data in [*sample, *bombs(decoder, rng, corpus[0], BOMBS)]:
        taken, calls = cost(decoder, data)
        spare = MEMORY_SPARE + (READ_BUFFER if decoder.name in READ_AT_ONCE else 0)
        assert taken <= decoder.memory_factor * len(data) + spare, data[:200].hex()
        assert calls <= CALLS_PER_BYTE * len(data) + CALLS_SPARE, data[:200].hex()


def cost(decoder: Decoder, data: bytes) -> tuple[int, int]:
    """The bytes that a decoder allocates at most at once, and the number of functions that it calls."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    try:
        with suppress(*decoder.refusals):
            decoder.decode(data)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sys.setprofile(count)
    try:
        with suppress(*decoder.refusals):
            decoder.decode(data)
    finally:
        sys.setprofile(None)
    return taken, calls


def test_decoder_names_are_unique() -> None:
    assert len({decoder.name for decoder in DECODERS}) == len(DECODERS)
    assert len(CORE) == 2 * len(ALL_WIRE) + 7
