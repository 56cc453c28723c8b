"""Deterministic CBOR: shortest heads, RFC 8949 §4.2.1.

Native objects need only arrays, unsigned integers and byte strings. Text, maps and null are for contacts and the
dialect. The reader rejects every encoding that the writer would not produce.
"""

from typing import NoReturn

from veil.veil_errors import Malformed

UINT, BYTES, TEXT, ARRAY, MAP = 0, 2, 3, 4, 5
NULL = b"\xf6"

_IMMEDIATE = 24
_WIDTHS = {24: 1, 25: 2, 26: 4, 27: 8}
# The smallest value that needs a head of that width.
_MIN_VALUE = {1: _IMMEDIATE, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}


def head(major: int, value: int) -> bytes:
    if value < _IMMEDIATE:
        return bytes((major << 5 | value,))
    if value < 1 << 8:
        return bytes((major << 5 | 24, value))
    if value < 1 << 16:
        return bytes((major << 5 | 25,)) + value.to_bytes(2, "big")
    if value < 1 << 32:
        return bytes((major << 5 | 26,)) + value.to_bytes(4, "big")
    return bytes((major << 5 | 27,)) + value.to_bytes(8, "big")


def head_bytes(value: int) -> int:
    """The length of the head of a value."""
    if value < _IMMEDIATE:
        return 1
    return 1 + next(width for width in (8, 4, 2, 1) if value >= _MIN_VALUE[width])


def width(first: int) -> int:
    """The length of the head that starts with this byte; 1 for an invalid byte."""
    return 1 + _WIDTHS.get(first & 31, 0)


def uint(value: int) -> bytes:
    return head(UINT, value)


def byte_string(data: bytes) -> bytes:
    return head(BYTES, len(data)) + data


def text(value: str) -> bytes:
    data = value.encode()
    return head(TEXT, len(data)) + data


class Reader:
    """Reads values in order and raises `Malformed` at the first invalid one. `what` names the input in errors."""

    __slots__ = ("at", "data", "what")

    def __init__(self, data: bytes, what: str, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.what = what

    def fail(self, reason: str) -> NoReturn:
        raise Malformed(self.what, f"{reason} (at byte {self.at})")

    def head(self, major: int, most: int) -> int:
        """The value of a head of one major type, at most `most`."""
        data, end = self.data, self.at + 1
        if end > len(data):
            self.fail("truncated")
        first = data[end - 1]
        if first >> 5 != major:
            self.fail(f"CBOR major type {first >> 5}, not {major}")
        value = first & 31
        if value >= _IMMEDIATE:
            width = _WIDTHS.get(value, 0)
            end += width
            if not width or end > len(data):
                self.fail("invalid CBOR head" if not width else "truncated")
            value = int.from_bytes(data[end - width : end], "big")
            if value < _MIN_VALUE[width]:
                self.fail("not the shortest CBOR head")
        if value > most:
            self.fail(f"{value} is more than {most}")
        self.at = end
        return value

    def uint(self, most: int) -> int:
        return self.head(UINT, most)

    def exactly(self, major: int, value: int) -> None:
        found = self.head(major, value)
        if found != value:
            self.fail(f"{found}, not {value}")

    def byte_string(self, most: int) -> bytes:
        return self.take(self.head(BYTES, most))

    def fixed(self, length: int) -> bytes:
        """A byte string of one length."""
        self.exactly(BYTES, length)
        return self.take(length)

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            self.fail("truncated")
        data = self.data[self.at : end]
        self.at = end
        return data

    def end(self) -> None:
        if self.at != len(self.data):
            self.fail("trailing bytes")
