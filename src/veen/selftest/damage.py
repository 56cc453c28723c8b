"""Ways to damage good input: by bytes, by the items of CBOR, and by the tokens of JSON."""

import re
from random import Random

from veen.core import Malformed
from veen.core.cbor.value import read_value
from veen.core.hashing import U64_MAX

# One-byte items of every type, an indefinite one of each that can be, tags, floats, and heads that claim too much.
_TELLING = (
    *(b"\x00", b"\x17", b"\x20", b"\x40", b"\x60", b"\x80", b"\xa0", b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\xff"),
    *(b"\x5f\xff", b"\x7f\xff", b"\x9f\xff", b"\xbf\xff", b"\xc0\x00", b"\xd9\xd9\xf7\x00", b"\xf9\x00\x00"),
    *(b"\x18\x00", b"\x19\x00\x01", b"\x1b" + b"\xff" * 8, b"\x3b" + b"\xff" * 8, b"\xfb" + bytes(8), b"\xf8\xff"),
    *(b"\x5b" + b"\xff" * 8, b"\x7a\xff\xff\xff\xff", b"\x9b" + b"\xff" * 8, b"\xbb" + b"\xff" * 8, b"\x81" * 64),
    *(b"\x58\x20" + bytes(32), b"\x58\x1f" + bytes(31), b"\x58\x40" + bytes(64), b"\x62\xff\xff"),
)
_SNIPPETS = (
    *(b"null", b"true", b"0", b"1", b"2", b"-1", b"-0", b"1.0", b"1e3", b"NaN", b"01", b'""', b"{}", b"[]", b"[[]]"),
    *(b"%d" % U64_MAX, b"%d" % (U64_MAX + 1), b"9" * 400, b'"\\ud800"', b'"\xff"', b'"AB"', b'"abc"', b'"ver"'),
    *(b'{"":0}', b"\xef\xbb\xbf", b"[" * 300, b'{"a":' * 300),
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|[^\s]')
_LONGEST = 40


def bytewise(rng: Random, data: bytes) -> bytes:
    """One bit, byte or stretch otherwise."""
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randint(1, _LONGEST))
    match rng.randrange(7):
        case 0:
            return data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        case 1:
            return data[:start] + rng.randbytes(1) + data[start + 1 :]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:end] + data[start:end] + data[end:]
        case 4:
            return data[:start] + rng.randbytes(end - start) + data[start:]
        case 5:
            return data[:start]
    return data[:start] + rng.choice(_TELLING) + data[start:]


def itemwise(rng: Random, data: bytes) -> bytes:
    """One item of the outermost array or map dropped, doubled, exchanged for another, or for a telling one."""
    spans = _spans(data)
    start, end = rng.choice(spans)
    match rng.randrange(5):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:end] + data[end:]
        case 2:
            other_start, other_end = rng.choice(spans)
            return data[:start] + data[other_start:other_end] + data[end:]
        case 3:
            return bytes([data[0] & 0xE0 | rng.randrange(24)]) + data[1:]
    return data[:start] + rng.choice(_TELLING) + data[end:]


def tokenwise(rng: Random, data: bytes) -> bytes:
    """One token of a JSON text dropped, doubled, or exchanged for another."""
    tokens = [found.span() for found in _TOKEN.finditer(data)]
    start, end = rng.choice(tokens)
    match rng.randrange(4):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:end] + data[end:]
        case 2:
            other_start, other_end = rng.choice(tokens)
            return data[:start] + data[other_start:other_end] + data[end:]
    return data[:start] + rng.choice(_SNIPPETS) + data[end:]


def item(rng: Random) -> bytes:
    """An item that is not what it stands in for."""
    return rng.choice(_TELLING)


def _spans(data: bytes) -> list[tuple[int, int]]:
    """Where the items of the outermost array or map are, its keys and values alike."""
    spans, pos = [], 1
    try:
        while pos < len(data):
            _, end = read_value(data, pos)
            spans.append((pos, end))
            pos = end
    except Malformed:
        spans.append((pos, len(data)))
    return spans or [(0, len(data))]
