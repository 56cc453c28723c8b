"""Named ways to damage an encoding, each with the fault that a reader must report.

The fault is CBOR if the bytes are not the deterministic encoding of the object's fields, SIZE if they are and a field
has the wrong length, and VERSION if only the version is wrong. If several apply, the first counts.
"""

from collections.abc import Iterator
from typing import TypeAlias

from vectors.spans import ARRAY, BSTR, MAP, SIMPLE, TEXT, UINT, Item

Spoiled: TypeAlias = tuple[str, str, bytes]

NULLABLE = {"auth_ref"}
ANY_LENGTH = {"ciphertext"}
TRIMMED = {"witness_sigs"}
OPEN_MAPS = {"detail"}

NULL, UNDEFINED = b"\xf6", b"\xf7"
# Values that no field ever has.
STRANGERS = {
    "null": NULL,
    "undefined": UNDEFINED,
    "a half float": b"\xf9\x3c\x00",
    "a negative integer": b"\x20",
    "a bignum": b"\xc2\x41\x01",
    "a reserved length": b"\x1c",
    "a break": b"\xff",
}
HUGE = b"\xff" * 8


def whole(data: bytes) -> Iterator[Spoiled]:
    """Faults of the bytes as a whole."""
    yield "empty", "CBOR", b""
    yield "first byte only", "CBOR", data[:1]
    yield "first half only", "CBOR", data[: len(data) // 2]
    yield "last byte missing", "CBOR", data[:-1]
    yield "a zero byte after the end", "CBOR", data + b"\0"
    yield "a null after the end", "CBOR", data + NULL
    yield "twice in a row", "CBOR", data + data
    yield "tagged as CBOR", "CBOR", b"\xd9\xd9\xf7" + data
    yield "wrapped in an array", "CBOR", b"\x81" + data
    yield "wrapped in a byte string", "CBOR", b"\x59" + len(data).to_bytes(2, "big") + data
    yield "a hundred nested arrays", "CBOR", b"\x81" * 100
    for name in ("null", "undefined", "a half float", "a break"):
        yield f"{name} instead", "CBOR", STRANGERS[name]


def within(data: bytes, item: Item, depth: int) -> Iterator[Spoiled]:
    """Faults of an item and, down to `depth`, of its children; in a list, only of the first."""
    for name, fault, replacement in _spoil(data, item):
        where = item.name or "whole"
        yield f"{where}: {name}", fault, data[: item.start] + replacement + data[item.end :]
    if depth == 0 or item.field in OPEN_MAPS:
        return
    values = item.children[1::2] if item.major == MAP else item.children
    for child in values[:1] if item.is_list else values:
        yield from within(data, child, depth - 1)


def _spoil(data: bytes, item: Item) -> Iterator[Spoiled]:
    own = data[item.start : item.end]
    if item.name:
        for name, stranger in STRANGERS.items():
            if name != "null" or item.field not in NULLABLE:
                yield name, "CBOR", stranger
        yield "tagged", "CBOR", b"\xc1" + own
    if item.major == UINT:
        yield from _uint(item)
    elif item.major in (BSTR, TEXT):
        yield from _string(data, item)
    elif item.major == ARRAY:
        yield from _array(data, item)
    elif item.major == MAP:
        yield from _map(data, item)
    elif item.major == SIMPLE:
        yield "as an integer", "CBOR", b"\x01"
        yield "in two bytes", "CBOR", b"\xf8" + bytes((own[0] & 0x1F,))


def _longer_heads(item: Item) -> Iterator[tuple[int, bytes]]:
    """Every head that encodes the same in more bytes than necessary, with its length."""
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        least = 24 if width == 1 else 1 << 4 * width
        if item.argument < least:
            yield width + 1, bytes((item.major << 5 | info,)) + item.argument.to_bytes(width, "big")


def _uint(item: Item) -> Iterator[Spoiled]:
    for length, head in _longer_heads(item):
        yield f"in {length} bytes", "CBOR", head
    yield "as a byte string", "CBOR", b"\x41\x01"
    yield "as text", "CBOR", b"\x611"
    yield "true", "CBOR", b"\xf5"
    if item.field == "ver":
        yield "version 0", "VERSION", b"\x00"
        yield "version 2", "VERSION", b"\x02"
        yield "version 2^64-1", "VERSION", b"\x1b" + HUGE


def _string(data: bytes, item: Item) -> Iterator[Spoiled]:
    own, content = data[item.start : item.end], data[item.content : item.end]
    top = item.major << 5
    yield "indefinite length", "CBOR", bytes((top | 0x1F,)) + own + b"\xff"
    for length, head in _longer_heads(item):
        yield f"a head of {length} bytes", "CBOR", head + content
    yield "claims 2^64-1 bytes", "CBOR", bytes((top | 27,)) + HUGE + content
    yield "claims 2^32-1 bytes", "CBOR", bytes((top | 26,)) + HUGE[:4] + content
    yield "of the other string type", "CBOR", bytes((own[0] ^ 0x20,)) + own[1:]
    yield "as an array of bytes", "CBOR", b"\x81\x00"
    if item.major == TEXT:
        yield "not UTF-8", "CBOR", own[:-1] + b"\xff"
        yield "half a surrogate pair", "CBOR", b"\x63\xed\xa0\x80"
        yield "an overlong UTF-8 form", "CBOR", b"\x62\xc0\x80"
    elif item.field not in ANY_LENGTH:
        yield "one byte short", "SIZE", _bstr(content[:-1])
        yield "one byte long", "SIZE", _bstr(content + b"\0")
        yield "no bytes", "SIZE", b"\x40"


def _bstr(content: bytes) -> bytes:
    assert len(content) < 256
    return (b"\x58" + bytes((len(content),)) if len(content) >= 24 else bytes((0x40 | len(content),))) + content


def _container(data: bytes, item: Item) -> Iterator[Spoiled]:
    """Faults that arrays and maps share. A count that is off by one shifts everything after it."""
    content, top = data[item.content : item.end], item.major << 5
    yield "indefinite length", "CBOR", bytes((top | 0x1F,)) + content + b"\xff"
    yield "count in two bytes", "CBOR", bytes((top | 24, item.argument)) + content
    yield "count one more", "CBOR", bytes((top | item.argument + 1,)) + content
    yield "count one less", "CBOR", bytes((top | item.argument - 1,)) + content
    yield "claims 2^64-1 entries", "CBOR", bytes((top | 27,)) + HUGE + content
    yield "claims 2^32-1 entries", "CBOR", bytes((top | 26,)) + HUGE[:4] + content
    yield "an array for a map, or a map for an array", "CBOR", bytes((data[item.start] ^ 0x20,)) + content


def _array(data: bytes, item: Item) -> Iterator[Spoiled]:
    yield from _container(data, item)
    if item.is_list:
        return
    more, fewer = bytes((0x80 | item.argument + 1,)), bytes((0x80 | item.argument - 1,))
    content, second, last = data[item.content : item.end], item.children[1], item.children[-1]
    yield "one field more", "CBOR", more + content + b"\0"
    yield "one field more, null", "CBOR", more + content + NULL
    yield "second field missing", "CBOR", fewer + data[item.content : second.start] + data[second.end : item.end]
    if last.field not in TRIMMED:
        yield "last field missing", "CBOR", fewer + data[item.content : last.start]


def _map(data: bytes, item: Item) -> Iterator[Spoiled]:
    yield from _container(data, item)
    key, value, *others = item.children
    content = data[item.content : item.end]
    pair, rest = data[key.start : value.end], data[value.end : item.end]
    same, more, fewer = (bytes((0xA0 | item.argument + step,)) for step in (0, 1, -1))
    yield "first key twice", "CBOR", more + pair + content
    yield "first key again at the end", "CBOR", more + content + pair
    if others:
        yield "first two keys swapped", "CBOR", same + _second_pair(data, item) + pair + data[others[1].end : item.end]
    yield "first key null", "CBOR", same + NULL + data[value.start : item.end]
    yield "first key a byte string", "CBOR", same + b"\x41\x01" + data[value.start : item.end]
    if item.field in OPEN_MAPS:
        return
    yield "first key in two bytes", "CBOR", same + bytes((0x18, key.argument)) + data[value.start : item.end]
    yield "first key negative", "CBOR", same + b"\x20" + data[value.start : item.end]
    yield "first key as text", "CBOR", same + b"\x611" + data[value.start : item.end]
    yield "first key missing", "CBOR", fewer + rest
    yield "unknown key 0", "CBOR", more + b"\x00\x00" + content
    yield "unknown key 23", "CBOR", more + content + b"\x17\x00"
    yield "unknown text key", "CBOR", more + content + b"\x61x\x00"


def _second_pair(data: bytes, item: Item) -> bytes:
    return data[item.children[2].start : item.children[3].end]
