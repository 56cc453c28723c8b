"""Ways to damage valid input for a decoder: by CBOR items and by JSON tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tests.core.wire_strategies import TELLING, parse
from veen.core.hashing import U64_MAX

EDGES = [n for power in (0, 8, 16, 32, 63, 64) for n in ((1 << power) - 1, 1 << power) if n <= U64_MAX] + [23, 24, 65]
WIDTHS = (0, 1, 2, 4, 8)
SNIPPETS = [
    *(b"null", b"true", b"false", b"0", b"1", b"2", b"-0", b"-1", b"1.0", b"1e3", b"NaN", b"Infinity", b"01", b'""'),
    *(b"18446744073709551615", b"18446744073709551616", b"99999999999999999999", b"9" * 5_000, b"{}", b"[]", b"[[]]"),
    *(
        b'"\\ud800"',
        b'"\\u0061"',
        b'"\xff"',
        b'"AB"',
        b'"abc"',
        b'"ver"',
        b'{"":0}',
        b"\xef\xbb\xbf",
        b" ",
        b"[" * 3_000,
    ),
]
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|[^\s]')

Span = tuple[int, int, int]  # start of an item, start of its content, end


@dataclass(frozen=True, slots=True)
class Sown:
    """Valid input and the positions of its replaceable parts."""

    data: bytes
    spans: list[Span]


def cbor_spans(data: bytes) -> list[Span]:
    return [(item.start, item.body, item.end) for item in parse(data).walk()]


def json_spans(data: bytes) -> list[Span]:
    return [(found.start(), found.start(), found.end()) for found in _TOKEN.finditer(data)]


def no_spans(data: bytes) -> list[Span]:
    return [(0, 0, len(data))]


T = TypeVar("T")


def pick(rng: Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]


def new_head(rng: Random, initial: int) -> bytes:
    """A head of the same type with an extreme argument, at any width that can hold it."""
    argument, width = pick(rng, EDGES), pick(rng, WIDTHS)
    if width == 0:
        return bytes((initial & 0xE0 | argument & 31,))
    info = 23 + width.bit_length()
    return bytes((initial & 0xE0 | info,)) + (argument & (1 << 8 * width) - 1).to_bytes(width, "big")


def exchange_item(rng: Random, sown: Sown, other: Sown) -> bytes:
    """CBOR with one item given another head, wrapped, doubled, dropped, or replaced by an item of another input."""
    data = sown.data
    start, body, end = pick(rng, sown.spans)
    match int(rng.random() * 7):
        case 0:
            return data[:start] + new_head(rng, data[start]) + data[body:]
        case 1:
            return data[:start] + data[start:end] + data[start:]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:start] + bytes((pick(rng, b"\xc0\xc2\xd7\x81\xa1"),)) + data[start:]
        case 4:
            return data[:start] + bytes((data[start] & 0xE0 | 31,)) + data[start:end] + b"\xff" + data[end:]
        case 5:
            return data[:start] + bytes((pick(rng, TELLING),)) + data[end:]
    other_start, _, other_end = pick(rng, other.spans)
    return data[:start] + other.data[other_start:other_end] + data[end:]


def exchange_token(rng: Random, sown: Sown, other: Sown) -> bytes:
    """JSON with one token doubled, dropped, or replaced by another token or by a suspicious one."""
    data = sown.data
    start, _, end = pick(rng, sown.spans)
    match int(rng.random() * 5):
        case 0:
            return data[:end] + data[start:end] + data[end:]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:start] + pick(rng, SNIPPETS) + data[end:]
        case 3:
            own_start, _, own_end = pick(rng, sown.spans)
            return data[:start] + data[own_start:own_end] + data[end:]
    other_start, _, other_end = pick(rng, other.spans)
    return data[:start] + other.data[other_start:other_end] + data[end:]
