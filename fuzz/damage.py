"""Ways to damage valid input for a decoder: by CBOR items, JSON tokens, DER elements and lines of text."""

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

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_OCTET_STRING = 4

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


def der_spans(data: bytes) -> list[Span]:
    """Every element of DER, also those inside an OCTET STRING that holds DER."""
    found: list[Span] = []
    _der_elements(data, 0, len(data), found)
    return found


def _der_elements(data: bytes, start: int, end: int, found: list[Span]) -> bool:
    """Add the elements between two offsets. Returns False, with nothing added, if there is anything else."""
    before = len(found)
    while start < end:
        body = start + 2
        if body > end:
            break
        length = data[start + 1]
        if length > 0x80:
            body += length - 0x80
            length = int.from_bytes(data[start + 2 : body], "big")
        if length == 0x80 or body + length > end:
            break
        found.append((start, body, body + length))
        if data[start] & 0x20 or data[start] == _OCTET_STRING:
            _der_elements(data, body, body + length, found)
        start = body + length
    if start != end:
        del found[before:]
    return start == end


def der_element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def exchange_element(rng: Random, sown: Sown, other: Sown) -> bytes:
    """DER with one element changed, doubled, dropped or replaced. Mostly, the lengths around it are made to fit."""
    data = sown.data
    start, body, end = pick(rng, sown.spans)
    element = data[start:end]
    match int(rng.random() * 6):
        case 0:
            new = element + element
        case 1:
            new = b""
        case 2:
            new = der_element(data[start], rng.randbytes(int(rng.random() * 12)))
        case 3:
            new = bytes((data[start] ^ 1 << int(rng.random() * 8),)) + data[start + 1 : end]
        case 4:
            at = int(rng.random() * (end - body + 1))
            new = der_element(data[start], data[body : body + at] + rng.randbytes(1) + data[body + at + 1 : end])
        case _:
            other_start, _, other_end = pick(rng, other.spans)
            new = other.data[other_start:other_end]
    if rng.random() < 0.1:
        return data[:start] + new + data[end:]
    around = [span for span in sown.spans if span[0] < start and end <= span[2]]
    for outer_start, outer_body, outer_end in sorted(around, reverse=True):
        new = der_element(data[outer_start], data[outer_body:start] + new + data[end:outer_end])
        start, end = outer_start, outer_end
    return data[:start] + new + data[end:]


def line_spans(data: bytes) -> list[Span]:
    """Every line of a text, with its end."""
    return [(found.start(), found.start(), found.end()) for found in _LINE.finditer(data)]


def exchange_line(rng: Random, sown: Sown, other: Sown) -> bytes:
    """Text with one line doubled elsewhere, dropped, replaced, or with one of its tokens exchanged."""
    data = sown.data
    start, _, end = pick(rng, sown.spans)
    match int(rng.random() * 5):
        case 0:
            _, _, at = pick(rng, sown.spans)
            return data[:at] + data[start:end] + data[at:]
        case 1:
            return data[:start] + data[end:]
        case 2:
            other_start, _, other_end = pick(rng, other.spans)
            return data[:start] + other.data[other_start:other_end] + data[end:]
    line = Sown(data[start:end], json_spans(data[start:end]))
    return data[:start] + exchange_token(rng, line, line) + data[end:] if line.spans else data[:start] + data[end:]
