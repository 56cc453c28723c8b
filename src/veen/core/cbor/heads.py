"""Deterministic CBOR, the lowest layer: heads and scalars. Spec §3.1, RFC 8949 §3.

Every reader takes `(data, pos)` and returns `(value, next_pos)`. It checks a length against the remaining data before
it allocates, and rejects heads that are not minimal.
"""

from plumbing import cbor_heads
from plumbing.cbor_heads import (
    ARRAY,
    BSTR,
    FALSE,
    MAP,
    NINT,
    NULL,
    NULL_BYTE,
    SIMPLE,
    TAG,
    TEXT,
    TRUE,
    UINT,
    small_uint,
    write_bstr,
    write_head,
    write_text,
)
from veen.core.errors import Malformed

__all__ = [
    "ARRAY",
    "BSTR",
    "FALSE",
    "FALSE_BYTE",
    "MAJOR_NAMES",
    "MAP",
    "NINT",
    "NULL",
    "NULL_BYTE",
    "SIMPLE",
    "TAG",
    "TEXT",
    "TRUE",
    "TRUE_BYTE",
    "UINT",
    "read_count",
    "read_head",
    "read_string",
    "read_text",
    "read_uint",
    "small_uint",
    "unexpected",
    "write_bstr",
    "write_head",
    "write_text",
]

FALSE_BYTE, TRUE_BYTE = bytes((FALSE,)), bytes((TRUE,))
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


def read_head(data: bytes, pos: int) -> tuple[int, int, int]:
    """`(major, argument, next_pos)`. Rejects truncated, reserved, indefinite and overlong heads."""
    try:
        return cbor_heads.read_head(data, pos)
    except cbor_heads.InvalidHead as error:
        raise Malformed("cbor", str(error)) from None


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
