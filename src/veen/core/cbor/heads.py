"""Deterministic CBOR, the lowest layer: heads and scalars. Spec §3.1, RFC 8949 §3.

Every reader takes `(data, pos)` and returns `(value, next_pos)`. It checks a length against the remaining data before
it allocates, and rejects heads that are not minimal.
"""

import struct

from veen.core.errors import Malformed
from veen.core.hashing import U64_MAX

UINT, NINT, BSTR, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
MAJOR_NAMES = (
    "an unsigned integer",
    "a negative integer",
    "a byte string",
    "a text string",
    "an array",
    "a map",
    "a tag",
    "a simple value or float",
)
FALSE, TRUE, NULL = 0xF4, 0xF5, 0xF6
NULL_BYTE = b"\xf6"

# The lowest argument that needs a head with 1, 2, 4 or 8 further bytes.
_LEAST = (24, 1 << 8, 1 << 16, 1 << 32)
_WRITE_16, _WRITE_32, _WRITE_64 = (struct.Struct(form).pack for form in (">BH", ">BI", ">BQ"))


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
    if argument <= U64_MAX:
        return _WRITE_64(initial | 27, argument)
    raise ValueError(f"{argument} needs more than 64 bits")


def write_bstr(value: bytes) -> bytes:
    return write_head(BSTR, len(value)) + value


def write_text(value: str) -> bytes:
    data = value.encode()
    return write_head(TEXT, len(data)) + data


def read_head(data: bytes, pos: int) -> tuple[int, int, int]:
    """`(major, argument, next_pos)`. Rejects truncated, reserved, indefinite and overlong heads."""
    if pos >= len(data):
        raise Malformed("cbor", f"ends at byte {pos}, where another item must begin")
    initial = data[pos]
    major, info = initial >> 5, initial & 0x1F
    if info < 24:
        return major, info, pos + 1
    if info > 27:
        raise Malformed("cbor", f"a reserved or indefinite length at byte {pos}")
    end = pos + 1 + (1 << info - 24)
    if end > len(data):
        raise Malformed("cbor", f"ends within the head at byte {pos}")
    argument = int.from_bytes(data[pos + 1 : end], "big")
    if argument < _LEAST[info - 24]:
        raise Malformed("cbor", f"the head at byte {pos} is not minimal")
    return major, argument, end


def unexpected(name: str, wanted: str, data: bytes, pos: int) -> Malformed:
    """The error for an item at `pos` with the wrong type."""
    found = MAJOR_NAMES[data[pos] >> 5] if data[pos] != NULL else "null"
    return Malformed("cbor", f"{name} at byte {pos} is {found}, not {wanted}")


def read_uint(name: str, data: bytes, pos: int) -> tuple[int, int]:
    major, value, end = read_head(data, pos)
    if major != UINT:
        raise unexpected(name, MAJOR_NAMES[UINT], data, pos)
    return value, end


def read_string(name: str, wanted: int, data: bytes, pos: int) -> tuple[bytes, int]:
    """The content of a byte or text string. Checks the length against the remaining data before it copies."""
    major, length, start = read_head(data, pos)
    if major != wanted:
        raise unexpected(name, MAJOR_NAMES[wanted], data, pos)
    end = start + length
    if end > len(data):
        raise Malformed("cbor", f"{name} at byte {pos} claims {length} bytes, {len(data) - start} are left")
    return data[start:end], end


def read_text(name: str, data: bytes, pos: int) -> tuple[str, int]:
    raw, end = read_string(name, TEXT, data, pos)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        raise Malformed("cbor", f"{name} at byte {pos} is not UTF-8") from None


def read_count(name: str, wanted: int, data: bytes, pos: int) -> tuple[int, int]:
    """The length of an array or map. Each entry has at least one byte, which bounds the count by the remaining data."""
    major, count, start = read_head(data, pos)
    if major != wanted:
        raise unexpected(name, MAJOR_NAMES[wanted], data, pos)
    if count > len(data) - start:
        raise Malformed("cbor", f"{name} at byte {pos} claims {count} entries, {len(data) - start} bytes are left")
    return count, start


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
