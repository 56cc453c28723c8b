"""Deterministic CBOR, the lowest layer: heads and strings. RFC 8949 §3 and §4.2.1.

A head has a major type and an argument of at most 64 bits, in the shortest form. `read_head` rejects every other form.
"""

import struct
from typing import TypeAlias

UINT, NINT, BSTR, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
FALSE, TRUE, NULL = 0xF4, 0xF5, 0xF6
NULL_BYTE = b"\xf6"
MAX_ARGUMENT = (1 << 64) - 1
Item: TypeAlias = "int | bytes | str | tuple[Item, ...]"  # an unsigned integer, a string, or an array

# The lowest argument that needs a head with 1, 2, 4 or 8 further bytes.
_LEAST = (24, 1 << 8, 1 << 16, 1 << 32)
_WRITE_16, _WRITE_32, _WRITE_64 = (struct.Struct(form).pack for form in (">BH", ">BI", ">BQ"))


class InvalidHead(ValueError):
    """The bytes do not start with a complete head in its shortest form."""


def write_head(major: int, argument: int) -> bytes:
    """The shortest head for an argument of at most 64 bits."""
    initial = major << 5
    if argument < 24:
        return bytes((initial | argument,))
    if argument < 1 << 8:
        return bytes((initial | 24, argument))
    if argument < 1 << 16:
        return _WRITE_16(initial | 25, argument)
    if argument < 1 << 32:
        return _WRITE_32(initial | 26, argument)
    if argument <= MAX_ARGUMENT:
        return _WRITE_64(initial | 27, argument)
    raise ValueError(f"{argument} needs more than 64 bits")


def write_bstr(value: bytes) -> bytes:
    return write_head(BSTR, len(value)) + value


def write_text(value: str) -> bytes:
    data = value.encode()
    return write_head(TEXT, len(data)) + data


def write_array(*items: Item) -> bytes:
    return b"".join((write_head(ARRAY, len(items)), *_parts(items)))


def write_items(*items: Item) -> bytes:
    """The items one after another, without a head before them."""
    return b"".join(_parts(items))


def _parts(items: tuple[Item, ...]) -> list[bytes]:
    """The encoded items in pieces, so that a long string is copied once, when they are joined."""
    parts: list[bytes] = []
    for item in items:
        if isinstance(item, bytes):
            parts += (write_head(BSTR, len(item)), item)
        elif isinstance(item, int):
            parts.append(write_head(UINT, item))
        elif isinstance(item, str):
            parts.append(write_text(item))
        else:
            parts.append(write_array(*item))
    return parts


def head_bytes(argument: int) -> int:
    """The length of the head of an argument."""
    return len(write_head(UINT, argument))


def head_width(initial: int) -> int:
    """The length of the head that starts with this byte; 1 for a reserved or indefinite length."""
    info = initial & 0x1F
    return 1 + (1 << info - 24) if 24 <= info <= 27 else 1


def read_head(data: bytes, pos: int) -> tuple[int, int, int]:
    """`(major, argument, next_pos)`. Rejects truncated, reserved, indefinite and overlong heads."""
    if pos >= len(data):
        raise InvalidHead(f"ends at byte {pos}, where another item must begin")
    initial = data[pos]
    major, info = initial >> 5, initial & 0x1F
    if info < 24:
        return major, info, pos + 1
    if info > 27:
        raise InvalidHead(f"a reserved or indefinite length at byte {pos}")
    end = pos + 1 + (1 << info - 24)
    if end > len(data):
        raise InvalidHead(f"ends within the head at byte {pos}")
    argument = int.from_bytes(data[pos + 1 : end], "big")
    if argument < _LEAST[info - 24]:
        raise InvalidHead(f"the head at byte {pos} is not minimal")
    return major, argument, end


def small_uint(data: bytes, pos: int) -> tuple[int, int]:
    """Decode an unsigned integer below 2^32 with a minimal head; -1 for anything else or missing data."""
    initial = data[pos] if pos < len(data) else 0xFF
    if initial < 24:
        return initial, pos + 1
    if initial > 26:
        return -1, pos + 1
    end = pos + 1 + (1 << initial - 24)
    number = int.from_bytes(data[pos + 1 : end], "big")
    return (number if number >= (24, 1 << 8, 1 << 16)[initial - 24] and end <= len(data) else -1), end
